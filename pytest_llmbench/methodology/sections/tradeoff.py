"""Throughput-Latency Tradeoff, section 5.3 of the draft.

Objective: the curve between throughput and latency over the whole operating range. Procedure: estimate the
capacity; offer 10 % to 120 % of it in ascending levels, open loop, each drained before the next; on with
further levels until one is saturated; derive knee, saturation point and operating point.

Each of these points (section 5.3.4) is a tested level, so each is known to within its neighbour: the interval
is that bracket, not one of confidence. A point that no level reached lies above the highest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Reference, Seen, level_of, qualified, with_band
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.parameters import TestParameters, limit, parameter
from pytest_llmbench.methodology.procedure import (
    LEVEL_S,
    PROBE_REQUESTS,
    Procedure,
    Setting,
    TestDefinition,
)
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.probing import (
    Holds,
    constraint_of,
    known_to_bracket,
    meets,
    stated_constraint,
    value_of,
)
from pytest_llmbench.methodology.search.search import (
    UNKNOWN_RPS,
    SaturationRate,
    saturation_rate,
    search_plans,
)
from pytest_llmbench.model.draft import KNEE_FACTOR
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.numbers import (
    NOT_MEASURED,
    Amount,
    Figure,
    Row,
    cells,
    percent_label,
    quantity,
)
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.result import Band, Line, Plot, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note

_FAMILIES = (("TTFT", "ttft"), ("TPOT", "tpot"), ("E2E", "e2e"))
_PERCENTILES = (("P50", "p50"), ("P95", "p95"), ("P99", "p99"))
_CURVES = (
    ("TTFT P50", "ttft.p50"),
    ("TTFT P99", "ttft.p99"),
    ("TPOT P99", "tpot.p99"),
    ("E2E P99", "e2e.p99"),
)
_X = "output_token_throughput"

HEADING = Heading("tradeoff", "5.3", "Throughput-Latency Tradeoff")

GRID = tuple(float(percent) for percent in range(10, 130, 10))
"""The load levels, in percent of capacity (section 5.3.3)."""

QUICK_LEVELS = 5


HIGHEST_PERCENT, FURTHER_PERCENT = 200.0, 10.0
"""Highest percentage of further levels, and their step, which are added while no level is saturated."""

MUST_BE_OFFERED_PERCENT = 100.0
"""The percentage up to which the curve needs every level. Beyond, one that the generator cannot offer ends
the sweep."""


@dataclass(frozen=True, kw_only=True)
class Parameters(TestParameters):
    """Levels from 10 to 120 % of capacity, and on until saturation: knee, saturation and operating point.

    The load is open: a closed loop shows nothing beyond capacity.
    """

    capacity_rps: float | None = parameter(
        "positive",
        doc="capacity in requests per second, from published figures or an earlier test; otherwise a "
        "search finds it.",
    )
    levels_percent: Sequence[float] = parameter(
        "percents",
        GRID,
        doc="loads in percent of capacity; ``quick`` takes five of them, ``full`` adds the default ones.",
    )
    duration_s: float | None = parameter(
        "positive", doc="duration of a level, ramp-up included.", scale=LEVEL_S
    )
    ttft_p99_ms: float | None = parameter("positive")
    tpot_p99_ms: float | None = parameter(
        "positive", doc="with ``ttft_p99_ms``: limits on latency that the operating point must meet."
    )
    min_knee_rate: float | None = limit("knee_rate")
    min_saturation_rate: float | None = limit("saturation_rate")
    min_operating_tok_s: float | None = limit("operating_point_throughput")

    def contradictions(self) -> list[str]:
        if self.min_operating_tok_s is not None and not self.constraint:
            return [
                "min_operating_tok_s needs ttft_p99_ms or tpot_p99_ms, which an operating point must meet"
            ]
        return []

    @property
    def constraint(self) -> dict[str, float]:
        return constraint_of(self.ttft_p99_ms, self.tpot_p99_ms)


def percents(parameters: Parameters, setting: Setting) -> tuple[float, ...]:
    """The levels in percent. ``quick``: five of them, the first and the last included. ``full``: the draft's
    grid in addition."""
    asked = tuple(float(percent) for percent in parameters.levels_percent)
    if setting.scale == "full":
        return tuple(sorted({*asked, *GRID}))
    if setting.scale == "quick" and len(asked) > QUICK_LEVELS:
        places = (round(i * (len(asked) - 1) / (QUICK_LEVELS - 1)) for i in range(QUICK_LEVELS))
        return tuple(asked[place] for place in places)
    return asked


def measure(parameters: Parameters, setting: Setting, warmup: WarmupReport) -> Procedure[TestResult]:
    capacity = yield from saturation_rate(setting, RequestSlice(setting.workload), parameters.capacity_rps)
    sweep = _Sweep(parameters, setting, capacity)
    if capacity.rps is not None:
        yield from sweep.all_levels()
    return result_of(HEADING, parameters, setting, warmup, sweep.report())


@dataclass
class _Sweep:
    parameters: Parameters
    setting: Setting
    capacity: SaturationRate
    levels: list[Seen] = field(default_factory=list)
    """The levels that make up the curve, ascending."""
    run: list[Seen] = field(default_factory=list)
    """All levels that were sent."""
    notes: list[Note] = field(default_factory=list)
    over: bool = False
    """Whether the generator cannot offer more."""

    @property
    def saturated(self) -> bool:
        """Whether the highest level is: a lower one alone that a higher one holds was a burst."""
        return bool(self.levels) and bool(self.levels[-1].level.saturated)

    @property
    def duration_s(self) -> float:
        return LEVEL_S.at(self.setting.scale, self.parameters.duration_s)

    def all_levels(self) -> Procedure[None]:
        grid = percents(self.parameters, self.setting)
        for percent in with_further(grid):
            # Beyond the grid only where it shows no saturation: then the estimate of the capacity was low.
            if self.over or (percent not in grid and self.saturated):
                return
            yield from self.level(percent)

    def requests(self, percent: float) -> RequestSlice:
        declared = self.parameters.capacity_rps
        return self.capacity.sequence.next_part(
            self.setting, "level", percent=percent, duration_s=self.duration_s, capacity_rps=declared
        )

    def plan(self, percent: float, own: RequestSlice) -> LoadPlan:
        load, least = OpenLoop(self.capacity.percent(percent)), PROBE_REQUESTS.count(self.setting.scale)
        return own.open_loop(self.setting, percent_label(percent), load, self.duration_s, at_least=least)

    def level(self, percent: float) -> Procedure[None]:
        own, limits = self.requests(percent), self.parameters.constraint
        reference = Reference.of(self.levels[0].level) if self.levels else Reference()

        def see(run: Observation) -> Seen:
            seen = level_of(
                own.sent(run),
                reference=reference,
                seed=self.setting.seed,
                role="level",
                percent_of_capacity=percent,
            )
            return seen.with_(passed=meets(seen, limits)) if limits else seen

        plan, needed = partial(self.plan, percent, own), percent <= MUST_BE_OFFERED_PERCENT
        attempts = yield from attempted(plan, see, self.setting.remeasure, needed=needed)
        self.notes += attempts.notes
        self.run += attempts.runs
        self.over = not attempts.offered
        if attempts.offered:
            self.levels.append(attempts.level)

    def report(self) -> Report:
        levels, capacity, limits = self.levels, self.capacity, self.parameters.constraint
        curve = curve_of(levels, wanted=bool(limits))
        metrics: dict[str, Estimate] = {}
        for seen in levels:
            metrics |= qualified(seen.level.metrics, seen.level.label)
        stable = [seen for seen in levels if not seen.level.saturated]
        load = {
            **capacity.facts,
            LoadFact.MODEL: "open",
            LoadFact.ARRIVAL: "poisson",
            LoadFact.LEVELS_PERCENT: [seen.level.percent_of_capacity for seen in levels],
            LoadFact.DURATION_S: self.duration_s,
        }
        return Report(
            levels=(*capacity.levels, *self.run),
            metrics=metrics | curve.metrics,
            tables=(levels_table(levels), points_table(curve, capacity)) if levels else (),
            plots=(curve_plot(curve),) if levels else (),
            notes=tuple(dict.fromkeys((*capacity.notes, *self.notes, *self._own_notes()))),
            load=load | stated_constraint(limits),
            budgeted=stable or levels[:1] or capacity.levels[:1],
        )

    def _own_notes(self) -> list[Note]:
        notes = [] if self.capacity.rps is not None else [Note.of("no_capacity_for_levels")]
        if not self.levels:
            return notes
        highest = max(GRID)
        further = [s.level.label for s in self.levels if (s.level.percent_of_capacity or 0) > highest]
        if further and max(self.parameters.levels_percent) <= highest:
            notes.append(Note.of("levels_added", highest=percent_label(highest), last=further[-1]))
        if not self.saturated:
            notes.append(Note.of("nothing_saturated", generator=self.over))
        note = Reference.of(self.levels[0].level).note
        return [*notes, note] if note else notes


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    """The plans of the search, unless the capacity is declared, and of the levels with those that may be
    added."""
    sequence, declared = RequestSlice(setting.workload), parameters.capacity_rps
    found = () if declared is not None else search_plans(setting, sequence)
    rate = UNKNOWN_RPS if declared is None else declared
    sweep = _Sweep(parameters, setting, SaturationRate(rate, "", sequence))
    grid = with_further(percents(parameters, setting))
    return found + tuple(sweep.plan(percent, sweep.requests(percent)) for percent in grid)


def with_further(grid: Sequence[float]) -> tuple[float, ...]:
    """The grid with the levels that are added while none is saturated."""
    chosen = list(grid)
    while chosen[-1] + FURTHER_PERCENT <= HIGHEST_PERCENT:
        chosen.append(chosen[-1] + FURTHER_PERCENT)
    return tuple(chosen)


def levels_table(levels: Sequence[Seen]) -> Table:
    """Table 5."""
    latencies = tuple(f"{family} {name}" for family, _ in _FAMILIES for name, _ in _PERCENTILES)
    names = tuple(f"{family}.{key}" for _, family in _FAMILIES for _, key in _PERCENTILES)
    columns = (
        "Level", "Offered (r/s)", "Achieved (tok/s)", "95 % interval", *latencies, "Success", "Queue",
        "Samples",
    )  # fmt: skip
    rows: list[Row] = []
    for seen in levels:
        level, throughput = seen.level, Figure(_X, seen.level.metrics[_X])
        queue = {None: NOT_MEASURED, True: "growing", False: "stable"}[level.queue_growing]
        rows.append(
            (
                level.label,
                Amount(value_of(seen), "req/s"),
                throughput,
                replace(throughput, part="interval"),
                *cells(level.metrics, names),
                Amount(level.completion_ratio, "ratio"),
                f"{queue}, saturated" if level.saturated else queue,
                level.metrics["ttft.p99"].n,
            )
        )
    return Table("tradeoff_levels", "Throughput-Latency Table", columns, tuple(rows))


def points_table(curve: Curve, capacity: SaturationRate) -> Table:
    """A table of the draft's two lines below Table 5, and the operating point."""
    knees = {
        metric: NOT_REACHED if (found := knee(curve.levels, metric)) is None else _at(found)
        for metric in ("ttft.p99", "tpot.p99", "e2e.p99")
    }
    if curve.saturation is not None:
        saturation = _at(curve.saturation)
    else:
        highest = "" if curve.highest is None else f"; highest throughput at {_at(curve.highest)}"
        flagged = curve.first_flagged
        rules = "no level flagged" if flagged is None else f"first flagged: {_at(flagged)}"
        saturation = f"{NOT_REACHED}{highest}; {rules}"
    operating = curve.why_none
    if curve.operating is not None:
        point = curve.operating.point(_X)
        operating = _at(curve.operating) + ("" if point is None else f", {quantity(point, 'tok/s')}")
    least = "at least " if capacity.is_least else ""
    rate = "none" if capacity.rps is None else f"{least}{quantity(capacity.rps, 'req/s')}"
    drop = "first level with less throughput than the one before, beyond their intervals"
    rows = (
        ("Knee point", knees["ttft.p99"], "TTFT P99 above twice its minimum"),
        ("Saturation point", saturation, drop),
        ("Optimal operating point", operating, "highest throughput that meets the SLO"),
        ("Knee of TPOT", knees["tpot.p99"], "TPOT P99 above twice its minimum"),
        ("Knee of end-to-end latency", knees["e2e.p99"], "E2E P99 above twice its minimum"),
        ("Estimated capacity", rate, capacity.source),
    )
    return Table("tradeoff_points", "Points of the Curve", ("Point", "Value", "What it is"), rows)


