"""The command ``pytest-llmbench``, also ``python -m pytest_llmbench``: what is done outside of a pytest
session."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from importlib import import_module

from pytest_llmbench import registry
from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.redaction import terminal_text

_USAGE = """\
usage: pytest-llmbench selftest [--quick] [--over TRANSPORT] [--workers N] [--json FILE] [--out DIR]
       pytest-llmbench recompute report.json
       pytest-llmbench recover DIR
       pytest-llmbench list
       pytest-llmbench compare SESSION SESSION ...
       pytest-llmbench history METRIC ...
       pytest-llmbench records DIR --csv FILE | --parquet FILE
       pytest-llmbench trace describe FILE [--plot FILE.svg]

commands:
  selftest    measure how exact and how fast the load generator is on this host
  recompute   compute every figure of a report again from its records, and compare
  recover     write the report of a session that was killed, from what it had judged
  list        list the sessions that --llm-save and --llm-autosave saved
  compare     compare saved sessions with the first one, by the rules of --llm-compare
  history     follow a metric over the saved sessions, and show where its level changed
  records     write the single requests of a report as a table
  trace       describe a trace or a workload: lengths, arrivals, sharing, turns
{more}
Each has --help. pytest runs the load tests: pytest --llm-endpoint=URL
"""
_COMMANDS = {
    "selftest": "harness.selftest.run",
    "recompute": "harness.recompute",
    "recover": "harness.recover",
    "list": "harness.history.sessions",
    "compare": "harness.history.comparing",
    "history": "harness.history.trend",
    "records": "harness.analysis",
    "trace": "harness.workloads.describe",
}
"""Command → the module whose ``main`` takes its arguments; it is imported for that command only."""


def main(arguments: list[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    command = _command(given[0]) if given else None
    if command is not None:
        return _unless_nobody_reads(command, given[1:])
    asked = given[:1] in (["-h"], ["--help"])
    told = registry.every("commands").items()
    lines = [f"  {name:<10}  {(command.__doc__ or '').partition(chr(10))[0]}\n" for name, command in told]
    print(_USAGE.format(more="".join(lines)), end="", file=sys.stdout if asked else sys.stderr)
    return 0 if asked else 2


def _command(name: str) -> Callable[[list[str]], int] | None:
    if name in _COMMANDS:
        found: Callable[[list[str]], int] = import_module(f"pytest_llmbench.{_COMMANDS[name]}").main
        return found
    return None if name.startswith("-") else registry.named("commands", name)


def _unless_nobody_reads(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Run a command; returns its exit status, 2 where it could not do anything, or 1 where the reader of a
    pipe has closed it, as ``head`` does."""
    try:
        status = command(arguments)
        sys.stdout.flush()
    except LLMBenchError as error:
        print(terminal_text(str(error)), file=sys.stderr)
        return 2
    except BrokenPipeError:
        # What is still held would be written, and fail, when the interpreter ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
