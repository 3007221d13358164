"""The amounts that a search for the highest load sends at least and at most, and the long level behind it.

A search goes by the choices of its procedure (``search/bracketing.py``), with every way that the answers may
go (docs/decisions/0037).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pytest_llmbench.methodology.amounts import (
    SPREAD_REQUESTS,
    SPREAD_SHARE,
    plan_bounds,
)
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.procedure import PROBE_REQUESTS, PROBE_S, Bounds, Setting
from pytest_llmbench.methodology.search.bracketing import DOWN_AT_MOST, between, doubling, values_tried
from pytest_llmbench.methodology.search.capacity_search import (
    COMPLETIONS_PER_SLOT,
    QUICK_MAXIMUM,
    level_requests,
)
from pytest_llmbench.methodology.search.probing import LoadModel, Range, rounded_rate
from pytest_llmbench.methodology.search.search import (
    BURST_S,
    FIRST_BURST,
    HIGHEST_SHARE,
    LARGEST_BURST,
    LOWEST_SHARE,
    MOST_FURTHER,
    STEP_SHARE,
    STRETCHES,
    searching,
)
from pytest_llmbench.methodology.search.sustained import REPORTED_PROBES
from pytest_llmbench.model.plan import LoadPlan, OpenLoop

NOT_SLOW_RPS = 100.0
"""Stand-in for a capacity that is not known, at which no level is made longer by its least number of
requests."""
_FASTEST_RPS = 1e6
"""A rate that no system exceeds; it bounds how often a bracket is halved whose upper end is not known."""


@dataclass(frozen=True)
class Walk:
    """The values that a search tries in one of its ways, and the highest of them that held."""

    tried: tuple[float, ...]
    best: float


def walks(
    low: float, high: float, step: float, *, stretches: int, rounded: Callable[[float], float] = float
) -> list[Walk]:
    """Every way that a search between bounds may go, by where the system ends.

    Other arguments are those of :func:`~pytest_llmbench.methodology.search.bracketing.between`.
    """
    highest = high * 1.5**stretches
    places = max(2, min(4_000, math.ceil(4 * (highest - low) / step)))
    ends = [low + (highest * 1.01 - low) * place / places for place in range(places + 1)]
    found = []
    for end in (0.0, *ends):
        tried = values_tried(between(low, high, step, stretches=stretches, rounded=rounded), end)
        found.append(Walk(tuple(tried), max((value for value in tried if value <= end), default=0.0)))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class SearchAmounts:
    """The arguments of a search, as :func:`~pytest_llmbench.methodology.search.search.search` takes them, for
    its amounts."""

    setting: Setting
    sequence: RequestSlice
    bounds: Range | None = None
    load_model: LoadModel = "open"
    law: OpenLoop = OpenLoop(1.0)
    limits: Mapping[str, float] | None = None
    duration_s: float | None = None
    relative: Range | None = None
    """The range as shares of a capacity that the procedure knows, in place of ``bounds``; None: ``bounds``
    counts."""
    passes: int = 1
    """How often the search looks for the highest level, each time by another rule."""

    @property
    def length_s(self) -> float:
        return PROBE_S.at(self.setting.scale, self.duration_s)

    @property
    def own(self) -> RequestSlice:
        args = (self.bounds, self.load_model, self.law, self.length_s)
        return searching(self.setting, self.sequence, *args)

    def all(self) -> list[Bounds]:
        """The bounds of bursts and levels, and of the search under the limits."""
        found = [self._bursts()] if self._chosen else []
        found.append(self._levels(self.own, "search", self.passes))
        if self.limits:
            under = self.own.next_part(self.setting, "search under limits", limits=dict(self.limits))
            found.append(replace(self._levels(under, "search under limits", 1), least=0, least_s=0.0))
        return found

    @property
    def _chosen(self) -> bool:
        """Whether the procedure chooses the range from bursts."""
        return self.relative is None and (self.bounds is None or self.bounds.upwards)

    def _like(self, sequence: RequestSlice, what: str) -> Bounds:
        assert sequence.part is not None
        key = f"{what} {sequence.part.name} {sequence.variant} {self.setting.seed}"
        seed, workload = sequence.part.seed, sequence.workload
        return Bounds(workload, seed, key, 0, 0, variant=sequence.variant)

    def _bursts(self) -> Bounds:
        sizes = [2**power for power in range(FIRST_BURST.bit_length() - 1, LARGEST_BURST.bit_length())]
        seconds = min(BURST_S.at(self.setting.scale), self.length_s)
        return replace(
            self._like(self.own, "bursts"),
            least=sum(2 * size for size in sizes[:2]),
            most=sum(2 * size for size in sizes),
            per_rps=len(sizes) * seconds,
            least_s=2 * seconds,
            most_s=len(sizes) * seconds,
        )

    def _levels(self, sequence: RequestSlice, what: str, passes: int) -> Bounds:
        like = replace(self._like(sequence, what), least_s=self.length_s)
        if self.load_model == "closed":
            return self._closed(like, passes)
        if self._chosen and self.bounds is not None:
            return self._upwards(like, self.bounds, passes)
        range_, known = (self.bounds, True) if self.bounds is not None else (self._shares, False)
        ways = walks(
            range_.minimum,
            range_.maximum,
            range_.step,
            stretches=STRETCHES if range_.chosen else 0,
            rounded=rounded_rate if known else float,
        )
        lengths = max(len(way.tried) for way in ways) * passes
        spread = math.ceil(SPREAD_REQUESTS * max(1.0, 1.0 / self.law.burstiness))
        if not known:
            share = passes * max(map(_share, ways))
            per_rps = SPREAD_SHARE * share * self.length_s
            like = replace(like, least=1, most=spread * lengths, per_rps=per_rps, open_ended=True)
        else:
            most_rps = passes * max(sum(way.tried) for way in ways)
            lowest = sequence.open_loop(
                self.setting, "", replace(self.law, rate=range_.minimum), self.length_s
            )
            most = math.ceil(SPREAD_SHARE * most_rps * self.length_s) + spread * lengths
            like = replace(like, least=lowest.requests, most=most)
        return replace(like, most_s=lengths * self._longest_s(range_.minimum if known else math.inf))

    def _longest_s(self, rate: float, probes: int = 1, seconds: float | None = None) -> float:
        """Longest duration of a level at this rate or more, that of a level or ``seconds``: its least number
        of requests (``probes`` times that of a level) may take longer to arrive, by chance too."""
        least = probes * PROBE_REQUESTS.count(self.setting.scale)
        spread = max(1.0, 1.0 / self.law.burstiness)
        return max(seconds or self.length_s, (least + 4.0 * math.sqrt(spread * least) + 4.0) / rate)

    @property
    def _shares(self) -> Range:
        """The range as shares of the capacity; without a given range it follows from bursts."""
        step = STEP_SHARE.at(self.setting.scale)
        return self.relative or Range(LOWEST_SHARE, HIGHEST_SHARE, step, chosen=True)

    def _upwards(self, like: Bounds, asked: Range, passes: int) -> Bounds:
        """The bounds of a search upwards from a minimum.

        The levels in between are no faster than the first that did not hold.
        """
        halves = math.ceil(math.log2(_FASTEST_RPS / asked.step))
        levels = (2 + STRETCHES + halves) * passes
        fixed = SPREAD_SHARE * self.length_s * (asked.minimum + (2 + STRETCHES) * asked.step) * passes
        share = 1.5 * (1 + STRETCHES + halves) * passes
        return replace(
            like,
            least=1,
            most=math.ceil(fixed) + SPREAD_REQUESTS * levels,
            per_rps=SPREAD_SHARE * share * self.length_s,
            most_s=levels * self._longest_s(asked.minimum),
        )

    def _closed(self, like: Bounds, passes: int) -> Bounds:
        """The bounds of a closed loop: every level may send as many requests as are in flight beyond what the
        system completes."""
        lowest, highest, step = self._slots
        halves = math.ceil(math.log2(max(2.0, (highest - lowest) / step))) + 1
        levels = (3 + 2 * MOST_FURTHER + halves) * passes
        return replace(
            like,
            least=int(lowest),
            most=math.ceil(levels * highest),
            per_rps=levels * self.length_s,
            most_s=levels * self.length_s,
        )

    @property
    def _slots(self) -> tuple[float, float, float]:
        """Fewest and most requests in flight, and the step between levels."""
        if self.bounds is not None and not self.bounds.upwards:
            return self.bounds.minimum, self.bounds.maximum, self.bounds.step
        lowest, step = (1.0, 1.0) if self.bounds is None else (self.bounds.minimum, self.bounds.step)
        raised = 2 * LARGEST_BURST * 1.5**MOST_FURTHER * 1.1**MOST_FURTHER
        return lowest, max(raised, (lowest + step) * 1.5**MOST_FURTHER) + MOST_FURTHER * step, step

    def held(self, role: str, *, seconds: float, runs: int) -> Bounds:
        """The bounds of the reported level: down in steps until it holds, twice at full scale, and its
        repetitions."""
        limits = dict(self.limits or {}) if role == "constrained" else {}
        sequence = self.own.next_part(self.setting, role, duration_s=seconds, limits=limits)
        looks = 2 if self.setting.scale == "full" else 1
        levels = DOWN_AT_MOST * looks + runs - 1
        slowest = math.inf if self.bounds is None or self.load_model == "closed" else self.bounds.minimum
        longest_s = self._longest_s(slowest, REPORTED_PROBES, seconds)
        like = replace(self._like(sequence, role), most_s=levels * longest_s, open_ended=self.bounds is None)
        like = replace(like, key=f"{like.key} {runs}")
        if self.load_model == "closed":
            most = math.ceil(levels * self._slots[1])
            return replace(like, most=most, per_rps=levels * seconds)
        spread = math.ceil(SPREAD_REQUESTS * max(1.0, 1.0 / self.law.burstiness)) * levels
        if self.bounds is not None and not self.bounds.upwards:
            return replace(
                like, most=math.ceil(SPREAD_SHARE * levels * self.bounds.maximum * seconds) + spread
            )
        return replace(like, most=spread, per_rps=SPREAD_SHARE * levels * seconds)


def _share(way: Walk) -> float:
    """The sum of the tried rates in shares of the capacity, which is that of the bursts or of the best
    level."""
    return sum(way.tried) / max(1.0, way.best)


def searched_bounds(
    setting: Setting, declared_rps: float | None, sequence: RequestSlice
) -> tuple[list[Bounds], RequestSlice]:
    """The bounds of the search for the saturation rate, unless that is declared, and the part that comes
    before others."""
    if declared_rps is not None:
        return [], sequence
    search = SearchAmounts(setting, sequence)
    return search.all(), search.own


def rated_bounds(
    plan: LoadPlan, capacity_rps: float | None, share: float, fixed: int = SPREAD_REQUESTS
) -> Bounds:
    """The bounds of an open loop for ``plan.duration_s`` at a share of the capacity; exact if the capacity is
    known. If not, ``plan`` tells only whose requests they are, and ``fixed`` how many more there may be than
    by the rate."""
    if capacity_rps is not None:
        return plan_bounds(plan)
    found = plan_bounds(plan, least=0)
    per_rps = SPREAD_SHARE * share * (plan.duration_s or 0.0)
    key = f"{plan.part} {plan.variant}"
    return replace(found, key=key, most=fixed, per_rps=per_rps, open_ended=True)


def slots_bounds(
    setting: Setting,
    sequence: RequestSlice,
    initial: int,
    maximum: int,
    seconds: float,
    asked_s: float | None,
    key: str,
) -> Bounds:
    """The bounds of doubling and bisection, over every place where the system may end."""
    ceiling = min(maximum, QUICK_MAXIMUM) if setting.scale == "quick" else maximum
    initial = min(initial, ceiling)
    first = level_requests(setting, sequence, initial, asked_s, initial, ceiling)
    assert first.part is not None
    per_slot = COMPLETIONS_PER_SLOT.count(setting.scale)
    ways = [values_tried(doubling(initial, ceiling), end) for end in range(ceiling + 1)]
    floors = [per_slot * sum(way) for way in ways]
    longest, shortest = max(map(len, ways)), min(map(len, ways))
    return Bounds(
        first.workload,
        first.part.seed,
        f"{first.part.name} {first.variant} {key}",
        least=min(floors),
        # A level goes on for its time, or until so many are through; then all slots are still taken.
        most=max(floors),
        per_rps=longest * seconds,
        least_s=shortest * seconds,
        most_s=longest * seconds,
        open_ended=True,
        variant=first.variant,
        one_sequence=False,
    )
