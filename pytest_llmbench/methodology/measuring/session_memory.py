"""How much of idle sessions is still in memory when their users come back: levels of ever more sessions at
once.

While a user thinks, the context of a session stays in the KV cache only as long as nothing else needs the
room. What a returning turn could find there is known in closed form, the tokens that an earlier prompt of its
session began with; what it found is what the server says. The unit of every interval is the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.pressure import PRESSED, pressed_share, signs_of
from pytest_llmbench.metrics.prefix import zeros_of
from pytest_llmbench.metrics.server_side import tells_cached
from pytest_llmbench.metrics.session_figures import jobs_of, turn_shares
from pytest_llmbench.model.cells import Amount, Cell, Figure, cells
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import percentage
from pytest_llmbench.model.result import Plot, Table
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.model.session import USUAL, TurnClass

RETURNING = USUAL[1]
_HIT_RATE, _TTFT_P95 = f"turn_cache_hit_rate[{RETURNING}]", f"turn_ttft[{RETURNING}].p95"
LEAST_FALL = 0.05
"""Least fall of the hit rate that means short memory: blocks that are not full make some difference by
themselves."""
_UNKNOWN = "the server tells neither cached tokens nor a preemption; make its usage tell cached_tokens"
_OF_LEVELS = ("preemptions_per_request", "recovery_time")
_COLUMNS = (
    "Sessions", "Completed", "Returning Turns", "Could be Cached", "Cached", "Hit Rate",
    "TTFT P50, Returning", "TTFT P95, Returning", "TTFT P95, First", "Preemptions per Request", "Recovery",
    "Status", "Reason",
)  # fmt: skip


@dataclass(frozen=True)
class IdleSessions:
    """The levels by the number of sessions at once, ascending. Each has passed or failed."""

    levels: Mapping[int, Seen]

    @classmethod
    def of(cls, levels: Mapping[int, Seen], floors: Mapping[TurnClass, float], seed: int) -> IdleSessions:
        """The levels with cached shares by turn. ``floors``: least hit rates by turn, further criteria of a
        level."""
        tells = any(tells_cached(seen.records) for seen in levels.values())
        classes = tuple(dict.fromkeys((*USUAL, *floors)))
        return cls(
            {slots: _with_cached(seen, classes, floors, tells, seed) for slots, seen in levels.items()}
        )

    @property
    def _first(self) -> int:
        """The fewest sessions at once, with which the other levels are compared."""
        return min(self.levels)

    @property
    def _beyond(self) -> list[int]:
        return [slots for slots in self.levels if slots > self._first]

    def pressed(self, slots: int) -> bool | None:
        """Whether memory was short: there was a preemption or an out-of-memory error, or returning turns
        found less than those of the first level. None where that is not known.

        A KV cache in use up to the brim says nothing here: idle contexts are not in use.
        """
        signs = signs_of(self.levels[slots].observation)
        if signs.preemptions or signs.out_of_memory:
            return True
        return _fell(self._hit_rate(self._first), self._hit_rate(slots))

    def _hit_rate(self, slots: int) -> Estimate:
        return self.levels[slots].level.metrics[_HIT_RATE]

    @cached_property
    def pressed_levels(self) -> Estimate:
        """The share of the levels beyond the first in which memory was short."""
        return pressed_share(map(self.pressed, self._beyond), _UNKNOWN)

    @property
    def most_sessions(self) -> Estimate:
        """The most sessions at once up to which all levels meet the criteria; below the first level that
        fails."""
        passed = list(takewhile(lambda slots: self.levels[slots].level.passed, self.levels))
        failed = [slots for slots in self.levels if slots not in passed][:1]
        most = float(passed[-1]) if passed else 0.0
        n, said = len(self.levels), f"levels: {most:.0f} passed" if passed else "levels: none passed"
        found = Estimate(most, most, None, 0.95, n, said, "count", kind=EstimateKind.BRACKET)
        if not failed:
            return found.at_least(Reason.RANGE_ENDED, "that is the highest level")
        return replace(found, upper=float(failed[0] - 1), method=f"{said}, {failed[0]} failed")

    def finding(self) -> Finding:
        """The finding on memory pressure: void if memory was short in no level beyond the first, a warning if
        that is not known."""
        told = {slots: self.pressed(slots) for slots in self._beyond}
        known = [slots for slots, pressed in told.items() if pressed is not None]
        short = [slots for slots in known if told[slots]]
        pressed = self.pressed_levels.point
        if short:
            case, levels = "memory_pressure.found", self._said(short)
        elif known:
            case, levels = "memory_pressure.no_sessions", self._said([self._first, *known])
        else:
            case, levels = "memory_pressure.sessions_unknown", ()
        found, limit = bool(short), PRESSED.limit
        return Finding.of(case, found, pressed, limit, voids=bool(known), levels=levels)

    def _said(self, which: Sequence[int]) -> tuple[Note, ...]:
        return tuple(
            Note.of(
                "memory_of_sessions",
                sessions=named(slots),
                hit_rate=Amount(self._hit_rate(slots).point, "ratio"),
                signs=signs_of(self.levels[slots].observation).told,
            )
            for slots in which
        )

    def table(self, metrics: Mapping[str, Estimate]) -> Table:
        """A table of all levels. ``metrics``: those by level, ``preemptions_per_request[8 sessions]``."""
        rows = tuple(self._row(slots, seen, metrics) for slots, seen in self.levels.items())
        return Table("memory_pressure_sessions", "Memory Pressure by Idle Sessions", _COLUMNS, rows)

    def _row(self, slots: int, seen: Seen, metrics: Mapping[str, Estimate]) -> tuple[Cell, ...]:
        own, jobs = seen.level.metrics, jobs_of(seen.records)
        return (
            slots,
            f"{len(jobs) - jobs.cut_off} of {len(jobs)}",
            int(RETURNING.holds(seen.inside.turn).sum()),
            *cells(own, (f"turn_cacheable_share[{RETURNING}]", f"turn_cached_share[{RETURNING}]")),
            Figure(_HIT_RATE, own[_HIT_RATE], "both"),
            *cells(own, (f"turn_ttft[{RETURNING}].p50", _TTFT_P95, f"turn_ttft[{USUAL[0]}].p95")),
            *cells(metrics, (f"{name}[{named(slots)}]" for name in _OF_LEVELS)),
            "Pass" if seen.level.passed else "Fail",
            "; ".join(seen.level.fail_reasons),
        )

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Plots of what returning turns found in the cache, and how long they waited, over the sessions at
        once."""
        drawn = (
            ("session_memory_hit_rate", "Hit rate of returning turns", "hit rate (%)", _HIT_RATE, 100),
            ("session_memory_ttft", "TTFT of returning turns", "TTFT P95 (ms)", _TTFT_P95, 1),
        )
        found = (self._plot(*each) for each in drawn)
        return tuple(plot for plot in found if plot is not None)

    def _plot(self, name: str, title: str, y_label: str, metric: str, scale: float) -> Plot | None:
        points = {slots: seen.point(metric) for slots, seen in self.levels.items()}
        known = {slots: scale * point for slots, point in points.items() if point is not None}
        line = {"turns 2+": (tuple(map(float, known)), tuple(known.values()))}
        return Plot(name, title, "sessions at once", y_label, line, x_log=True) if known else None


