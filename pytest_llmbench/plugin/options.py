"""The options of the command line and the ini file, declared as a table."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pytest

_NEARLY = 0.9
"""Likeness from which on an unknown option is a misspelt one of ours: one letter in ten."""


@dataclass(frozen=True)
class Option:
    """An option: ``--llm-NAME`` on the command line, ``llm_NAME`` in the ini file."""

    name: str
    help: str
    metavar: str | None = None
    choices: tuple[str, ...] | None = None
    flag: bool = False
    number: bool = False
    systems: bool = False
    """Whether it may be given once for each system that is compared; the first is that of the session."""
    many: bool = False
    """Whether it may be given several times; in the ini file one per line."""
    parts: bool = False
    """Whether it has parts with commas between. Those of the command line are put upon those of the ini
    file: a cap that the file sets must not be lost to another one of the command line."""

    @property
    def ini(self) -> str:
        """Its name in the ini file, and of its attribute among pytest's options."""
        return "llm_" + self.name.replace("-", "_")


OPTIONS = (
    Option(
        "endpoint",
        "the system under test: https://host/v1, wss://host/v1, grpc://host:port, sim[:PRESET] for the "
        "embedded engine, replay[:PRESET] for the same engine in virtual time, or python:module:attr for an "
        "async generator or an ASGI application; without it marked tests are skipped; several of them, as "
        "URL or NAME=URL, are compared",
        "URL",
        systems=True,
    ),
    Option("model", "name of the model (default: the only one that the endpoint lists)", "NAME"),
    Option("api", "wire dialect, such as openai-chat or anthropic-messages, or auto (default: auto)", "NAME"),
    Option(
        "http",
        "HTTP version of the measured requests; with 2, one connection carries as many requests at a time as "
        "the server allows (default: 1.1)",
        choices=("1.1", "2"),
    ),
    Option(
        "sut",
        "TOML file that describes the system under test; with several systems one for each, as NAME=FILE",
        "FILE",
        systems=True,
    ),
    Option(
        "scale",
        "size of the tests: quick is a smoke run of seconds, never compliant; standard is what the marker "
        "says; full is everything that an unconditional verdict needs (default: standard)",
        choices=("quick", "standard", "full"),
    ),
    Option(
        "plan",
        "send nothing; print what the selected tests would send and how long they would take",
        flag=True,
    ),
    Option("report", "write report.json, report.html, minimum.txt and the records into DIR", "DIR"),
    Option(
        "runs", "repetitions of every measured load (default: what the marker says, else 1)", "K", number=True
    ),
    Option(
        "baseline-endpoint",
        "measure a second system too, in turns with the first, and compare with it: a URL, variant:NAME, or "
        "base-model for the same requests without their adapters; --llm-runs times each, an even number "
        "(default: 6)",
        "URL",
    ),
    Option(
        "calibrate",
        "run every test 8 times (or --llm-runs) on the unchanged system, print how much runs differ and "
        "which limits and changes exceed that, and keep it for later sessions",
        flag=True,
    ),
    Option("save", "save the session as a baseline with this name; use it with --llm-runs", "NAME"),
    Option(
        "autosave",
        "save the session as a baseline named after the commit, or after the time where there is no "
        "repository",
        flag=True,
    ),
    Option(
        "compare",
        "compare with a saved baseline: its name (the latest one), its number, or the path of its file",
        "NAME_OR_FILE",
    ),
    Option(
        "compare-fail",
        "fail a test whose metric is worse by more than this, for example ttft.p99:5%; may be repeated",
        "METRIC:LIMIT",
        many=True,
    ),
    Option(
        "compare-confirm",
        "fail a test only when M of the last K sessions show the regression, for example 2/3; needs "
        "--llm-save and --llm-compare with the same name (default: this session alone decides)",
        "M/K",
    ),
    Option(
        "accept",
        "accept the saved session as the new level, for this reason; later sessions are compared with it, "
        "and not with earlier ones",
        "REASON",
    ),
    Option(
        "waive",
        "compare in spite of a mismatch with the baseline, until a day: FIELD=REASON@YYYY-MM-DD; may be "
        "repeated",
        "WAIVER",
        many=True,
    ),
    Option(
        "storage",
        "where baselines are kept: a folder (default: .llmbench), a branch as git:[REMOTE/]BRANCH[:PATH], or "
        "NAME:WHERE for a store of the hook pytest_llmbench_stores",
        "DIR",
    ),
    Option(
        "send",
        "send the figures when the session ends, for example to otlp:http://collector:4318/v1/metrics; "
        "otlp:env reads OpenTelemetry's variables",
        "NAME:WHERE",
    ),
    Option("seed", "seed of workloads and arrivals (default: 42)", "N", number=True),
    Option(
        "place",
        "names of the place, for example h100,nightly: markers choose their numbers by them, as in "
        'p99_ms={"h100": 500, "mi300": 700} (default: the accelerator in the SUT file)',
        "NAMES",
    ),
    Option(
        "prompts",
        "which prompts a session sends: seed, those of --llm-seed; NAME, the same in every session with "
        "that name; auto, new ones for a server that was running before, whose prefix cache may hold "
        "earlier ones, otherwise those of the seed (default: auto)",
        "NAME",
    ),
    Option(
        "intervals",
        "method of the intervals: analytic, or a studentised block bootstrap (default: analytic)",
        choices=("analytic", "bootstrap"),
    ),
    Option(
        "inconclusive",
        "outcome of a test that its interval does not decide (default: fail)",
        choices=("fail", "pass"),
    ),
    Option(
        "exit-codes",
        "exit with 10 if a limit is broken, else 11 if limits are undecided, else 12 if tests are not "
        "judged; with 1, as usual, if anything else failed",
        flag=True,
    ),
    Option("require", "fail marked tests without --llm-endpoint; they are not skipped", flag=True),
    Option("import", "also run the loads in another tool's list, script or configuration", "FILE"),
    Option("workloads", "TOML file with workloads for markers to name: lengths, data sets, traces", "FILE"),
    Option(
        "records",
        "which records of single requests are written: compact (without values that follow from others), "
        "full, or none, which rules out recompute (default: compact); and, as in compact,events: events, "
        "each change of state of loads and requests; sequence, the exact requests of every test",
        "NAME,...",
        parts=True,
    ),
    Option(
        "profile",
        "run the engine's profiler after each failed test, or after the test with this node id, under a "
        "short further load that is not judged; the engine must be started for profiling",
        "failed|ID",
    ),
    Option(
        "allow-overload",
        "allow tests that load the system until it fails (memory_pressure); use it on an isolated system "
        "only",
        flag=True,
    ),
    Option(
        "timeout",
        "longest wait in seconds for the first byte of a reply, and between its chunks (default: 120 and 60, "
        "or 20 times the wait during warm-up, scaled by the lengths, if that is longer)",
        "S",
    ),
    Option(
        "wait",
        "wait up to this many seconds for an endpoint that is still starting, until it lists its models and "
        "streams a token (default: 0)",
        "S",
    ),
    Option(
        "workers",
        "number of processes that send the load; 0: pytest's own process, for debuggers; "
        "ray[:ADDRESS][?workers=N]: the nodes of a Ray cluster (default: 1)",
        "N",
    ),
    Option(
        "remeasure",
        "how often a load is measured again, with new requests, if this machine made it void by late sends "
        "(default: 2; 0: never)",
        "N",
        number=True,
    ),
    Option(
        "host-limits",
        "how late and how uncertain this machine may be before a load is void, for example "
        "send_lag_ns=50000000,rate_share=0.9; a looser limit than the default is never compliant",
        "NAME=VALUE,...",
    ),
    Option(
        "worker-cpus",
        "cores for the processes of --llm-workers, one each in turn: 2,3 or 4-7, auto, none (default: none)",
        "LIST",
    ),
    Option(
        "caps",
        "the most that the session may send, warm-ups included, for example requests=20000,rate=50: "
        "requests (default: 1000000), tokens of input and longest output (2000000000), seconds of load "
        "(86400, a day), rate of one load in requests per second (10000), concurrency of one load (10000)",
        "NAME=VALUE,...",
        parts=True,
    ),
    Option(
        "budget",
        "time for all tests of one load together, for example 5m or 90s; each test spends its part on the "
        "runs or requests that decide its limits and comparisons",
        "TIME",
    ),
    Option(
        "insecure",
        "do not check the server's certificate: someone in between can read the API key and change the "
        "replies; every result says so",
        flag=True,
    ),
    Option(
        "proxy",
        "measure through an HTTP proxy: its URL, or env for the proxy of the environment (default: no proxy; "
        "one in the environment is an error)",
        "http://HOST:PORT",
    ),
    Option(
        "api-key-file", "file with the API key (default: the variable LLM_API_KEY or OPENAI_API_KEY)", "FILE"
    ),
)