def _at(seen: Seen) -> str:
    return f"{quantity(value_of(seen), 'req/s')} ({seen.level.label})"


def curve_plot(curve: Curve) -> Plot:
    """A plot of latency over achieved throughput, level by level, with the intervals of the latencies as
    bands."""
    series, bands = dict[str, Line](), dict[str, Band]()
    for name, metric in _CURVES:
        line, band = with_band(name, ((seen.point(_X), seen.level.metrics[metric]) for seen in curve.levels))
        series, bands = series | line, bands | band
    points = {"knee": curve.knee, "saturation": curve.saturation, "operating point": curve.operating}
    return Plot(
        id="throughput_latency",
        title="Latency over Throughput",
        x_label="achieved output tokens/s",
        y_label="latency (ms)",
        series=series,
        bands=bands,
        marks={
            name: x for name, seen in points.items() if seen is not None and (x := seen.point(_X)) is not None
        },
        y_log=True,
    )


TEST = TestDefinition(*HEADING, Parameters, framed(HEADING, measure), plans)

NOT_REACHED = "not reached"
NO_SLO, NONE_MEETS = "no SLO given", "no level meets the SLO"
UNKNOWN_WHICH = "no level is known to meet the SLO: some have too few requests to tell"


@dataclass(frozen=True)
class Curve:
    """The curve with its points; ``None`` where no level is the point."""

    levels: tuple[Seen, ...]
    """The levels in ascending order."""
    wanted: bool
    """Whether there are objectives that an operating point has to meet."""
    knee: Seen | None
    saturation: Seen | None
    operating: Seen | None
    highest: Seen | None
    """The level with the highest throughput."""
    sustained: Seen | None
    """The level with the highest throughput among those that hold."""
    first_flagged: Seen | None
    """The lowest level that a saturation rule flags (section 5.2.3.1)."""

    @property
    def metrics(self) -> dict[str, Estimate]:
        found = {"knee_rate": self._bracket(self.knee), "saturation_rate": self._bracket(self.saturation)}
        if self.operating is None:
            for name, unit in (("rate", "req/s"), ("throughput", "tok/s")):
                found[f"operating_point_{name}"] = Estimate.undefined(
                    unit=unit, method=self.why_none, n=len(self.levels), reason=Reason.NO_LEVEL
                )
        else:
            rate = value_of(self.operating)
            above = [value_of(seen) for seen in self.levels if value_of(seen) > rate]
            found["operating_point_rate"] = _between(rate, rate, min(above, default=None), len(self.levels))
            best = self._of_the_highest(self.operating, lambda seen: seen.level.passed)
            found["operating_point_throughput"] = best
        if self.sustained is not None:
            # The maximum as a sweep finds it: the same figure as a search's, between levels farther apart.
            found["max_output_token_throughput"] = self._of_the_highest(self.sustained, holds)
        return found

    def _of_the_highest(self, best: Seen, passes: Holds) -> Estimate:
        return known_to_bracket(best.level.metrics[_X], best, self.levels, passes)

    @property
    def why_none(self) -> str:
        """Why there is no operating point, in words."""
        if self.wanted and any(seen.level.passed is None for seen in self.levels):
            return UNKNOWN_WHICH
        return NONE_MEETS if self.wanted else NO_SLO

    def _bracket(self, point: Seen | None) -> Estimate:
        """The load of a point, with a bracket from the level before it up to it.

        Where no level is the point, it lies above all levels and is not known.
        """
        rates = [value_of(seen) for seen in self.levels]
        if not rates:
            return Estimate.undefined(unit="req/s", method="no levels")
        if point is None:
            highest = _between(None, rates[-1], None, len(rates))
            return highest.at_least(
                Reason.NOT_REACHED, f"{quantity(rates[-1], 'req/s')} is the highest level"
            )
        rate = value_of(point)
        before = max((other for other in rates if other < rate), default=None)
        return _between(rate, before, rate, len(rates))