def named(slots: int) -> str:
    """The qualifier of a level's metrics."""
    return f"{slots} sessions"


def _with_cached(
    seen: Seen, classes: tuple[TurnClass, ...], floors: Mapping[TurnClass, float], tells: bool, seed: int
) -> Seen:
    """The level with cached shares of the turns inside its window. ``tells``: whether the server reports
    cached tokens in some level, so that no report means none."""
    inside = zeros_of(seen.inside) if tells else seen.inside
    metrics = {**seen.level.metrics, **turn_shares([inside], classes, seed=seed)}
    failures = [*seen.level.fail_reasons, *_below(metrics, floors)]
    return seen.with_(metrics=metrics, passed=not failures, fail_reasons=tuple(failures))


def _below(metrics: Mapping[str, Estimate], floors: Mapping[TurnClass, float]) -> list[str]:
    found = []
    for turns, floor in floors.items():
        rate = metrics[f"turn_cache_hit_rate[{turns}]"].point
        if rate is None:
            found.append(f"hit rate of turn {turns} not measured")
        elif rate < floor:
            found.append(f"hit rate of turn {turns} {percentage(rate)} (at least {percentage(floor)})")
    return found


def _fell(first: Estimate, now: Estimate) -> bool | None:
    """Whether the hit rate is lower than in the first level, by more than chance as far as there are
    intervals; None where it is not known."""
    if first.point is None or now.point is None:
        return None
    apart = first.lower is None or now.upper is None or now.upper < first.lower
    return apart and first.point - now.point >= LEAST_FALL
