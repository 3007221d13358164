"""The Level that is made of a load level's observation: window, estimates, queue, saturation, criteria.

The rules for when a load level is saturated: section 5.2.3.1, settled by AMB-14.

1. The queue grows continuously: five equal segments of the window, mean in flight strictly rising, last minus
   first at least max(2, 20 % of the first). The queue is the server's waiting gauge where there is one.
2. The completion rate is below 90 % of the arrival rate (open loop), over times that belong together.
3. TTFT P99 is above ten times the TTFT P50 of the lowest tested level; switched off, with a note, when the
   lowest level itself breaks it.

In a closed loop the second rule says nothing and the first needs the gauge; there a throughput gain below 1 %
over a step of at least 10 % in concurrency is saturation too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_llmbench.metrics import latency, throughput
from pytest_llmbench.metrics.balance import COMPLETION_SHARE, Queue, completion_balance, queue_of, steadiness
from pytest_llmbench.metrics.throughput import Window, level_window, submitted_inside
from pytest_llmbench.model.draft import TAIL_FACTOR
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import NO_FAILURES, Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import Level
from pytest_llmbench.model.sentences import Note

_SLICES = 10
FAMILIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True)
class Seen:
    """A level together with its observation."""

    level: Level
    observation: Observation

    @property
    def records(self) -> Records:
        return self.observation.records

    @property
    def inside(self) -> Records:
        """The latency samples: requests submitted inside the window."""
        return submitted_inside(level_window(self.observation, self.level.role))

    def point(self, metric: str) -> float | None:
        """The point of the metric; None where it is not known, nor more than the least that it is."""
        estimate = self.level.metrics.get(metric)
        return None if estimate is None or estimate.among_given_up else estimate.point

    def with_(self, **changes: object) -> Seen:
        return replace(self, level=replace(self.level, **changes))  # type: ignore[arg-type]


def level_metrics(window: Window, *, seed: int) -> dict[str, Estimate]:
    """Latency distributions, rates and completion rate of a level, under plain names."""
    return run_metrics([window], seed=seed)


def run_metrics(windows: Sequence[Window], *, seed: int) -> dict[str, Estimate]:
    """The metrics of one level over several runs of it."""
    inside = [submitted_inside(window) for window in windows]
    every = [window.records for window in windows]
    return latency.distributions(FAMILIES, inside, among=every) | {
        "output_token_throughput": throughput.output_token_throughput(windows, seed=seed),
        "input_token_throughput": throughput.input_token_throughput(windows, seed=seed),
        "request_throughput": throughput.request_throughput(windows, seed=seed),
        "completion_rate": throughput.completion_rate(every),
    }


def level_of(
    seen: Observation,
    *,
    label: str | None = None,
    reference: Reference | None = None,
    seed: int,
    **more: object,
) -> Seen:
    """The level; ``more`` are further fields of :class:`Level` (``role``, ``percent_of_capacity`` …)."""
    window, counts, load = (
        level_window(seen, str(more.get("role", ""))),
        seen.records.counts(),
        seen.plan.load,
    )
    metrics, queue = level_metrics(window, seed=seed), queue_of(seen, window)
    overloads = overload(seen, window, queue)
    why = (*overloads, *long_tail(metrics["ttft.p99"], reference or Reference()))
    per_slice = throughput.output_tokens_per_slice(window, _SLICES)
    slices = () if per_slice is None else tuple((per_slice / (window.duration_s / _SLICES)).tolist())
    level = Level(
        label=label or seen.plan.label,
        load_model=load.model,
        duration_s=(window.end_ns - seen.started_ns) / 1e9,
        window_s=window.duration_s,
        n_submitted=counts["submitted"],
        n_ok=counts[Outcome.OK],
        n_failed=int(seen.records.failed.sum()),
        completion_ratio=metrics["completion_rate"].point,
        metrics=metrics,
        offered_rps=load.request_rate,
        concurrency=load.requests_in_flight,
        variant=seen.plan.variant,
        in_flight_means=() if queue is None else queue.growth.means,
        queue_source="" if queue is None else queue.source,
        queue_growing=None if queue is None else queue.growth.growing,
        throughput_slices=slices,
        steady=_steady(window, queue),
        saturated=bool(why),
        overloaded=bool(overloads),
        saturation_reasons=why,
        errors={name: count for name, count in counts.items() if count and name not in NO_FAILURES},
        shared_from=seen.shared_from,
    )
    return Seen(replace(level, **more), seen)  # type: ignore[arg-type]


def _steady(window: Window, queue: Queue | None) -> bool | None:
    """Whether the level is in steady state (section 5.2.3.2): queue not growing, throughput level across the
    window. None where that is not known."""
    if queue is not None and queue.growth.growing:
        return False
    found = steadiness(window)
    return None if found is None else found.level


def qualified(metrics: Mapping[str, Estimate], qualifier: str) -> dict[str, Estimate]:
    """The estimates of ``metrics`` under the names ``family[qualifier].statistic``."""
    return {_with_qualifier(name, qualifier): estimate for name, estimate in metrics.items()}


def _with_qualifier(name: str, qualifier: str) -> str:
    family, dot, statistic = name.partition(".")
    return f"{family}[{qualifier}]{dot}{statistic}"


def numbered(levels: Sequence[Seen]) -> tuple[Level, ...]:
    """The levels with the index of their observation, for a result that holds these in the same order."""
    return tuple(replace(seen.level, observation=index) for index, seen in enumerate(levels))


def saturated_notes(levels: Iterable[Seen]) -> list[Note]:
    """A note on each level at which the system was saturated, for tests that mean to stay below that."""
    return [
        Note.of("saturated_at", level=seen.level.label, reasons=seen.level.saturation_reasons)
        for seen in levels
        if seen.level.saturated
    ]


LEAST_GAIN = 0.01
LEAST_STEP = 0.1


@dataclass(frozen=True, slots=True)
class Reference:
    """The TTFT of the lowest tested level, to which the third rule compares."""

    ttft_p50_ms: float | None = None
    applies: bool = False
    note: Note | None = field(default_factory=lambda: Note.of("no_lower_level"))
    of_level: str = "the lowest level"
    """The level that it was taken from, in words."""

    @classmethod
    def of(cls, lowest: Level) -> Reference:
        """The reference from the lowest level; one that breaks the rule by itself switches the rule off."""
        p50, p99 = _point(lowest, "ttft.p50"), _point(lowest, "ttft.p99")
        if p50 is None or p99 is None:
            return cls(note=Note.of("lowest_without_ttft"))
        if p99 > TAIL_FACTOR * p50:
            return cls(p50, False, Note.of("tenfold_off", times=p99 / p50))
        return cls(p50, True, None)


def overload(seen: Observation, window: Window, queue: Queue | None) -> tuple[str, ...]:
    """Why the level gets more work than it completes, by the first two rules; empty where it keeps up."""
    found = []
    if queue is not None and queue.growth.growing:
        first, last = queue.growth.means[0], queue.growth.means[-1]
        found.append(
            f"the queue grows: {queue.source} {first:.1f} in the first fifth, {last:.1f} in the last"
        )
    if seen.plan.load.request_rate is not None:
        balance = completion_balance(seen.records, window)
        if balance is not None and balance.short:
            found.append(f"completions at {balance.share:.1%} of the arrivals (limit {COMPLETION_SHARE:.0%})")
    if seen.records.failed.all():
        found.append("no request was completed")
    if seen.stopped is not None and seen.plan.may_break:
        found.append(f"the load ended early: {seen.stopped}")
    return tuple(found)


def long_tail(ttft_p99: Estimate, reference: Reference) -> tuple[str, ...]:
    """Why the level is saturated by the third rule, the ten-fold one; empty where it is not."""
    p99 = ttft_p99.point
    if not reference.applies or reference.ttft_p50_ms is None or p99 is None:
        return ()
    times = p99 / reference.ttft_p50_ms
    if times <= TAIL_FACTOR:
        return ()
    return (f"TTFT P99 is {times:.1f} times the P50 of {reference.of_level} (limit {TAIL_FACTOR:g})",)


def gain_is_spent(lower: Level, higher: Level) -> str | None:
    """Why a step up in concurrency gained nothing in a closed loop; None where it did gain, or the step is
    small."""
    a, b = _point(lower, "output_token_throughput"), _point(higher, "output_token_throughput")
    if lower.concurrency is None or higher.concurrency is None or a is None or b is None or a <= 0:
        return None
    # In whole numbers: 1.1 * 10 is a little more than 11.
    if 10 * higher.concurrency < round(10 * (1 + LEAST_STEP)) * lower.concurrency:
        return None
    gain = b / a - 1
    if gain >= LEAST_GAIN:
        return None
    return (
        f"throughput gains {gain:.1%} from {lower.concurrency} to {higher.concurrency} in flight "
        f"(limit {LEAST_GAIN:.0%})"
    )


def _point(level: Level, name: str) -> float | None:
    estimate = level.metrics.get(name)
    return None if estimate is None else estimate.point
