"""``records/``: the records of single requests, and in ``*.loads.json.gz`` what a result is computed from
beside them.

The marker's parameters and the setting, and for each load the procedure asked for its beginning and end, the
generator's testimony and the engine's readings. ``pytest-llmbench recompute`` drives the procedure again with
these for answers.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Literal

from pytest_llmbench.errors import StoreError
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.redaction import known_secrets
from pytest_llmbench.store.files import read_object, write_text
from pytest_llmbench.store.objects import described, encoded, plain_object
from pytest_llmbench.store.records_file import COMPACT, RecordsHeader, RecordsWriter, not_on_disk, read_runs
from pytest_llmbench.store.schema import Report, TestEntry

Kept = Literal["full", "compact", "none"]
"""Values of ``--llm-records``: what is kept of single requests."""
LOADS_SCHEMA = "pytest-llmbench/loads/1.0"
_LARGEST_TRACE = 16 * 1024 * 1024
"""The most characters of a trace that are kept. The lengths and dependencies of a trace are no prompts, and
without its sessions nobody can tell what was due; a line of records for each of its requests is larger."""
_BY_NAME = ("workload", "plan", "records")
"""Parts of a setting and of an observation of which only what is needed is kept."""


@dataclass(frozen=True, slots=True)
class _Kept:
    """Writes the records of one load under its label."""

    writer: RecordsWriter
    label: str

    def __call__(self, record: RequestRecord) -> None:
        self.writer.write(record, self.label)

    def columns(self, records: Records) -> bool:
        return self.writer.write_columns(records, self.label)


@dataclass
class TestFiles:
    """Writes the files of a test on one SUT, if any are wanted: each record as it is made, and what is known
    of every load. If the disk fails, files are lost and the result is not; :meth:`told` says so."""

    nodeid: str
    writer: RecordsWriter | None
    loads: list[dict[str, Any]] = field(default_factory=list)
    findings: tuple[Finding, ...] = ()
    """The finding that the loads could not be written, if they could not."""

    def keeps(self, plan: LoadPlan) -> OnRecord | None:
        """The callback for the records of a load; None where they are not kept."""
        return None if self.writer is None else _Kept(self.writer, plan.title)

    def note(self, plan: LoadPlan, seen: Observation) -> None:
        """Note the observation of a load. Loads have to be noted in their order."""
        if self.writer is not None:
            load = {**amount(plan), "key": plan.key, "rows": len(seen.records), "seen": _fields(seen)}
            self.loads.append(load)

    def write_loads(self, test: str, parameters: TestParameters, setting: Setting, *, whole: int) -> None:
        """Write the file from which, with the records, the figures can be recomputed. ``whole``: how often
        the whole procedure was run."""
        if self.writer is None:
            return
        content = {
            "schema": LOADS_SCHEMA,
            "nodeid": self.nodeid,
            "test": test,
            "whole": whole,
            "parameters": stated(parameters),
            "workloads": {
                "parameters": _workload(parameters.workload),
                "setting": _workload(setting.workload),
            },
            "setting": _fields(setting),
            "loads": self.loads,
        }
        text = json.dumps(known_secrets().value(content), indent=None, ensure_ascii=False, allow_nan=False)
        try:
            write_text(loads_path(self.writer.path), text + "\n")
        except StoreError as error:
            self.findings = (not_on_disk(error),)

    def told(self, result: TestResult) -> TestResult:
        """The result with the findings about the writing."""
        if self.writer is None:
            return result
        found = (*result.findings, *self.writer.findings, *self.findings)
        return replace(result, notes=(*result.notes, *self.writer.notes), findings=found)


@contextmanager
def recording(
    path: Path | None, nodeid: str, anchor: ClockAnchor, about: Mapping[str, Any]
) -> Generator[TestFiles, None, None]:
    """A recording whose records go to ``path``, with a header that holds ``about``; None: nothing is
    written."""
    if path is None:
        yield TestFiles(nodeid, None)
        return
    with RecordsWriter(path, RecordsHeader(anchor, nodeid, about)) as writer:
        yield TestFiles(nodeid, writer)


def path_in(report: Path, stem: str, kind: str, worker: str | None) -> Path:
    """``REPORT/STEM.KIND``, of a worker of pytest-xdist ``STEM-gw0.KIND``; with a number where an earlier
    session left one, which is moved away at the end."""
    stem = stem if worker is None else f"{stem}-{worker}"
    names = (f"{stem}{'' if number == 1 else f'-{number}'}{kind}" for number in count(1))
    return next(report / name for name in names if not (report / name).exists())


def loads_path(records: Path) -> Path:
    return records.with_name(records.name.removesuffix(".gz").removesuffix(".jsonl") + ".loads.json.gz")


def files_of(records: Path | None, report: Path | None) -> dict[str, str]:
    """Keys of the report entry for the files of a test that exist, relative to the report."""
    if records is None or report is None:
        return {}
    found = {"records_file": records, "loads_file": loads_path(records)}
    return {name: str(path.relative_to(report)) for name, path in found.items() if path.exists()}


def read_loads(path: Path) -> dict[str, Any]:
    """Read a file of loads. StoreError if it is missing, damaged or of another version."""
    beside = "keep the folder records next to report.json"
    content = read_object(path, "loads", absent=beside, damaged=beside)
    if content.get("schema") != LOADS_SCHEMA:
        raise StoreError(f"not a file of loads in {LOADS_SCHEMA!r}", where=str(path), remedy=beside)
    return content


def stated(parameters: TestParameters) -> dict[str, Any]:
    """A marker's parameters as JSON values, without those that are not given."""
    given = {each.name: getattr(parameters, each.name) for each in fields(parameters) if each.init}
    return {name: described(value) for name, value in given.items() if value is not None}


