"""The load levels of a result, and what their stored records say of each: window, samples, rates, queue.

Everything here is counted once more from the records, so that a level cannot state what its run did not show.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compliance.look import Look, NoEvidenceError
from pytest_llmbench.compliance.stored import chunk_counts, has
from pytest_llmbench.metrics.balance import Balance, completion_balance
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.level import Level
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.records import BoolColumn, IntColumn, Records
from pytest_llmbench.stats.growth import gauge_steps, in_flight_steps, segment_means

FloatArray = npt.NDArray[np.float64]

BURST = "burst"
"""Role of a rough estimate ahead of a search. It is no level of the test, and no rule for levels binds it."""
CHARACTERISATION = "characterisation"
"""Role of a short run that only shows how the streams are cut into chunks."""
NOT_OFFERED = " (not offered)"
"""Ends the role of a level whose sends fell behind its schedule: it says nothing about the SUT."""
GIVEN_UP = "(given up)"
"""Ends the role of a level that was to be reported and did not hold."""
RAMP_UP_SHARE = 0.10
SEGMENTS = 5
_FEWEST_READINGS = 5
_OUT_OF_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?(?:device[ _-]|gpu[ _-]|host[ _-])?memory|\boom\b", re.IGNORECASE
)
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Tested:
    """One level with the run that it came from."""

    level: Level
    run: Observation

    @property
    def label(self) -> str:
        return self.level.label

    @property
    def records(self) -> Records:
        return self.run.records

    @property
    def value(self) -> float:
        """What was asked for: requests per second, or requests in flight."""
        offered = self.level.offered_rps
        return float(self.level.concurrency or 0) if offered is None else offered

    @property
    def end_ns(self) -> int:
        """End of the load: its nominal end, or the last submission where that came first or there is none."""
        run, sent = self.run, self.records.submitted_ns[has(self.records.submitted_ns)]
        last_ns = int(sent.max()) if len(sent) else run.ended_ns
        if run.stopped is not None or run.interrupted is not None:
            return last_ns
        if run.load_ended_ns is not None:
            return run.load_ended_ns
        if isinstance(run.plan.load, OpenLoop) and run.plan.duration_s is not None:
            return run.started_ns + round(run.plan.duration_s * 1e9)
        return last_ns

    @property
    def duration_s(self) -> float:
        return (self.end_ns - self.run.started_ns) / 1e9

    @property
    def lasted_s(self) -> float:
        """How long the load stood: an open loop to its end, a closed one until an end was not replaced."""
        load = self.run.plan.load
        if not isinstance(load, ClosedLoop):
            return self.duration_s
        ends = np.sort(self.records.finished_ns[has(self.records.finished_ns)])
        unreplaced = len(self.records) - load.concurrency
        if not 0 <= unreplaced < len(ends):
            return self.duration_s
        return (int(ends[unreplaced]) - self.run.started_ns) / 1e9

    @property
    def start_ns(self) -> int:
        """Start of the window, after the ramp-up (AMB-16)."""
        return self.run.started_ns + round(RAMP_UP_SHARE * (self.end_ns - self.run.started_ns))

    @property
    def window_s(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9

    def within(self, at_ns: IntColumn) -> BoolColumn:
        return np.asarray(has(at_ns) & (at_ns > self.start_ns) & (at_ns <= self.end_ns))

    @cached_property
    def inside(self) -> Records:
        """The latency samples: submitted in the window, drained to their end."""
        return self.records.select(self.within(self.records.submitted_ns))

    @property
    def window(self) -> Window:
        return Window(self.records, self.start_ns, self.end_ns)

    @cached_property
    def balance(self) -> Balance | None:
        """Completions in the window against what was due in it."""
        return completion_balance(self.records, self.window)

    @cached_property
    def queue_means(self) -> tuple[float, ...] | None:
        """Mean queue in five segments: the server's waiting gauge, else the requests in flight of an open
        loop; None where neither tells."""
        if self.end_ns <= self.start_ns:
            return None
        engine = self.run.engine
        read = None if engine is None else engine.gauge("waiting", self.start_ns, self.end_ns)
        if read is not None and len(read[0]) >= _FEWEST_READINGS:
            return segment_means(gauge_steps(*read), self.start_ns, self.end_ns, SEGMENTS)
        if not isinstance(self.run.plan.load, OpenLoop):
            return None
        return self.in_flight_means

    @cached_property
    def in_flight_means(self) -> tuple[float, ...]:
        self._require_window()
        steps = in_flight_steps(self.records.submitted_ns, self.records.finished_ns)
        return segment_means(steps, self.start_ns, self.end_ns, SEGMENTS)

    @property
    def queue_grows(self) -> bool | None:
        means = self.queue_means
        if means is None:
            return None
        rises = all(later > earlier for earlier, later in pairwise(means))
        return rises and means[-1] - means[0] >= max(2.0, 0.2 * means[0])

    def _require_window(self) -> None:
        if self.end_ns <= self.start_ns:
            raise NoEvidenceError(f"a window of level {self.label}")

    def tokens_per_slice(self, slices: int) -> FloatArray:
        """Output tokens that arrived in each of equal parts of the window, of successful requests."""
        self._require_window()
        if (self.records.output_tokens[self.records.ok] < 0).any():
            raise NoEvidenceError("record.output_tokens")
        start_ns, span = self.start_ns, self.end_ns - self.start_ns
        found = np.zeros(slices)
        for block in self.records.blocks():
            at_ns, tokens = _arrivals(block)
            inside = has(at_ns) & (at_ns > start_ns) & (at_ns <= start_ns + span)
            places = np.minimum((at_ns[inside] - start_ns) * slices // span, slices - 1)
            found += np.bincount(places, weights=tokens[inside], minlength=slices)
        return found

    def point(self, metric: str) -> float:
        estimate = self.level.metrics.get(metric)
        if estimate is None or estimate.point is None:
            raise NoEvidenceError(f"{metric} of level {self.label}")
        return estimate.point

    @property
    def out_of_memory(self) -> int:
        """Failed requests whose error speaks of memory that ran out."""
        failed = ~self.records.ok
        return sum(
            bool(error and _OUT_OF_MEMORY.search(error))
            for error, bad in zip(self.records.error, failed, strict=True)
            if bad
        )

    def refused_share(self) -> float:
        return int(self.records.has_outcome(Outcome.REFUSED).sum()) / max(len(self.records), 1)


def tested(look: Look, *roles: str) -> tuple[Tested, ...]:
    """The levels of these roles, or all but bursts, at least one of them. Levels that were given up stand
    under their own role, ``reported (given up)``."""
    found = tuple(
        level for level in look.result.levels if (level.role in roles if roles else _is_tested(level))
    )
    if not found:
        raise NoEvidenceError(f"levels of role {' or '.join(roles)}" if roles else "levels")
    look.note("levels", [level.label for level in found])
    return tuple(_tested(look, level) for level in found)


def _is_tested(level: Level) -> bool:
    return level.role not in (BURST, CHARACTERISATION) and not level.role.endswith(NOT_OFFERED)


def _tested(look: Look, level: Level) -> Tested:
    known: dict[int, Tested] = look.evidence.counted.setdefault("levels", {})
    key = next(place for place, other in enumerate(look.result.levels) if other is level)
    if key not in known:
        known[key] = Tested(level, _run_of(look, level))
    return known[key]


def _run_of(look: Look, level: Level) -> Observation:
    runs = look.result.observations
    if level.observation is None or not 0 <= level.observation < len(runs):
        raise NoEvidenceError(f"the run of level {level.label}")
    return runs[level.observation]


def _arrivals(records: Records) -> tuple[IntColumn, FloatArray]:
    """Instant and tokens of every chunk of a success; the last content where a reply has no chunks. Chunks
    without counts share the reply's tokens alike."""
    counts = chunk_counts(records)
    owner = np.repeat(np.arange(len(records)), counts)
    weights = np.where(has(records.chunk_tokens), records.chunk_tokens, 1).astype(np.float64)
    whole = np.bincount(owner, weights=weights, minlength=len(records))
    tokens = np.where(records.ok, records.output_tokens, 0).astype(np.float64)
    share = np.divide(tokens, whole, out=np.zeros(len(records)), where=whole > 0)
    bare = records.ok & (whole == 0)
    ends = np.where(has(records.finished_ns), records.finished_ns, records.last_content_ns)
    return (
        np.concatenate((records.chunk_ns, ends[bare])),
        np.concatenate((weights * share[owner], tokens[bare])),
    )


