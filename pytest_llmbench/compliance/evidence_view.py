"""The view of the evidence through which a predicate reads: what it asks for is recorded, so that every
answer shows what it rests on.

A fact that is absent is "no evidence", and one whose value is not of its type is none either; the strings
``""``, ``unknown`` and ``not declared`` count as absent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Key, SUTFact, Value
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.model.result import Plot, TestResult

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
        values = [_field(mapping, name) for name in names]
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

    def plot(self, *plot_ids: str) -> Plot:
        """The first plot with one of these ids."""
        for plot in self.result.plots:
            if plot.id in plot_ids:
                self.seen["plot"] = plot.id
                return plot
        raise NoEvidenceError(" or ".join(f"plot {plot_id}" for plot_id in plot_ids))

    def note(self, name: str, value: Any) -> None:
        """Keep a value that was computed from the records."""
        self.seen[name] = value

    def answer(self, met: bool, yes: str, no: str) -> Answer:
        return Answer(met, yes if met else no, dict(self.seen))

    def met(self, reason: str) -> Answer:
        return Answer(True, reason, dict(self.seen))

    def unmet(self, reason: str) -> Answer:
        return Answer(False, reason, dict(self.seen))


def _states_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _BLANK
    return value is not None and value != {}


def _field(mapping: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        if not isinstance(mapping, Mapping):
            return None
        mapping = mapping.get(name)
    return mapping


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

    @property
    def single_share(self) -> float | None:
        """The share of single-token chunks among those with a token count; None where no chunk has one."""
        return self.single / self.known if self.known else None


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
    instants = np.concatenate((records.finished_ns[both], records.dispatched_ns[both]))
    steps = np.concatenate((np.full(int(both.sum()), -1), np.ones(int(both.sum()), dtype=np.int64)))
    if not len(instants):
        return 0
    return int(np.cumsum(steps[np.lexsort((steps, instants))]).max())


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
