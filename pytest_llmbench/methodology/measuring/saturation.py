"""The rules for when a load level is saturated: section 5.2.3.1, settled by AMB-14.

1. The queue grows continuously: five equal segments of the window, mean in flight strictly rising, last minus
   first at least max(2, 20 % of the first). The queue is the server's waiting gauge where there is one.
2. The completion rate is below 90 % of the arrival rate (open loop), over times that belong together.
3. TTFT P99 is above ten times the TTFT P50 of the lowest tested level; switched off, with a note, when the
   lowest level itself breaks it.

In a closed loop the second rule says nothing and the first needs the gauge; there a throughput gain below 1 %
over a step of at least 10 % in concurrency is saturation too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_llmbench.metrics.balance import COMPLETION_SHARE, Queue, completion_balance
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.draft import TAIL_FACTOR
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.result import Level
from pytest_llmbench.model.sentences import Note

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
