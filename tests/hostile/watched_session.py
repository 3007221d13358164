"""A session of pytest in a process of its own, and what is wrong with how it ended.

Looked at from inside, when pytest is through: child processes, sockets, threads and tasks that are left; and
from outside, when it has ended: processes, temporary files, tracebacks, and files that nobody can read.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import psutil

from pytest_llmbench.model.records import Records
from pytest_llmbench.store.records_file import read_runs

SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"
UNSAID = (
    "Traceback (most recent",
    "INTERNALERROR",
    "ResourceWarning",
    "was destroyed but",
    "never retrieved",
)
"""What no session says, whatever its server does."""
ROUNDING_S = 0.05
_OTHERS = ("cacheprovider", "hypothesispytest", "html", "metadata", "timeout")
WITHOUT = [word for name in _OTHERS for word in ("-p", f"no:{name}")]
"""Plugins that a session does not need, and which take time to load."""

WATCH = """
import asyncio, gc, json, os, threading
import psutil, pytest

def command(process):
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return "ended, and not waited for"

def left():
    me = psutil.Process()
    pending = [o for o in gc.get_objects() if isinstance(o, asyncio.Task) and not o.done()]
    return {
        "processes": [command(p) for p in me.children(recursive=True)],
        "sockets": [str(c) for c in me.net_connections("all") if c.laddr or c.raddr],
        "threads": [t.name for t in threading.enumerate() if not (t.daemon or t is threading.main_thread())],
        "tasks": [repr(task) for task in pending],
    }

@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    with open(os.environ["LLMBENCH_LEFT"], "w") as file:
        json.dump(left(), file)
"""


@dataclass
class Ended:
    """``problems``: a line each; none where all is as it should be."""

    code: int | None
    """None: it hung, and was killed."""
    wall_s: float
    terminal: str
    report: dict[str, Any] | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def tests(self) -> Mapping[str, Any]:
        """Entries of the report by the kind of test."""
        return {entry["test"]: entry for entry in (self.report or {"tests": []})["tests"]}


def watched(folder: Path, suite: str, *arguments: str, limit_s: float = 600.0) -> Ended:
    """Runs ``suite`` in ``folder``, which is empty, and looks at what is left."""
    (folder / "test_suite.py").write_text(suite, "utf-8")
    (folder / "conftest.py").write_text(WATCH, "utf-8")
    (folder / "tmp").mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_ADD", "LLM_"))}
    more = {
        "TMPDIR": str(folder / "tmp"),
        "LLMBENCH_LEFT": str(folder / "left.json"),
        "PYTHONWARNINGS": "always::ResourceWarning",
    }
    command = [sys.executable, "-m", "pytest", *WITHOUT, "--llm-report=out"]
    command += ["--junitxml=junit.xml", "-o", "junit_family=xunit2", *arguments]
    began = time.monotonic()
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=kept | more, stdout=said, stderr=said, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
    wall_s = time.monotonic() - began
    orphans = _killed(process.pid)
    process.wait()
    ended = Ended(code, wall_s, (folder / "said").read_bytes().decode("utf-8", "replace"))
    if code is None:
        ended.problems.append(f"hung: killed after {limit_s:g} s")
    ended.problems += [f"a process is left: {command}" for command in orphans]
    ended.problems += _of_the_process(folder, ended)
    ended.problems += _of_the_files(folder, ended)
    return ended


def _killed(session: int) -> list[str]:
    """Commands of the processes that the session left; they are killed, and by their number."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:200])
                os.kill(process.pid, signal.SIGKILL)
        except (OSError, psutil.Error):
            continue
    return found


def _of_the_process(folder: Path, ended: Ended) -> list[str]:
    found = [] if ended.code in (0, 1, None) else [f"pytest ended with status {ended.code}"]
    found += [f"{text!r} is said" for text in UNSAID if text in ended.terminal]
    # The user's own folder stays, for whoever comes next; empty.
    own = folder / "tmp" / f"pytest-llmbench-{os.getuid()}"
    left_there = [*sorted(own.iterdir() if own.is_dir() else ()), *sorted((folder / "tmp").iterdir())]
    found += [f"a temporary file is left: {path.name}" for path in left_there if path != own]
    if ended.code is not None:
        left = json.loads((folder / "left.json").read_text("utf-8"))
        found += [f"left in the process: {kind}: {what}" for kind, listed in left.items() for what in listed]
    return found


def _of_the_files(folder: Path, ended: Ended) -> list[str]:
    out = folder / "out"
    missing = [name for name in ("report.html", "summary.md", "minimum.txt") if not (out / name).is_file()]
    found = [f"{name} was not written" for name in missing]
    try:
        ended.report = json.loads((out / "report.json").read_text("utf-8"))
        jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(ended.report)
        cases = ElementTree.parse(folder / "junit.xml").getroot().findall(".//testcase")
    except (OSError, ValueError, jsonschema.ValidationError, ElementTree.ParseError) as error:
        return [*found, f"{type(error).__name__}: {error}"[:300]]
    if len(cases) != len(ended.tests):
        found.append(f"{len(cases)} cases in JUnit, {len(ended.tests)} tests in the report")
    return found + [text for entry in ended.tests.values() for text in unbalanced(entry, out)]


def unbalanced(entry: Mapping[str, Any], out: Path) -> Iterator[str]:
    """Where the accounts of a test do not agree: submitted = sum of outcomes = records, of the test and of
    each of its stretches; and Little's law: what was in flight on average is never more than at the peak."""
    counts = dict(entry["counts"])
    if counts.pop("submitted", 0) != sum(counts.values()):
        yield f"{entry['test']}: {entry['counts']} do not add up"
    own = [stretch for stretch in entry["stretches"] if stretch["shared_from"] is None]
    if not own:
        return
    recorded = defaultdict[str, list[Records]](list)
    for run in read_runs(out / entry["records_file"]).runs:
        recorded[run.label].append(run.records)
    records = {label: Records.concatenate(parts) for label, parts in recorded.items()}
    for label in {stretch["label"] for stretch in own}:
        told = [stretch for stretch in own if stretch["label"] == label]
        there = dict(records[label].counts()) if label in records else {}
        said = {name: sum(s["counts"][name] for s in told) for name in told[0]["counts"]}
        submitted = said.pop("submitted")
        if submitted != sum(said.values()) or any(there.get(name, 0) != n for name, n in said.items()):
            yield f"{entry['test']}, {label}: told {said}, recorded {there}"
        if label in records:
            yield from _beyond_little(f"{entry['test']}, {label}", told, records[label])


def _beyond_little(name: str, told: list[Mapping[str, Any]], records: Any) -> Iterator[str]:
    ended = records.finished_ns > 0
    in_flight_s = float((records.finished_ns - records.dispatched_ns)[ended].sum()) / 1e9
    most_s = sum(s["selfcheck"]["peak_in_flight"] * (s["duration_s"] + ROUNDING_S) for s in told)
    if in_flight_s > most_s:
        yield f"{name}: {in_flight_s:.3f} s in flight where {most_s:.3f} s are possible"


__all__ = ["Ended", "unbalanced", "watched"]