def _between(rate: float | None, lower: float | None, upper: float | None, levels: int) -> Estimate:
    method, kind = "bracket of the levels", EstimateKind.BRACKET
    return Estimate(rate, lower, upper, 0.95, levels, method, "req/s", kind=kind)


def curve_of(levels: Sequence[Seen], *, wanted: bool) -> Curve:
    ascending = tuple(sorted(levels, key=value_of))
    passing = [seen for seen in ascending if seen.level.passed] if wanted else []
    return Curve(
        levels=ascending,
        wanted=wanted,
        knee=knee(ascending, "ttft.p99"),
        saturation=first_drop(ascending),
        operating=_most(passing),
        highest=_most(ascending),
        sustained=_most([seen for seen in ascending if holds(seen)]),
        first_flagged=next((seen for seen in ascending if seen.level.saturated), None),
    )


def holds(seen: Seen) -> bool:
    """Whether no saturation rule flags the level, or it keeps up and meets the objectives."""
    return not seen.level.saturated or seen.level.passed is True


def knee(ascending: Sequence[Seen], metric: str) -> Seen | None:
    """The lowest level, above that of the minimum, whose P99 is more than twice the lowest P99."""
    found = [(value, seen) for seen in ascending if (value := seen.point(metric)) is not None]
    if not found:
        return None
    lowest, at = min(found, key=lambda pair: pair[0])
    above = [(v, seen) for v, seen in found if value_of(seen) > value_of(at)]
    return next((seen for value, seen in above if value > KNEE_FACTOR * lowest), None)


def first_drop(ascending: Sequence[Seen]) -> Seen | None:
    """The first level with less throughput than the one before (AMB-15), by more than the uncertainty of
    both, and not for lack of requests: random arrivals may come more slowly at the higher rate."""
    known = [seen for seen in ascending if seen.point(_X) is not None]
    for earlier, later in pairwise(known):
        before, after = (seen.level.metrics[_X] for seen in (earlier, later))
        if before.lower is None or after.upper is None or after.upper >= before.lower:
            continue
        if _arrivals_per_s(later) >= _arrivals_per_s(earlier):
            return later
    return None


def _arrivals_per_s(seen: Seen) -> float:
    return len(seen.inside) / seen.level.window_s if seen.level.window_s > 0 else 0.0


def _most(levels: Sequence[Seen]) -> Seen | None:
    known = [seen for seen in levels if seen.point(_X) is not None]
    return max(known, key=lambda seen: seen.point(_X) or 0.0, default=None)
