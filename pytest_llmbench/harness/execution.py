"""Loads are executed and kept: the pump of a procedure, ``records/``, shared runs, ``events.jsonl.gz``.

``records/`` has the records of single requests, and in ``*.loads.json.gz`` what a result is computed from
next to them: the marker's parameters, the setting, and of each load its beginning and end, the generator's
testimony and the engine's readings. ``pytest-llmbench recompute`` answers the procedure with these.

Tests that need the same load on the same SUT share one run. A data set has no other prompts than those in it,
and its server may have them in its prefix cache; then the share of repeated ones is told.

``events.jsonl.gz`` has a line for each change of state of the session, its loads and their requests, made
after the last reply of a load, in the order of time. Instants are those of the records, nanoseconds of
CLOCK_MONOTONIC (in replay: of the virtual clock).
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count, islice
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeVar

import numpy as np
import orjson

from pytest_llmbench.errors import StoreError
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import OnRecord, Phase, RequestRecord
from pytest_llmbench.model.records import MISSING, OUTCOMES, BoolColumn, IntColumn, Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.redaction import known_secrets
from pytest_llmbench.store.files import read_object, write_text
from pytest_llmbench.store.objects import described, encoded, plain_object
from pytest_llmbench.store.records_file import COMPACT, RecordsHeader, RecordsWriter, not_on_disk, read_runs
from pytest_llmbench.store.schema import Report, TestEntry
from pytest_llmbench.workloads.sequence import passing
from pytest_llmbench.workloads.stream import streamed


class Executor(Protocol):
    """Executes plans, one at a time, and returns their observations."""

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation: ...

    def close(self) -> None: ...


class Stoppable(Executor, Protocol):
    """A load generator that can be stopped, from any thread."""

    def stop(self, reason: str) -> None: ...


R = TypeVar("R")


def drive(procedure: Procedure[R], execute: Callable[[LoadPlan], Observation]) -> R:
    """The procedure's result. What ``execute`` raises is thrown into the procedure, which may clean up."""
    try:
        plan = next(procedure)
        while True:
            try:
                observation = execute(plan)
            except Exception as error:  # noqa: BLE001  # whatever it is, it belongs to the procedure's yield
                plan = procedure.throw(error)
            else:
                plan = procedure.send(observation)
    except StopIteration as stop:
        result: R = stop.value
        return result
    finally:
        procedure.close()


class Around:
    """A load generator each of whose loads is one of a procedure, which acts before and after it and returns
    the Observation."""

    def __init__(
        self,
        inner: Stoppable,
        around: Callable[[LoadPlan], Procedure[Observation]],
        end: Callable[[], None] = lambda: None,
    ) -> None:
        """``end`` is called before the generator is closed."""
        self._inner, self._around, self._end = inner, around, end
        self.stop = inner.stop

    def run(self, plan: LoadPlan, on_record: OnRecord | None = None) -> Observation:
        return drive(self._around(plan), lambda asked: self._inner.run(asked, on_record))

    def close(self) -> None:
        try:
            self._end()
        finally:
            self._inner.close()


def with_facts(
    inner: Stoppable,
    facts: Callable[[LoadPlan, Observation], Facts],
    end: Callable[[], None] = lambda: None,
) -> Around:
    """A load generator whose Observations carry further facts, asked for after each load."""

    def around(plan: LoadPlan) -> Procedure[Observation]:
        seen = yield plan
        return replace(seen, facts=seen.facts | facts(plan, seen))

    return Around(inner, around, end)


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
    specification, traced = plain_object(given.specification()), False
    if "dataset" in specification:
        from pytest_llmbench.workloads.trace import TraceWorkload
        from pytest_llmbench.workloads.trace_sessions import TraceSessionWorkload

        traced = isinstance(given, TraceWorkload | TraceSessionWorkload)
    return {
        "name": given.name,
        "standard": given.standard,
        "specification": specification,
        "object": described(given, _LARGEST_TRACE) if traced else described(given),
    }


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
    folder = report / "records"
    folder.mkdir(parents=True, exist_ok=True)
    kind = f"{COMPACT if kept == 'compact' else ''}.jsonl.gz"
    return path_in(folder, "-".join(filter(None, (readable, digest))), kind, worker)


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


LIMIT_BYTES = 2 * 2**30
"""The most bytes of records that are kept; beyond them the oldest are dropped."""


@dataclass
class _KeptRun:
    seen: Observation
    owner: str
    """Node id of the test that measured it."""
    served: set[str]
    """Node ids of the tests that have used the run, the owner included: a repeated attempt measures anew."""
    state: str
    """The state of the server at the time of the measurement."""
    nbytes: int
    """The bytes of its records."""


