"""Search for the highest load that holds: bounds first, then bisection (section 5.2.3, AMB-17).

The same search serves the throughput test and every test that is defined in terms of its outcome (tradeoff,
itl, fairness, guardrail): asked with equal arguments it yields equal plans, which a session measures once.

The saturation rate by which tests are defined ("75 % of maximum throughput"): declared, or searched
for.

The search has its defaults, so that all tests of a session that need the rate of one workload ask for the
same plans, which are measured once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pytest_llmbench.methodology.measuring.levels import (
    LEAST_GAIN,
    LEAST_STEP,
    Reference,
    Seen,
    gain_is_spent,
    level_of,
)
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.methodology.procedure import PROBE_S, ByScale, Procedure, Setting
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.probing import (
    Holds,
    LoadModel,
    Probes,
    Range,
    between,
    beyond_generator,
    carried,
    ceilings,
    lower_bound,
    lowest_beyond,
    meets,
    rate_of,
    searched,
    sustainable,
    value_of,
)
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.result import BURST
from pytest_llmbench.model.sentences import Note

MOST_FURTHER = 4
_THROUGHPUT = "output_token_throughput"


def plateau(probes: Probes, bounds: Range) -> Procedure[tuple[Seen | None, tuple[Note, ...]]]:
    """The lowest level of a closed loop from which on more requests in flight gain less than 1 % (AMB-14),
    and notes.

    Bisection between levels that lie below the highest throughput seen and levels that reach it, then one
    more level above the outcome, which has to gain nothing.
    """
    lowest = yield from probes.at(bounds.minimum)
    if not sustainable(lowest):
        note = Note.of("lowest_does_not_hold", level=lowest.level.label)
        return None, (note,)
    low, high = bounds.minimum, bounds.maximum
    top = yield from probes.at(high)
    for _ in range(MOST_FURTHER if bounds.chosen else 0):
        if not sustainable(top) or not _gains(probes.by_value[low], top):
            break
        further = yield from probes.at(probes.rounded(high * 1.5))
        if not _gains(top, further):
            break
        low, high, top = high, value_of(further), further
    while high - low > bounds.step * (1 + 1e-9):
        middle = probes.rounded((low + high) / 2)
        if not low < middle < high:
            break
        seen = yield from probes.at(middle)
        if sustainable(seen) and _still_rising(seen, probes):
            low = middle
        else:
            high = middle
    best = probes.by_value[high]
    if not sustainable(best) or not _still_rising(probes.by_value[low], probes):
        best = probes.by_value[low]
    for _ in range(MOST_FURTHER):  # up, while a step of 10 % still gains
        value = value_of(best)
        step = max(bounds.step, math.ceil(LEAST_STEP * value))
        if value + step > bounds.maximum and not bounds.chosen:
            break
        seen = yield from probes.at(value + step)
        if not sustainable(seen) or not _gains(best, seen):
            break
        best = seen
    if value_of(best) + bounds.step <= max(probes.by_value):
        yield from probes.at(value_of(best) + bounds.step)  # the bracket is as narrow as the range says
    probes.spend(best)
    if lowest_beyond(best, probes.run, sustainable) is None:
        return best, (Note.of("range_ended", level=best.level.label, gains=True),)
    return best, ()


def _gains(lower: Seen, higher: Seen) -> bool:
    return gain_is_spent(lower.level, higher.level) is None


def _still_rising(seen: Seen, probes: Probes) -> bool:
    """Whether the throughput is clearly below the highest of all levels."""
    every = [other.point(_THROUGHPUT) for other in probes.by_value.values()]
    peak = max((value for value in every if value is not None), default=0.0)
    own = seen.point(_THROUGHPUT)
    return own is None or own * (1 + LEAST_GAIN) < peak


BURST_S = ByScale(quick=1.0, standard=4.0, full=10.0)
UNKNOWN_RPS = 10.0
"""Stand-in for a rate in ``--llm-plan`` that only the search will find."""
FIRST_BURST = 8
LARGEST_BURST = 2048
_BURST_GAIN = 1.1
"""Least factor by which the request rate has to grow for bursts to go on doubling."""
LOWEST_SHARE, HIGHEST_SHARE = 0.1, 1.3
STEP_SHARE = ByScale(quick=0.2, standard=0.1, full=0.05)
"""Width of the bracket at which bisection stops, as a share of the estimated capacity."""
STRETCHES = 4


@dataclass(frozen=True)
class Searched:
    """The result of a search. ``None``: no tested level held."""

    range: Range
    load_model: LoadModel
    levels: tuple[Seen, ...]
    """Every level that was run, bursts included, in the order run."""
    best: Seen | None
    """Highest level that is not saturated."""
    best_constrained: Seen | None = None
    """Highest level that is not overloaded and meets the constraints; None without constraints."""
    best_carried: Seen | None = None
    """Highest level that is not overloaded, whatever the ten-fold rule says; None if that was not asked
    for."""
    notes: tuple[Note, ...] = ()
    sequence: RequestSlice | None = None
    """The sequence with the requests that have not been sent yet."""
    reference: Reference = field(default_factory=Reference)

    @property
    def rate(self) -> float | None:
        """The saturation rate in requests per second: the highest offered (open loop) or achieved (closed
        loop) one."""
        return None if self.best is None else rate_of(self.best)


def search(
    setting: Setting,
    sequence: RequestSlice,
    *,
    bounds: Range | None = None,
    load_model: LoadModel = "open",
    arrival: str = "poisson",
    burstiness: float = 1.0,
    limits: Mapping[str, float] | None = None,
    duration_s: float | None = None,
    reference: Reference | None = None,
    and_carried: bool = False,
) -> Procedure[Searched]:
    """Search for the highest level that is not saturated, and with ``limits`` the highest that meets them.

    ``limits``: metric (``ttft.p99``) → highest acceptable value. ``bounds``: chosen from bursts if not given.
    ``duration_s``: of a probing level. ``reference``: yardstick of the ten-fold rule in place of the search's
    own lowest level. ``and_carried``: look also for the highest level without that rule. A ``sequence`` that
    is a part already is used as it is.
    """
    law, length_s = OpenLoop(1.0, arrival, burstiness), PROBE_S.at(setting.scale, duration_s)
    sequence = searching(setting, sequence, bounds, load_model, law, length_s)
    probes = Probes(setting, sequence, load_model, law, length_s, reference, ceilings(limits or {}))
    if bounds is None or bounds.upwards:
        rough = yield from _rough_bounds(probes)
        if bounds is None:
            bounds = rough
        else:  # only its maximum is not given
            maximum = max(rough.maximum, probes.rounded(bounds.minimum + bounds.step))
            bounds = Range(bounds.minimum, maximum, bounds.step, chosen=True)
    highest = plateau(probes, bounds) if load_model == "closed" else _highest(probes, bounds, sustainable)
    best, notes = yield from highest
    constrained, more = yield from _constrained(probes, bounds, best, limits or {})
    carrying, further = (yield from _highest(probes, bounds, carried)) if and_carried else (None, ())
    return Searched(
        range=bounds,
        load_model=load_model,
        levels=tuple(probes.run),
        best=best,
        best_constrained=constrained,
        best_carried=carrying,
        notes=tuple(dict.fromkeys((*notes, *more, *further, *probes.notes))),
        sequence=sequence,
        reference=probes.reference,
    )


def searching(
    setting: Setting,
    sequence: RequestSlice,
    bounds: Range | None,
    load_model: LoadModel,
    law: OpenLoop,
    length_s: float,
) -> RequestSlice:
    """The requests of a search. Tests that search alike share them; a part that is given is used as it is."""
    if sequence.part is not None:
        return sequence
    return sequence.next_part(
        setting,
        "search",
        bounds=None if bounds is None else bounds.as_list(),
        load_model=load_model,
        law=law.terms(),
        duration_s=length_s,
    )


def _constrained(
    probes: Probes, bounds: Range, best: Seen | None, limits: Mapping[str, float]
) -> Procedure[tuple[Seen | None, tuple[Note, ...]]]:
    """The highest level that meets the limits, if there are any, and notes; at most the plateau of a closed
    loop."""
    if not limits:
        return None, ()
    probes.sequence = probes.sequence.next_part(probes.setting, "search under limits", limits=dict(limits))

    holds = partial(meets, limits=limits)
    if probes.load_model == "closed" and best is not None:
        plateau_end = max(value for value, seen in probes.by_value.items() if carried(seen))
        bounds = replace(bounds, maximum=plateau_end, chosen=False)
    found, notes = yield from _highest(probes, bounds, holds)
    known = found is not None and lowest_beyond(found, probes.run, holds) is not None
    return found, () if known else notes


def _highest(probes: Probes, bounds: Range, holds: Holds) -> Procedure[tuple[Seen | None, tuple[Note, ...]]]:
    """The highest level that ``holds``, and notes: minimum and maximum, then bisection until the bracket is
    no wider than the step. A level of which that is not known ends no search, and is not its outcome."""

    def at(value: float) -> Procedure[bool]:
        return holds((yield from probes.at(value))) is not False

    stretches = STRETCHES if bounds.chosen else 0
    chooser = between(
        bounds.minimum, bounds.maximum, bounds.step, stretches=stretches, rounded=probes.rounded
    )
    passed, failed = yield from searched(chooser, at)
    if passed is None:
        lowest = probes.by_value[bounds.minimum]
        note = Note.of("lowest_does_not_hold", level=lowest.level.label)
        return None, (note,) if is_offered(lowest.level) else ()
    end = math.inf if failed is None else failed
    held = [value for value, seen in probes.by_value.items() if value < end and holds(seen)]
    if not held:
        return None, (Note.of("too_few_to_say"),)
    best = probes.by_value[max(held)]
    if failed is None:
        return best, (Note.of("range_ended", level=best.level.label),)
    limit = beyond_generator(best, probes.run, holds)
    if limit is None:
        return best, ()
    return best, (Note.of("generator_limit", rate=Amount(limit, "req/s")),)


def _rough_bounds(probes: Probes) -> Procedure[Range]:
    """The range around a rough capacity, found by short closed-loop bursts, doubled until the request rate
    stops growing."""
    setting, sequence = probes.setting, probes.sequence
    burst_s = min(BURST_S.at(setting.scale), probes.duration_s)
    concurrency, rate, best = FIRST_BURST, 0.0, FIRST_BURST
    while concurrency <= LARGEST_BURST:
        most_rps = 2.0 * rate if rate > 0 else None

        def burst(slots: int = concurrency, most_rps: float | None = most_rps) -> LoadPlan:
            plan = sequence.closed_loop(
                setting,
                f"burst of {slots}",
                slots,
                duration_s=burst_s,
                at_least=2 * slots,
                most_rps=most_rps,
            )
            return plan.with_(may_break=True)

        attempts = yield from attempted(
            burst,
            lambda run: level_of(sequence.sent(run), seed=setting.seed, role=BURST),
            setting.remeasure,
        )
        probes.run += attempts.runs
        probes.notes += attempts.notes
        # One that this machine spoiled to the last tells a rate as well: no figure rests on it.
        # Completed requests per second over the whole burst, drain included.
        run = attempts.level.observation
        now = int((~run.records.failed).sum()) / run.duration_s if run.duration_s > 0 else 0.0
        if now <= _BURST_GAIN * rate:
            rate = max(rate, now)
            break
        rate, best = now, concurrency
        concurrency *= 2
    probes.most_rps = rate
    step = STEP_SHARE.at(setting.scale)
    if probes.load_model == "closed":
        return Range(1.0, float(2 * best), max(1.0, float(round(step * best))), chosen=True)
    rate = max(rate, 1e-3)
    low, high = (float(f"{share * rate:.3g}") for share in (LOWEST_SHARE, HIGHEST_SHARE))
    return Range(low, high, float(f"{step * rate:.2g}"), chosen=True)


def search_plans(
    setting: Setting,
    sequence: RequestSlice,
    *,
    bounds: Range | None = None,
    load_model: LoadModel = "open",
    constrained: bool = False,
    duration_s: float | None = None,
) -> tuple[LoadPlan, ...]:
    """The plans of a search for ``--llm-plan``: the most levels it can run, each at the highest load that it
    may have.

    Without bounds the rate is not known beforehand: the bursts are listed with the requests that they send at
    least, the levels with :data:`UNKNOWN_RPS`.
    """
    length_s = PROBE_S.at(setting.scale, duration_s)
    plans = []
    if bounds is None or bounds.upwards:
        bursts = [2**power for power in range(FIRST_BURST.bit_length() - 1, LARGEST_BURST.bit_length())]
        plans = [
            sequence.closed_loop(setting, f"burst of {n}", n, duration_s=None, at_least=2 * n) for n in bursts
        ]
        share = STEP_SHARE.at(setting.scale)
        highest, widths = UNKNOWN_RPS, (HIGHEST_SHARE - LOWEST_SHARE) / share
    else:
        highest, widths = bounds.maximum, (bounds.maximum - bounds.minimum) / bounds.step
    levels = 2 + max(0, math.ceil(math.log2(max(widths, 1.0))))
    for number in range(levels * (2 if constrained else 1)):
        label = f"search level {number + 1}" + (" (rate not known yet)" if highest == UNKNOWN_RPS else "")
        if load_model == "open":
            plans.append(sequence.open_loop(setting, label, OpenLoop(highest), length_s))
        else:
            n = max(1, int(highest))
            plans.append(sequence.closed_loop(setting, label, n, duration_s=length_s, at_least=n))
    return tuple(plans)


DECLARED, SEARCHED = "declared by the marker (capacity_rps)", "found by this test's search"


@dataclass(frozen=True)
class SaturationRate:
    """A saturation rate, where it comes from, and what was sent to find it."""

    rps: float | None
    """The rate in requests per second; None: no tested level held."""
    source: str
    """Where it comes from, in words."""
    sequence: RequestSlice
    """The sequence that its levels were taken from; a load at a share of the rate is a part after it."""
    is_least: bool = False
    """Whether it is a lower bound, as the range of the search ended before saturation."""
    levels: tuple[Seen, ...] = ()
    notes: tuple[Note, ...] = ()
    reference: Reference = field(default_factory=Reference)
    """The TTFT of the search's lowest level, reference of the ten-fold rule."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """``load.capacity_rps`` and the other facts that the search adds about the load."""

    def percent(self, percent: float) -> float:
        """A percentage of the rate, rounded to three digits, as the rate of a plan.

        Raises ValueError if there is no saturation rate.
        """
        if self.rps is None:
            raise ValueError("there is no saturation rate for the levels")
        return float(f"{self.rps * percent / 100:.3g}")


