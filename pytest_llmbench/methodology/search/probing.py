"""Searches are levels by criteria: a chooser says which value is tried next, a level sends it and judges it.

A chooser yields values and is sent whether each held; a procedure drives it with what it measures. Each
value is run once, and judged in view of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

from pytest_llmbench.methodology.measuring.levels import Reference, Seen, gain_is_spent, level_of
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.procedure import PROBE_REQUESTS, Procedure, Setting
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.model.draft import GAP_SHARE
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import number, quantity, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.result import PROBE
from pytest_llmbench.model.sentences import Note

V = TypeVar("V", int, float)

Bracket = tuple[V | None, V | None]
"""The highest value that held and the lowest above it that did not; None where there is none."""
Chooser = Generator[V, bool, Bracket[V]]


def searched(chooser: Chooser[V], at: Callable[[V], Procedure[bool]]) -> Procedure[Bracket[V]]:
    """Run a search: ``at`` runs a level and returns whether it held. Returns the bracket."""
    value = next(chooser)
    try:
        while True:
            value = chooser.send((yield from at(value)))
    except StopIteration as stop:
        found: Bracket[V] = stop.value
        return found


def values_tried(chooser: Chooser[V], end: float) -> list[V]:
    """The values that a search tries if all values up to ``end`` hold and no others."""
    tried = [next(chooser)]
    try:
        while True:
            tried.append(chooser.send(tried[-1] <= end))
    except StopIteration:
        return tried


def doubling(initial: int, maximum: int, least: int = 1) -> Chooser[int]:
    """Doubling from the initial value, or halving down to ``least`` when that fails, then bisection."""
    passed: int | None = None
    failed: int | None = None
    value: int | None = initial
    while value is not None:
        if (yield value):
            passed = value
            value = min(2 * value, maximum) if failed is None and value < maximum else None
        else:
            failed = value
            value = max(value // 2, least) if passed is None and value > least else None
    while passed is not None and failed is not None and failed - passed > max(1.0, GAP_SHARE * passed):
        middle = (passed + failed) // 2
        if (yield middle):
            passed = middle
        else:
            failed = middle
    return passed, failed


def between(
    low: float, high: float, step: float, *, stretches: int = 0, rounded: Callable[[float], float] = float
) -> Chooser[float]:
    """Minimum and maximum, then bisection until the bracket is no wider than the step.

    ``stretches``: how often the maximum is raised by half while it holds. ``rounded``: a value that can be
    asked for.
    """
    if not (yield low):
        return None, low
    for stretch in range(stretches + 1):
        if not (yield high):
            break
        low = high
        if stretch == stretches:
            return low, None
        high = rounded(high * 1.5)
    return (yield from _narrowed(low, high, step, rounded))


def _narrowed(passed: float, failed: float, step: float, rounded: Callable[[float], float]) -> Chooser[float]:
    """Bisection until the bracket is no wider than the step."""
    while failed - passed > step * (1 + 1e-9):
        middle = rounded((passed + failed) / 2)
        if not passed < middle < failed:
            break
        if (yield middle):
            passed = middle
        else:
            failed = middle
    return passed, failed


STEPS_DOWN = (0, 1, 2, 3, 4, 8, 16)
"""How far below its start a search downwards looks in turn, in steps. By single steps first; where long
levels show a queue that short ones do not, the first that holds may lie far below."""


def downwards(start: float, step: float, least: float, rounded: Callable[[float], float]) -> Chooser[float]:
    """The start, then lower values in turn, none below ``least``, until one holds; then bisection between it
    and the one before it until the bracket is no wider than the step."""
    failed: float | None = None
    for value in dict.fromkeys(rounded(max(start - steps * step, least)) for steps in STEPS_DOWN):
        if (yield value):
            return (value, None) if failed is None else (yield from _narrowed(value, failed, step, rounded))
        failed = value
    return None, failed


LoadModel = Literal["open", "closed"]


@dataclass(frozen=True, slots=True)
class Range:
    """The range to search: ``load.rate_range`` or ``load.concurrency_range`` of the report (section
    5.2.2.2)."""

    minimum: float
    maximum: float
    step: float
    chosen: bool = False
    """Whether the maximum was chosen here, from bursts; it is then raised while the level there is not
    saturated."""

    @property
    def upwards(self) -> bool:
        """Whether the author gave no maximum, so that one has to be chosen."""
        return math.isinf(self.maximum)

    def as_list(self) -> list[float]:
        return [self.minimum, self.maximum, self.step]


def plan_of_level(
    setting: Setting,
    sequence: RequestSlice,
    law: OpenLoop | None,
    value: float,
    duration_s: float,
    rate: float | None,
    *,
    label: str = "",
    probes: int = 1,
) -> LoadPlan:
    """A level of a search: an open loop by its ``law``, or a closed loop, which will not exceed twice the
    ``rate``. ``label``: what its label begins with. ``probes``: its fewest requests, in those of a probe."""
    if law is not None:
        load, least = replace(law, rate=value), probes * PROBE_REQUESTS.count(setting.scale)
        return sequence.open_loop(setting, f"{label}{trimmed(value)} req/s", load, duration_s, at_least=least)
    return sequence.closed_loop(
        setting,
        f"{label}{trimmed(value)} in flight",
        int(value),
        duration_s=duration_s,
        at_least=int(value),
        most_rps=None if rate is None else 2.0 * rate,
    )


class Probes:
    """Levels by their value (req/s or requests in flight), each run once."""

    def __init__(
        self,
        setting: Setting,
        sequence: RequestSlice,
        load_model: LoadModel,
        law: OpenLoop,
        duration_s: float,
        reference: Reference | None = None,
        at_stake: Sequence[Objective] = (),
    ) -> None:
        """``at_stake``: see :class:`Observation`."""
        self.setting = setting
        self.sequence = sequence
        self.load_model = load_model
        self.law = law
        self.duration_s = duration_s
        self.at_stake = at_stake
        self.by_value: dict[float, Seen] = {}
        self.run: list[Seen] = []
        self.notes: list[Note] = []
        self.own_yardstick = reference is None
        self.reference = reference or Reference()
        self.most_rps: float | None = None

    def at(self, value: float) -> Procedure[Seen]:
        if value in self.by_value:
            return self.by_value[value]
        attempts = yield from attempted(
            lambda: self._plan(value), self._seen, self.setting.remeasure, at_stake=self.at_stake
        )
        self.run += attempts.runs[:-1]
        self.notes += attempts.notes
        return self.keep(value, attempts.level)

    def _plan(self, value: float) -> LoadPlan:
        law = self.law if self.load_model == "open" else None
        plan = plan_of_level(self.setting, self.sequence, law, value, self.duration_s, self.most_rps)
        return plan.with_(may_break=True)

    def _seen(self, run: Observation) -> Seen:
        seen = self.sequence.sent(run)
        return level_of(seen, reference=self.reference, seed=self.setting.seed, role=PROBE)

    def keep(self, value: float, seen: Seen) -> Seen:
        self.by_value[value] = seen
        self.run.append(seen)
        if self.own_yardstick and len(self.by_value) == 1 and is_offered(seen.level):
            self.reference = Reference.of(seen.level)
            if self.reference.note:
                self.notes.append(self.reference.note)
        return seen

    def spend(self, best: Seen) -> None:
        """Mark levels above ``best`` as saturated: as a level well above it gained nothing, those in between
        did not either."""
        above = {value: seen for value, seen in self.by_value.items() if value > value_of(best)}
        spent = {value: gain_is_spent(best.level, seen.level) for value, seen in above.items()}
        nearest = next((spent[value] for value in sorted(spent) if spent[value] is not None), None)
        for value, seen in above.items():
            why = spent[value] or nearest
            if why is not None:
                reasons = (*seen.level.saturation_reasons, why)
                told = seen.with_(saturated=True, overloaded=True, saturation_reasons=reasons)
                self.by_value[value] = told
                self.run = [told if other is seen else other for other in self.run]

    def rounded(self, value: float) -> float:
        """The value rounded to a rate of three digits, or to a whole number of requests in flight."""
        return float(int(value)) if self.load_model == "closed" else rounded_rate(value)


def rounded_rate(rate: float) -> float:
    """The rate rounded to three digits."""
    return float(f"{rate:.3g}")


def constraint_of(ttft_p99_ms: float | None, tpot_p99_ms: float | None) -> dict[str, float]:
    """Metric → its limit in ms, of the limits on latency that a marker gives."""
    named = {"ttft.p99": ttft_p99_ms, "tpot.p99": tpot_p99_ms}
    return {metric: limit for metric, limit in named.items() if limit is not None}


def stated_constraint(limits: Mapping[str, float]) -> dict[str, Any]:
    """The fact on the limits, by the names of their keywords; empty without any."""
    stated = {f"{metric.replace('.', '_')}_ms": limit for metric, limit in limits.items()}
    return {LoadFact.SLO: stated} if stated else {}


def ceilings(limits: Mapping[str, float]) -> tuple[Objective, ...]:
    """The limits on latencies, metric → highest acceptable value in ms, as objectives."""
    return tuple(Objective(metric, "<=", limit, "ms") for metric, limit in limits.items())


Holds = Callable[[Seen], bool | None]
"""Whether a level holds; None where that is not known."""


def meets(seen: Seen, limits: Mapping[str, float]) -> bool | None:
    """Whether the level keeps up with the work and meets every limit; None if it breaks none, and a limited
    metric was not measured. The ten-fold rule is not applied: the limits tell what latency is acceptable."""
    values = [(seen.point(metric), limit) for metric, limit in limits.items()]
    if not carried(seen) or any(value is not None and value > limit for value, limit in values):
        return False
    return None if any(value is None for value, _ in values) else True


def sustainable(seen: Seen) -> bool:
    return seen.level.saturated is False


def carried(seen: Seen) -> bool:
    """Whether the work was done as it came, however long the first tokens took."""
    return is_offered(seen.level) and seen.level.overloaded is False


def value_of(seen: Seen) -> float:
    """The offered load of the level: requests per second, or requests in flight."""
    level = seen.level
    return float(level.concurrency or 0) if level.offered_rps is None else level.offered_rps


def lowest_beyond(best: Seen, levels: Iterable[Seen], holds: Holds) -> float | None:
    """The upper end of the bracket: the lowest value above ``best`` that was offered and did not hold."""
    beyond = [
        value_of(seen)
        for seen in levels
        if not seen.level.is_burst
        and is_offered(seen.level)
        and value_of(seen) > value_of(best)
        and holds(seen) is False
    ]
    return min(beyond, default=None)


def beyond_generator(best: Seen, levels: Iterable[Seen], holds: Holds) -> float | None:
    """The lowest value above ``best`` that the generator could not offer, where nothing that it could offer
    tells the upper end of the bracket: then ``best`` is a lower bound."""
    every = list(levels)
    if lowest_beyond(best, every, holds) is not None:
        return None
    short = [value_of(seen) for seen in every if not is_offered(seen.level) and not seen.level.is_burst]
    return min((value for value in short if value > value_of(best)), default=None)


class OpenEnd(NamedTuple):
    """Why the end of a bracket is not known, and the same in words."""

    reason: Reason
    words: str


def lower_bound(best: Seen, levels: Iterable[Seen], holds: Holds) -> OpenEnd | None:
    """Why more than ``best`` may hold: the loads above were not tested, or could not be offered. None where a
    tested level above did not hold."""
    every = list(levels)
    if lowest_beyond(best, every, holds) is not None:
        return None
    limit = beyond_generator(best, every, holds)
    if limit is not None:
        return OpenEnd(Reason.BEYOND_GENERATOR, f"{quantity(limit, 'req/s')} is beyond this generator")
    return OpenEnd(Reason.RANGE_ENDED, f"every tested load up to {number(value_of(best))} held")


def known_to_bracket(estimate: Estimate, best: Seen, levels: Iterable[Seen], holds: Holds) -> Estimate:
    """The rate of ``best`` as the highest that holds. Its interval is open upwards where it is a lower bound;
    else, in an open loop, it reaches up to what the next tested load, which did not hold, would have given. A
    closed loop ends where more requests in flight gain nothing."""
    every = list(levels)
    why, beyond = lower_bound(best, every, holds), lowest_beyond(best, every, holds)
    if why is not None:
        return estimate.at_least(*why)
    if beyond is None or estimate.upper is None or best.level.offered_rps is None:
        return estimate
    method = f"{estimate.method}; up to the next tested load, {quantity(beyond, 'req/s')}, which did not hold"
    return replace(estimate, upper=estimate.upper * beyond / value_of(best), method=method)


def rate_of(seen: Seen) -> float | None:
    offered = seen.level.offered_rps
    return seen.point("request_throughput") if offered is None else offered