class SharedRuns:
    """The observations of a session, by SUT and by what was sent.

    A run is given to every test but the one that measured it, and to each only once: a test that is run again
    wants new numbers. Warm-ups and probes are shared only while their server has not been restarted or
    emptied since. A load that starts from a fresh state, and one that was cut short, is nobody else's.
    """

    def __init__(self, limit_bytes: int = LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._kept: dict[tuple[str, str], _KeptRun] = {}

    def find(self, sut: str, plan: LoadPlan, who: str, state: str) -> Observation | None:
        """Another test's observation of the same load, as an answer to ``plan``; None if there is none."""
        kept = self._kept.get((sut, plan.key))
        if kept is None or who in kept.served:
            return None
        if plan.phase is not Phase.MEASURE and kept.state != state:
            return None
        kept.served.add(who)
        return replace(kept.seen, plan=plan, shared_from=kept.owner)

    def keep(self, sut: str, plan: LoadPlan, who: str, state: str, seen: Observation) -> None:
        """Remember a run that may be shared; a newer one takes the place of an older one."""
        if plan.fresh_state or seen.interrupted is not None or seen.stopped is not None:
            return
        key = (sut, plan.key)
        self._kept.pop(key, None)
        self._kept[key] = _KeptRun(seen, who, {who}, state, seen.records.nbytes)
        while len(self._kept) > 1 and sum(kept.nbytes for kept in self._kept.values()) > self._limit_bytes:
            del self._kept[next(iter(self._kept))]

    def forget(self, sut: str) -> None:
        """Drop the runs of a SUT that is closed."""
        for key in [key for key in self._kept if key[0] == sut]:
            del self._kept[key]


class SentBefore:
    """Tells which prompts a server had received before a test sent them."""

    def __init__(self) -> None:
        self._sent: dict[Hashable, BoolColumn] = defaultdict(lambda: np.zeros(0, dtype=np.bool_))
        """(server, workload, seed) → which requests of the sequence were sent, where the seed determines the
        prompts."""
        self._prompts: dict[Hashable, set[bytes]] = defaultdict(set)
        """Server → digests of all other prompts that it was sent."""
        self._measured: Counter[str] = Counter()
        self._repeated: Counter[str] = Counter()

    def note(self, server: Hashable, who: str, seen: Observation) -> None:
        """Note a load that was sent to ``server``, a key that changes when the server is restarted or
        emptied."""
        plan = seen.plan
        shown: object = plan.workload
        while shown is not None and not getattr(shown, "shows_prompts", False):
            shown = getattr(shown, "base", None)
        if shown is not None:  # the server has run its prompts to count them: ``TokenCounter.shows_prompts``
            repeated = len(seen.records)
        else:
            draws_anew = streamed(plan.workload).draws_anew
            repeated = self._drawn(server, seen) if draws_anew else self._listed(server, seen)
        if plan.phase is Phase.MEASURE:
            self._measured[who] += len(seen.records)
            self._repeated[who] += repeated

    def findings(self, who: str) -> tuple[Finding, ...]:
        """The findings about the loads since the last call; empty where no prompt was sent again."""
        measured, repeated = self._measured.pop(who, 0), self._repeated.pop(who, 0)
        if not repeated:
            return ()
        return (Finding.of("prompts_sent_before", value=repeated / measured),)

    def _drawn(self, server: Hashable, seen: Observation) -> int:
        workload = seen.plan.workload
        key = (server, workload.name, str(workload.specification()), seen.plan.seed)
        index = seen.records.index
        known, end = self._sent[key], int(index.max(initial=-1)) + 1
        if end > len(known):
            known = self._sent[key] = np.pad(known, (0, end - len(known)))
        sent = np.zeros_like(known)
        sent[index] = True
        repeated = int((known & sent).sum())
        known |= sent
        return repeated

    def _listed(self, server: Hashable, seen: Observation) -> int:
        if not len(seen.records):
            return 0
        plan, index, known, repeated = seen.plan, seen.records.index, self._prompts[server], 0
        count = int(index.max()) + 1 - plan.first
        wanted = np.zeros(count, dtype=bool)  # several workers may leave gaps
        wanted[index - plan.first] = True
        drawn = passing(plan.workload, plan.first, count, plan.seed)
        for request, was_sent in zip(drawn, wanted, strict=False):
            if not was_sent:
                continue
            ids = request.token_ids
            prompt = str(request.text) if ids is None else ",".join(map(str, ids))
            prompt += repr(request.media) if request.media else ""  # one question about many images
            digest = hashlib.blake2b(prompt.encode("utf-8", errors="surrogatepass"), digest_size=8).digest()
            repeated += digest in known
            known.add(digest)
        return repeated


EVENTS_SCHEMA: Final = "pytest-llmbench/events/1.0"
OF_REQUESTS: Final = {
    "request_due": "scheduled_ns",
    "request_issued": "dispatched_ns",
    "request_sent": "submitted_ns",
    "first_byte": "first_byte_ns",
    "first_event": "first_event_ns",
    "request_completed": "finished_ns",
}
"""Event of a request → the column with its instant. ``chunk`` is beside them, one for each content chunk."""
_ORDER = (*list(OF_REQUESTS)[:-1], "chunk", "request_completed")
"""The order of events of a request that have one instant."""

AT_ONCE: Final = 10_000
"""Most events that are held at a time: a long load has millions."""

Event = Mapping[str, Any]


class Observer(Protocol):
    def __call__(self, *, events: Sequence[Event]) -> object: ...


class EventLog:
    """Writes and shows the events of a session. ``path``: None where they are only shown; ``observers``: each
    is called with the events of a load in the order of time, :data:`AT_ONCE` at a time."""

    def __init__(self, path: Path | None, observers: Sequence[Observer]) -> None:
        self._path, self._observers = path, observers
        self._ended_ns: int | None = None
        """The end of the last load; None before the first."""
        self.findings: tuple[Finding, ...] = ()
        """The finding that events could not be written, if they could not."""

    def load(self, plan: LoadPlan, seen: Observation, nodeid: str) -> None:
        """Add a load that was sent."""
        about = {"test": nodeid, "load": plan.title}
        if self._ended_ns is None:
            anchor = {"at_ns": seen.started_ns, "wall_ns": seen.anchor.wall(seen.started_ns)}
            self._add([{"event": "session_started", **anchor, "schema": EVENTS_SCHEMA}])
        events = events_of(seen)
        while some := [{**each, **about} for each in islice(events, AT_ONCE)]:
            self._ended_ns = some[-1]["at_ns"]
            self._add(some)

    def end(self) -> None:
        """Add the end of the session; nothing where it had no load."""
        if self._ended_ns is not None:
            self._add([{"event": "session_ended", "at_ns": self._ended_ns}])

    def _add(self, events: Sequence[Event]) -> None:
        for observer in self._observers:
            observer(events=events)
        if self._path is None or self.findings:
            return
        # A member of its own each time: whatever comes later, what was written can be read.
        packed = gzip.compress(b"".join(orjson.dumps(each) + b"\n" for each in events), mtime=0)
        try:
            with self._path.open("ab") as file:
                file.write(packed)
        except OSError as error:
            why = StoreError(f"the events cannot be written: {error.strerror}", where=str(self._path))
            self.findings = (not_on_disk(why),)


def events_of(seen: Observation) -> Iterator[dict[str, Any]]:
    """The events of a load in the order of time: ``load_started``, those of its requests, ``load_stopped``
    (nothing more is sent) and ``tracking_stopped`` (the last reply has come, or the drain is over)."""
    records = seen.records
    sent_ns = records.submitted_ns[records.submitted_ns != MISSING]
    stopped_ns = max(int(sent_ns.max()) if len(sent_ns) else seen.started_ns, seen.load_ended_ns or 0)
    rest = [
        {"event": "load_stopped", "at_ns": stopped_ns},
        {"event": "tracking_stopped", "at_ns": max(seen.ended_ns, stopped_ns)},
    ]
    wall_ns = seen.anchor.wall(seen.started_ns)
    yield {"event": "load_started", "at_ns": seen.started_ns, "wall_ns": wall_ns}
    at_ns, rows, kinds = _columns(records)
    ended, order = _ORDER.index("request_completed"), np.lexsort((kinds, at_ns))
    for instant, row, kind in zip(at_ns[order], rows[order], kinds[order], strict=True):
        while rest and rest[0]["at_ns"] < instant:
            yield rest.pop(0)
        event = {"event": _ORDER[kind], "at_ns": int(instant), "request": records.request_id[row]}
        if kind == ended:
            event["outcome"] = str(OUTCOMES[records.outcome[row]])
        yield event
    yield from rest


def _columns(records: Records) -> tuple[IntColumn, IntColumn, IntColumn]:
    """Instant, row and place in :data:`_ORDER` of each event."""
    every = np.arange(len(records))
    at_ns, rows, kinds = [], [], []
    for event, column in OF_REQUESTS.items():
        instants = getattr(records, column)
        known = instants != MISSING
        at_ns.append(instants[known])
        rows.append(every[known])
        kinds.append(np.full(int(known.sum()), _ORDER.index(event)))
    at_ns.append(records.chunk_ns)
    rows.append(np.repeat(every, np.diff(records.chunk_offsets)))
    kinds.append(np.full(len(records.chunk_ns), _ORDER.index("chunk")))
    return np.concatenate(at_ns), np.concatenate(rows), np.concatenate(kinds)
