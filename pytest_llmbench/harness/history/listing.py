"""``pytest-llmbench list``: a table of the saved sessions for each folder, which is that of a machine."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.history.sessions import (
    Session,
    add_common,
    chosen,
    read_sessions,
    refused,
    say,
    width,
)
from pytest_llmbench.reports.text_table import text_table
from pytest_llmbench.store.csv_file import write_csv


def _identified(session: Session, *names: str) -> str:
    """The values that the tests of a session have under these names of their identity, separated by
    commas."""
    texts = [
        " ".join(str(value) for name in names if (value := test.identity.get(name)) is not None)
        for test in session.baseline.tests
    ]
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _host(session: Session) -> str:
    """The host in words: ``EPYC 7B13 × 16``, or ``virtual time``."""
    identities: list[Mapping[str, Any]] = [test.identity for test in session.baseline.tests]
    found = [f"{one.get('host.cpu')} × {one.get('host.cpus')}" for one in identities if "host.cpu" in one]
    return ", ".join(dict.fromkeys(found)) or "virtual time"


def _runs(session: Session) -> str:
    """The number of runs: ``3``, or ``1-3`` where its tests differ."""
    counts = sorted({test.runs for test in session.baseline.tests})
    return "" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


COLUMNS: Mapping[str, Callable[[Session], str]] = MappingProxyType(
    {
        "name": lambda session: session.name,
        "saved": lambda session: session.saved,
        "day": lambda session: session.day,
        "commit": lambda session: session.commit,
        "model": lambda session: _identified(session, "model"),
        "build": lambda session: _identified(session, "sut.software.engine", "sut.software.version"),
        "endpoint": lambda session: _identified(session, "endpoint"),
        "machine": _host,
        "tests": lambda session: str(len(session.baseline.tests)),
        "runs": _runs,
        "scale": lambda session: _identified(session, "scale"),
        "seed": lambda session: _identified(session, "seed"),
        "version": lambda session: session.baseline.generator_version,
        "folder": lambda session: session.path.parent.name,
    }
)
_SHOWN = ("name", "saved", "commit", "model", "build", "endpoint", "machine", "tests", "runs")
"""The columns shown by default; those that are empty in every session are left out."""
_NARROW = {"saved": "day", "commit": ""}
"""Column → the column shown in its place on a narrow terminal; empty: none."""
_WIDE = 120
_WHOLE = ("name", "saved", "day", "commit")


def listed(
    sessions: Sequence[Session], *, columns: Sequence[str] | None = None, width: int = 80
) -> list[str]:
    """A table for each folder, oldest first."""
    lines: list[str] = []
    for folder in dict.fromkeys(session.path.parent for session in sessions):
        own = [session for session in sessions if session.path.parent == folder]
        names = list(columns or _fitting(own, width))
        rows = [[COLUMNS[name](session) for name in names] for session in own]
        lines += ["", str(folder), *text_table(names, rows, width=width, whole=_WHOLE)]
    return lines[1:]


def _fitting(sessions: Sequence[Session], width: int) -> list[str]:
    """The default columns that are not empty, as far as the width allows."""
    filled = [name for name in _SHOWN if any(COLUMNS[name](session) for session in sessions)]
    return filled if width >= _WIDE else [short for name in filled if (short := _NARROW.get(name, name))]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench list",
        description="List the sessions that --llm-save and --llm-autosave have kept.",
        epilog="Exit status: 0 listed, 2 there are none, or an option is wrong.",
    )
    add_common(parser)
    parser.add_argument(
        "--columns", metavar="NAMES", help=f"with commas between, of {', '.join(COLUMNS)} (default: by width)"
    )
    parser.add_argument("--sort", metavar="COLUMN", default="saved", help="default: saved, oldest first")
    given = parser.parse_args(list(arguments))
    try:
        columns = None if given.columns is None else chosen("--columns", given.columns, list(COLUMNS))
        (by,) = chosen("--sort", given.sort.replace(",", " "), list(COLUMNS))
        sessions, problems = read_sessions(given.storage)
        if by != "saved":
            sessions = sorted(sessions, key=COLUMNS[by])
        if given.csv is not None:
            names = list(columns or COLUMNS)
            write_csv(given.csv, names, ([COLUMNS[name](each) for name in names] for each in sessions))
    except LLMBenchError as error:
        return refused(error)
    say(listed(sessions, columns=columns, width=width()), problems)
    return 0