def saturation_rate(
    setting: Setting, sequence: RequestSlice, declared_rps: float | None
) -> Procedure[SaturationRate]:
    """The declared rate, or without one the highest rate that a search finds not saturated."""
    if declared_rps is not None:
        facts: dict[str, Any] = {
            LoadFact.CAPACITY_RPS: declared_rps,
            LoadFact.CAPACITY_SOURCE: DECLARED,
            LoadFact.CAPACITY_FOUND: False,
        }
        return SaturationRate(declared_rps, DECLARED, sequence, facts=facts)
    return rate_found((yield from search(setting, sequence)), sequence)


def rate_found(found: Searched, sequence: RequestSlice) -> SaturationRate:
    """The saturation rate by the result of a search; ``sequence``: the one that the search was given."""
    bound = None if found.best is None else lower_bound(found.best, found.levels, sustainable)
    source = SEARCHED if bound is None else f"{SEARCHED}, a lower bound: {bound.words}"
    facts: dict[str, Any] = {
        LoadFact.CAPACITY_RPS: found.rate,
        LoadFact.CAPACITY_SOURCE: source,
        LoadFact.CAPACITY_FOUND: True,
        LoadFact.RATE_RANGE: found.range.as_list(),
    }
    return SaturationRate(
        rps=found.rate,
        source=source,
        is_least=bound is not None,
        sequence=found.sequence or sequence,
        levels=found.levels,
        notes=found.notes,
        reference=found.reference,
        facts=facts,
    )