NOW = {
    "events": "records=events",
    "export-sequence": "records=sequence",
    **{f"max-{name}": f"caps={name}=" for name in ("requests", "tokens", "seconds", "rate", "concurrency")},
}
"""Old names, understood for one release, and what they are now; one that ends in ``=`` takes a value."""


def _olds() -> list[Option]:
    return [
        Option(old, f"old name of llm_{now}", flag=not now.endswith("="), parts=True)
        for old, now in NOW.items()
    ]


def declare(parser: pytest.Parser) -> None:
    group = parser.getgroup("llmbench", "LLM serving benchmarks")
    for option in (*OPTIONS, *_olds()):
        told = argparse.SUPPRESS if option.name in NOW else option.help.replace("%", "%%")
        arguments: dict[str, Any] = {"dest": option.ini, "help": told}
        if option.flag:
            arguments |= {"action": "store_true", "default": None}
        else:
            # append: a value given twice is a mistake that must be seen, not the last one winning
            arguments |= {"action": "append", "metavar": option.metavar, "default": None}
            if option.choices:
                arguments["choices"] = option.choices
            if option.number:
                arguments["type"] = int
        group.addoption(f"--llm-{option.name}", **arguments)
        kind: Literal["bool", "string", "linelist"] = "bool" if option.flag else "string"
        default: Any = None if option.flag else ""
        if option.many:
            kind, default = "linelist", []
        parser.addini(option.ini, option.help, type=kind, default=default)