def ttft_ms(records: Records) -> FloatArray:
    return _between(records, records.submitted_ns, records.first_content_ns)


def e2e_ms(records: Records) -> FloatArray:
    return _between(records, records.submitted_ns, records.last_content_ns)


def tpot_ms(records: Records) -> FloatArray:
    """Of requests with two tokens or more, reasoning included from where its stream was seen (AMB-29)."""
    reasoned = has(records.first_reasoning_ns) & has(records.first_content_ns)
    first = np.where(
        reasoned, np.minimum(records.first_content_ns, records.first_reasoning_ns), records.first_content_ns
    )
    hidden = ~has(records.first_reasoning_ns) & has(records.reasoning_tokens)
    tokens = records.output_tokens - np.where(hidden, records.reasoning_tokens, 0)
    valid = records.ok & has(first) & has(records.last_content_ns) & has(records.output_tokens)
    valid &= tokens >= 2
    span = (records.last_content_ns - first)[valid] / _NS_PER_MS
    return np.asarray(span / (tokens[valid] - 1), dtype=np.float64)


def _between(records: Records, start: IntColumn, end: IntColumn) -> FloatArray:
    valid = records.ok & has(start) & has(end)
    return np.asarray((end - start)[valid] / _NS_PER_MS, dtype=np.float64)


FAMILIES = {"ttft": ttft_ms, "tpot": tpot_ms, "e2e": e2e_ms}


def percentile(values: FloatArray, statistic: str) -> float:
    """``p50`` … ``p99_9``, ``mean``, ``min``, ``max``, ``std`` of samples (AMB-36)."""
    if not len(values):
        raise NoEvidenceError("samples")
    if statistic == "mean":
        return float(values.mean())
    if statistic in ("min", "max"):
        return float(values.min() if statistic == "min" else values.max())
    if statistic == "std":
        return float(np.std(values, ddof=1))
    return float(np.percentile(values, float(statistic[1:].replace("_", "."))))


def close(stated: float | None, again: float, *, relative: float = 1e-3, absolute: float = 1e-3) -> bool:
    """A stated number agrees with the one that the records give."""
    return stated is not None and abs(stated - again) <= max(absolute, relative * abs(again))


def over(top: float, bottom: float, what: str) -> float:
    """A quotient; one over nothing is no evidence."""
    if not bottom > 0:
        raise NoEvidenceError(f"{what} above zero")
    return top / bottom


def names_of(levels: Sequence[Tested]) -> str:
    return ", ".join(one.label for one in levels)


__all__ = [
    "BURST",
    "CHARACTERISATION",
    "FAMILIES",
    "GIVEN_UP",
    "RAMP_UP_SHARE",
    "SEGMENTS",
    "FloatArray",
    "Tested",
    "close",
    "e2e_ms",
    "names_of",
    "over",
    "percentile",
    "tested",
    "tpot_ms",
    "ttft_ms",
]