def amount(plan: LoadPlan) -> dict[str, Any]:
    """The amount that a load sends, in JSON values that tell one load from another."""
    return {
        "label": plan.label,
        "load": plan.load.describe(),
        "requests": plan.requests,
        "first": plan.first,
        "seed": plan.seed,
        "part": plan.part,
        "phase": str(plan.phase),
        "duration_s": plan.duration_s,
        "max_requests": plan.max_requests,
        "variant": plan.variant,
        "attempt": plan.attempt,
    }


def _fields(value: Any) -> dict[str, Any]:
    return {
        each.name: encoded(getattr(value, each.name)) for each in fields(value) if each.name not in _BY_NAME
    }


def _workload(given: str | Workload) -> Mapping[str, Any] | str:
    if isinstance(given, str):
        return given
    specification = plain_object(given.specification())
    traced = "dataset" in specification and _is_of_a_trace(given)
    return {
        "name": given.name,
        "standard": given.standard,
        "specification": specification,
        "object": described(given, _LARGEST_TRACE) if traced else described(given),
    }


def _is_of_a_trace(given: Workload) -> bool:
    from pytest_llmbench.workloads.trace import TraceWorkload
    from pytest_llmbench.workloads.trace_sessions import TraceSessionWorkload

    return isinstance(given, TraceWorkload | TraceSessionWorkload)


_LONGEST = 80


def records_path(report: Path | None, nodeid: str, worker: str | None, kept: Kept = "full") -> Path | None:
    """``REPORT/records/NAME.jsonl.gz``, or None without a report directory, and where none are kept.

    The name is the node id in safe characters; a digest keeps long or similar ones apart. A repeated attempt
    gets a number, so that no attempt overwrites another.
    """
    if report is None or kept == "none":
        return None
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", nodeid).strip("-")[-_LONGEST:]
    digest = hashlib.sha256(nodeid.encode(errors="surrogateescape")).hexdigest()[:8]
    stem = "-".join(part for part in (readable, digest, worker) if part)
    folder = report / "records"
    folder.mkdir(parents=True, exist_ok=True)
    kind = f"{COMPACT if kept == 'compact' else ''}.jsonl.gz"
    path = folder / f"{stem}{kind}"
    attempt = 1
    while path.exists():
        attempt += 1
        path = folder / f"{stem}-{attempt}{kind}"
    return path


@dataclass
class StoredRecords:
    """The records beside a report, load by load."""

    directory: Path
    report: Report
    _read: dict[str, list[Records]] = field(default_factory=dict)
    """Records file → the records of its loads in order; each file is read once."""
    _loads: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """File of loads → its loads."""

    def loads(self, entry: TestEntry) -> list[dict[str, Any]]:
        """The notes on each load that a test asked for, in their order.

        StoreError for a file that is missing or damaged.
        """
        name = str(entry.loads_file)
        if name not in self._loads:
            self._loads[name] = _checked(
                read_loads(self.directory / name).get("loads"), self.directory / name
            )
        return self._loads[name]

    def of_load(self, entry: TestEntry, index: int, load: Mapping[str, Any]) -> Records:
        """The records of a test's load, taken from another test's file if that one measured it.

        ``load`` is number ``index`` in the test's file of loads. StoreError for files that are missing,
        damaged or incomplete.
        """
        owner = load["seen"]["shared_from"]
        if owner is None:
            return self._of(entry)[index]
        for other in self.report.tests:
            if other.nodeid != owner or other.loads_file is None:
                continue
            for number, theirs in enumerate(self.loads(other)):
                if theirs["key"] == load["key"] and theirs["seen"]["shared_from"] is None:
                    return self._of(other)[number]
        raise StoreError(
            f"the load {load['label']!r} was measured by {owner}, and this report does not have its records"
        )

    def _of(self, entry: TestEntry) -> list[Records]:
        name = str(entry.records_file)
        if name not in self._read:
            loads = self.loads(entry)
            own = [0 if load["seen"]["shared_from"] else int(load["rows"]) for load in loads]
            self._read[name] = _split(self.directory / name, own)
        return self._read[name]


def _checked(loads: Any, path: Path) -> list[dict[str, Any]]:
    """The loads, checked to have what tells their records apart."""
    whole = isinstance(loads, list) and all(
        isinstance(load, dict)
        and isinstance(load.get("label"), str)
        and isinstance(load.get("rows"), int)
        and "key" in load
        and isinstance(load.get("seen"), dict)
        and "shared_from" in load["seen"]
        for load in loads
    )
    if not whole:
        raise StoreError("its description of the loads is damaged or was changed", where=str(path))
    found: list[dict[str, Any]] = loads
    return found


def _split(path: Path, rows: Sequence[int]) -> list[Records]:
    """The records of each load. One follows the other, and each is in the order of submission."""
    found = read_runs(path)
    parts: list[Records] = []
    runs = iter(found.runs)
    rest, taken = Records.from_rows(()), 0
    for requests in rows:
        if requests and taken >= len(rest):
            following = next(runs, None)
            rest, taken = (Records.from_rows(()) if following is None else following.records), 0
        if requests > len(rest) - taken:
            raise StoreError(
                f"the records are not complete: a load of {requests} requests has {len(rest) - taken}"
                + (f"; {found.dropped}" if found.dropped else ""),
                where=str(path),
            )
        parts.append(rest.part(taken, taken + requests))
        taken += requests
    if taken < len(rest) or next(runs, None) is not None:
        raise StoreError("there are more records than requests", where=str(path))
    return parts