def refuse_misspelt(arguments: Sequence[str]) -> None:
    """UsageError for options that are nearly ours; all others may be a conftest's."""
    known = {f"--llm-{option.name}": f"--llm-{option.name}" for option in OPTIONS}
    known |= {f"--llm-{old}": f"--llm-{now}" for old, now in NOW.items()}
    given = [argument.partition("=")[0] for argument in arguments if argument.startswith("--llm-")]
    mistakes = [
        f"there is no option {name}; did you mean {known[close[0]]}?"
        for name in dict.fromkeys(given)
        if name not in known and (close := difflib.get_close_matches(name, known, n=1, cutoff=_NEARLY))
    ]
    if mistakes:
        raise pytest.UsageError("\n".join(mistakes))


def values(config: pytest.Config) -> dict[str, Any]:
    """The values of all options; the command line takes precedence over the ini file. UsageError for one
    given twice."""
    found: dict[str, Any] = {}
    twice, empty = [], []
    for option in OPTIONS:
        given = config.getoption(option.ini)
        if option.parts:
            if "" in (given or ()):
                empty.append(f"--llm-{option.name} is empty: give a value, or leave it out")
            found[option.name] = _parts(config, option)
            continue
        if option.many:
            found[option.name.replace("-", "_")] = given or _in_file(config, option) or None
            continue
        if isinstance(given, list):
            if option.systems and len(given) > 1:
                found[option.name + "s"] = tuple(given)
            elif len(given) > 1:
                twice.append(
                    f"--llm-{option.name} is given {len(given)} times ({', '.join(map(str, given))})"
                )
            given = given[0]
        if given == "":
            # What a variable of CI that is not set leaves behind: it would drop a gate without a word.
            empty.append(f"--llm-{option.name} is empty: give a value, or leave it out")
        key = option.name.replace("-", "_")
        found[key] = given if given is not None else _in_file(config, option)
    if twice:
        raise pytest.UsageError("; ".join(twice) + ": give it once")
    if empty:
        raise pytest.UsageError("\n".join(empty))
    return found


def _parts(config: pytest.Config, option: Option) -> tuple[str, ...] | None:
    """The parts of an option in the ini file, then those of the command line; those by old names too."""
    in_file, given = [_in_file(config, option)], list(config.getoption(option.ini) or ())
    for old in _olds():
        name, _, form = NOW[old.name].partition("=")
        if name != option.name:
            continue
        kept, asked = _in_file(config, old), config.getoption(old.ini)
        if old.flag:
            in_file += [form] * bool(kept)
            given += [form] * bool(asked)
        else:
            in_file += [form + kept] if kept else []
            given += [form + each for each in asked or ()]
    return tuple(",".join(filter(None, texts)) for texts in (in_file, given) if any(texts)) or None


def _in_file(config: pytest.Config, option: Option) -> Any:
    """The value in the configuration file. pytest 9 takes the types of ``[tool.pytest]`` as they are, and
    refuses a number where a text is declared: one is taken here as it is in every other file."""
    try:
        return config.getini(option.ini)
    except (TypeError, pytest.UsageError):
        import tomllib

        table = {} if config.inipath is None else tomllib.loads(config.inipath.read_text("utf-8"))
        given = table.get("tool", table).get("pytest", {}).get(option.ini)
        if type(given) not in (int, float) or option.flag or option.many:
            raise
        return str(given)


def has_endpoint(config: pytest.Config) -> bool:
    """Whether there is a system to measure. Without one marked tests are skipped, and little is loaded."""
    return bool(values(config)["endpoint"])
