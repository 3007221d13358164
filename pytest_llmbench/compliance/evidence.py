"""The evidence that an audit judges: the result of one test, the other results of the same report, and the
load generator's capabilities.

Capabilities ``replay.*`` are those of the driver in virtual time, which stands for a wire that it does not
have. Entries of the catalogue with verification ``structural`` rest on them; a run-time fact that contradicts
one wins. A new transport or arrival law becomes a row here.

The view of the evidence through which a predicate reads: what it asks for is recorded, so that every
answer shows what it rests on.

A fact that is absent is "no evidence", and one whose value is not of its type is none either; the strings
``""``, ``unknown`` and ``not declared`` count as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np

from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import EndpointFact, Key, SUTFact, Value
from pytest_llmbench.model.judgement import Status, ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING, PHASES, BoolColumn, IntColumn, JoinedRecords, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.stats.stationarity import in_flight_steps

PUBLISHED_DIGESTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        # ShareGPT_V3_unfiltered_cleaned_split.json of ShareGPT_Vicuna_unfiltered.
        "ShareGPT": frozenset({"35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"}),
        # Thousands of files, and no digest for all of them together.
        "The Stack": frozenset(),
    }
)
"""SHA-256 of the published files of each data set that the draft names."""
CAPABILITIES: Mapping[str, Any] = MappingProxyType(
    {
        "open_loop": True,
        "closed_loop": True,
        "arrival.poisson": True,
        "arrival.uniform": True,
        "arrival.bursty": True,
        "streaming": ("sse", "websocket", "grpc"),
        "concurrency_model": "asyncio",
        "generation_order": True,
        "timestamp_precision_ns": 1,
        "submit_points": ("last_request_byte", "message_sent"),
        "first_points": ("parsed_data_event", "first_token_message"),
        "itl.gaps": True,
        "itl.per_request": True,
        "itl.without_ttft": True,
        "replay.streaming": ("sse", "grpc"),
        "replay.submit_points": ("last_request_byte", "message_sent"),
        "replay.first_points": ("parsed_data_event", "first_token_message"),
        "first_token_kind": "content",
    }
)
"""Properties of the generator: ``True``, or the value that a run-time fact has to agree with. The tests that
prove each are named in ``tests/compliance/test_compliance_capabilities.py``."""
VIRTUAL_TIME = "replay"
"""Value of the fact ``sut.simulated`` for an engine in virtual time."""
BY_SIBLINGS = frozenset(
    {
        "M-4.1-sut-boundary-declared",
        "M-4.3.2.1-synthetic-uniform-for-engine",
        "M-4.5.1-queue-drained",
        "M-5.1.2.2-poisson-required",
        "P-5.1.3-run-to-count",
        "P-5.3.3-capacity-estimate",
        "P-5.4.2-load-as-percentage",
        "P-5.8.3-capacity-first",
        "P-5.10.2-load-levels",
        "S-4.3.2.3-conversation-for-gateway",
        "S-4.8.2-comparative-runs",
        "S-5.6.2-load-70-90",
        "S-7.2-vary-workloads",
    }
)
"""Entries that another result of the same report may decide; of all others a later result changes nothing."""


@dataclass(frozen=True)
class Evidence:
    """The evidence of one test: facts, records, tables and metrics of ``result``, and the capabilities of the
    generator.

    A verdict belongs to one test on one SUT configuration. ``siblings`` are other results of the same report;
    the few entries that another run may satisfy (AMB-05, AMB-06) look there.
    """

    test: str
    result: TestResult
    siblings: tuple[TestResult, ...] = ()
    capabilities: Mapping[str, Any] = field(default_factory=lambda: CAPABILITIES)
    systems: int = 1
    """Number of systems compared in the report; from two on the rules for comparisons bind as well."""
    published_digests: Mapping[str, frozenset[str]] = field(default_factory=lambda: PUBLISHED_DIGESTS)
    """Digests of published files by the name of the data set."""

    @cached_property
    def runs(self) -> tuple[Observation, ...]:
        """The observations of measured load."""
        return tuple(seen for seen in self.result.observations if seen.plan.phase is Phase.MEASURE)

    @cached_property
    def records(self) -> Records:
        """Every measured request of every run. They are looked at by a few columns, or in blocks."""
        return _in_phase(self.runs, Phase.MEASURE)

    @cached_property
    def unmeasured(self) -> Records:
        """Warm-up and probe requests, where the result carries them."""
        parts = [_in_phase(self.result.observations, phase) for phase in (Phase.WARMUP, Phase.PROBE)]
        return Records.concatenate(parts)

    @cached_property
    def counted(self) -> dict[str, Any]:
        """Cache of what predicates have counted once and may need again; a changed copy starts anew."""
        return {}

    @property
    def simulated(self) -> bool:
        """Whether nothing was sent: by what the runs say of themselves, which nobody can declare away."""
        facts = (self.result.facts, *(run.facts for run in self.result.observations))
        return any(known.value(SUTFact.SIMULATED) == VIRTUAL_TIME for known in facts)

    @cached_property
    def same_system(self) -> tuple[TestResult, ...]:
        """Siblings of whatever test on the same SUT: a run that was shared was measured by one of them."""
        own, number = self.result.disclosure, self.result.facts.value(EndpointFact.INSTANCE)
        return tuple(
            sibling
            for sibling in self.siblings
            if sibling.disclosure == own and sibling.facts.value(EndpointFact.INSTANCE) == number
        )

    def others(self, test: str) -> tuple[TestResult, ...]:
        """Results of ``test`` among the siblings, on the same SUT, that are evidence by themselves: valid,
        audited, with records, and nothing blocks them but what siblings decide."""
        found = []
        for sibling in self.same_system:
            valid = sibling.validity.verdict is ValidityVerdict.VALID
            if sibling.test != test or sibling.compliance is None or not valid:
                continue
            blocking = {
                status.id
                for status in sibling.compliance.requirements
                if status.status is Status.UNMET and status.effect == "blocks"
            }
            if blocking <= BY_SIBLINGS and any(len(seen.records) for seen in sibling.observations):
                found.append(sibling)
        return tuple(found)


def _in_phase(observations: tuple[Observation, ...], phase: Phase) -> Records:
    parts = []
    for seen in observations:
        mask = seen.records.phase == PHASES.index(phase)
        parts.append(seen.records if bool(np.all(mask)) else seen.records.select(mask))
    return JoinedRecords(parts) if len(parts) > 1 else Records.concatenate(parts)


_BLANK = ("", "unknown", "not declared")


class NoEvidenceError(Exception):
    """The evidence that a predicate needs is missing. The entry is then unmet, never met."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing
        super().__init__(f"no evidence: {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one predicate."""

    met: bool
    reason: str
    evidence: Mapping[str, Any]


class EvidenceView:
    """The evidence as one predicate sees it.

    ``need`` and its relatives raise :class:`NoEvidenceError` for what is absent or blank, so that a predicate
    deals with values only.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.seen: dict[str, Any] = {}

    @property
    def result(self) -> TestResult:
        return self.evidence.result

    @overload
    def fact(self, key: Key[Value]) -> Value | None: ...
    @overload
    def fact(self, key: Key[Value], default: Value) -> Value: ...
    def fact(self, key: Key[Any], default: Any = None) -> Any:
        """The fact under ``key``; ``default`` when nothing is known."""
        value = self.result.facts.value(key)
        if value is None:
            return default
        if not key.admits(value):
            raise NoEvidenceError(f"{key} as {key.kind.__name__} (it is {value!r})")
        self.seen[key] = value
        return value

    def need(self, key: Key[Value]) -> Value:
        """The fact under ``key``; a blank one, or ``unknown``, counts as absent."""
        value = self.fact(key)
        if value is None or not _states_something(value):
            raise NoEvidenceError(key)
        return value

    def need_all(self, *keys: Key[Any]) -> tuple[Any, ...]:
        missing = [key for key in keys if not _states_something(self.fact(key))]
        if missing:
            raise NoEvidenceError(*missing)
        return tuple(self.seen[key] for key in keys)

    def need_fields(self, key: Key[dict[str, Any]], *names: str) -> tuple[Any, ...]:
        """Fields of a fact that is a mapping; ``system_prompt.present`` reaches into it."""
        mapping = self.need(key)
        values = []
        for name in names:
            value: Any = mapping
            for part in name.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            values.append(value)
        missing = [
            f"{key}.{name}" for name, value in zip(names, values, strict=True) if not _states_something(value)
        ]
        if missing:
            raise NoEvidenceError(*missing)
        return tuple(values)

    @property
    def runs(self) -> tuple[Observation, ...]:
        if not self.evidence.runs:
            raise NoEvidenceError("a measured run")
        return self.evidence.runs

    @property
    def records(self) -> Records:
        """The measured requests, at least one."""
        if not len(self.evidence.records):
            raise NoEvidenceError("measured records")
        return self.evidence.records

    def capability(self, name: str) -> Any:
        """The value of a capability."""
        value = self.evidence.capabilities.get(name)
        if value in (False, None):
            raise NoEvidenceError(f"capability.{name}")
        self.seen[f"capability.{name}"] = value
        return value

    def driver_capability(self, name: str) -> Any:
        """The capability of whatever carried the load: in a replay no generator sent anything and no wire was
        there."""
        self.fact(SUTFact.SIMULATED)
        return self.capability(f"replay.{name}" if self.evidence.simulated else name)

    def metric(self, name: str) -> Estimate:
        """A metric whose point is defined."""
        estimate = self.result.metrics.get(name)
        if estimate is None or estimate.point is None:
            raise NoEvidenceError(f"metric {name}")
        self.seen[f"metric.{name}"] = estimate.point
        return estimate

    def need_metrics(self, names: Iterable[str]) -> None:
        """Raise NoEvidenceError with all that are not defined."""
        points = {name: getattr(self.result.metrics.get(name), "point", None) for name in names}
        missing = [f"metric {name}" for name, point in points.items() if point is None]
        if missing:
            raise NoEvidenceError(*missing)
        self.seen |= {f"metric.{name}": point for name, point in points.items()}

    def measured(self, name: str) -> float | None:
        """The point of a metric that is reported; None where it is said why there is none."""
        estimate = self.result.metrics.get(name)
        if estimate is None or (estimate.point is None and estimate.reason is None):
            raise NoEvidenceError(f"metric {name}")
        self.seen[f"metric.{name}"] = estimate.point
        return estimate.point

    def table(self, table_id: str) -> int:
        """The number of tables with this id that have rows, at least one: some come once per level."""
        found = sum(table.id == table_id and bool(table.cells) for table in self.result.tables)
        if not found:
            raise NoEvidenceError(f"table {table_id}")
        self.seen[f"table.{table_id}"] = found
        return found

    def curve(self, *plot_ids: str) -> Answer:
        """Whether the first plot with one of these ids has a curve of more than one point."""
        for plot in self.result.plots:
            if plot.id in plot_ids:
                self.seen["plot"] = plot.id
                points = max((len(x) for x, _ in plot.series.values()), default=0)
                return self.answer(points > 1, f"{plot.id} with {points} points", f"{plot.id} has no curve")
        raise NoEvidenceError(" or ".join(f"plot {plot_id}" for plot_id in plot_ids))

    def note(self, name: str, value: Any) -> None:
        """Keep a value that was computed from the records."""
        self.seen[name] = value

    def answer(self, met: bool, yes: str, no: str) -> Answer:
        return Answer(met, yes if met else no, dict(self.seen))

    def unless(self, complaint: str | None, yes: str) -> Answer:
        """Unmet for that complaint; met where there is none."""
        return self.answer(complaint is None, yes, complaint or "")

    def no_record(self, wrong: BoolColumn, yes: str, no: str) -> Answer:
        """Met where no record is among the ``wrong`` ones; ``no`` says of them what they are."""
        count = int(wrong.sum())
        self.note("contradicting_records", count)
        return self.answer(count == 0, yes, f"{count} records {no}")

    def met(self, reason: str) -> Answer:
        return Answer(True, reason, dict(self.seen))

    def unmet(self, reason: str) -> Answer:
        return Answer(False, reason, dict(self.seen))


def _states_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _BLANK
    return value is not None and value != {}


# Questions about stored records. A run may have more chunks than memory has room for: whatever is asked of
# chunks is asked block by block.


def has(column: IntColumn) -> BoolColumn:
    return np.asarray(column != MISSING)


def has_first_token(records: Records) -> BoolColumn:
    """The valid TTFT samples: successful, with both instants."""
    return np.asarray(records.ok & has(records.submitted_ns) & has(records.first_content_ns))


def first_output_before_content(records: Records) -> BoolColumn:
    """Requests with output that is no content (whitespace, reasoning) ahead of the first content token."""
    before = np.zeros(len(records), dtype=bool)
    for other in (records.first_nonempty_ns, records.first_reasoning_ns):
        before |= has(other) & (other < records.first_content_ns)
    return np.asarray(records.ok & before)


def chunk_counts(records: Records) -> IntColumn:
    return np.diff(records.chunk_offsets)


def chunk_token_sums(records: Records) -> tuple[IntColumn, BoolColumn]:
    """Tokens over all chunks of each request, and whether every one of its chunks has a count."""
    sums, complete = [], []
    for block in records.blocks():
        if (block.chunk_tokens == 1).all():  # mostly so, and quicker
            sums.append(chunk_counts(block))
            complete.append(np.ones(len(block), dtype=bool))
            continue
        known = has(block.chunk_tokens)
        sums.append(_per_request(np.where(known, block.chunk_tokens, 0), block.chunk_offsets))
        complete.append(_per_request((~known).astype(np.int64), block.chunk_offsets) == 0)
    return np.concatenate(sums), np.concatenate(complete)


class ChunkSizes(NamedTuple):
    """The content chunks of successful requests, by size."""

    chunks: int
    known: int
    """The chunks with a token count."""
    single: int
    """The chunks of exactly one token."""
    several: int


def chunk_sizes(records: Records) -> ChunkSizes:
    chunks = known = single = several = 0
    for block in records.blocks():
        every = block.chunk_tokens
        tokens = every if block.ok.all() else every[np.repeat(block.ok, chunk_counts(block))]
        of_one = int(np.count_nonzero(tokens == 1))
        chunks += len(tokens)
        single += of_one
        if of_one == len(tokens):  # mostly so
            known += of_one
            continue
        known += int(np.count_nonzero(has(tokens)))
        several += int(np.count_nonzero(tokens > 1))
    return ChunkSizes(chunks, known, single, several)


def in_flight_peak(records: Records) -> int:
    """Most requests in flight at once, each from its dispatch to its end. An end frees its place first."""
    both = has(records.dispatched_ns) & has(records.finished_ns)
    steps = in_flight_steps(records.dispatched_ns[both], records.finished_ns[both])
    return int(steps.values.max(initial=0))


def reported(result: TestResult, statistic: str) -> bool:
    """Whether a TTFT statistic is defined, over as many samples as it needs."""
    estimate = result.metrics.get(f"ttft.{statistic}")
    return (
        estimate is not None
        and estimate.point is not None
        and estimate.n >= SAMPLES_REQUIRED.get(statistic, 1)
    )


def _per_request(values: IntColumn, offsets: IntColumn) -> IntColumn:
    running = np.concatenate(([0], np.cumsum(values))).astype(np.int64)
    return np.asarray(running[offsets[1:]] - running[offsets[:-1]])
