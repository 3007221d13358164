"""How much of idle sessions is still in memory when their users come back: levels of ever more sessions at
once.

While a user thinks, the context of a session stays in the KV cache only as long as nothing else needs the
room. What a returning turn could find there is known in closed form, the tokens that an earlier prompt of its
session began with; what it found is what the server says. The unit of every interval is the session.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.pressure import PressedLevels, signs_of
from pytest_llmbench.metrics.kv_cache import zeros_of
from pytest_llmbench.metrics.server_side import tells_cached
from pytest_llmbench.metrics.session_figures import jobs_of, turn_shares
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.numbers import Amount, Cell, Figure, cells, percentage
from pytest_llmbench.model.request import USUAL, TurnClass
from pytest_llmbench.model.result import Plot, Table
from pytest_llmbench.model.sentences import Note

RETURNING = USUAL[1]
_HIT_RATE, _TTFT_P95 = f"turn_cache_hit_rate[{RETURNING}]", f"turn_ttft[{RETURNING}].p95"
LEAST_FALL = 0.05
"""Least fall of the hit rate that means short memory: blocks that are not full make some difference by
themselves."""
_OF_LEVELS = ("preemptions_per_request", "recovery_time")
_COLUMNS = (
    "Sessions", "Completed", "Returning Turns", "Could be Cached", "Cached", "Hit Rate",
    "TTFT P50, Returning", "TTFT P95, Returning", "TTFT P95, First", "Preemptions per Request", "Recovery",
    "Status", "Reason",
)  # fmt: skip


@dataclass(frozen=True)
class IdleSessions(PressedLevels):
    """Levels by the number of sessions at once. Each has passed or failed."""

    levels: Mapping[float, Seen]
    unknown = "the server reports neither cached tokens nor preemptions; let its usage contain cached_tokens"
    unknown_case = "memory_pressure.sessions_unknown"

    @classmethod
    def of(cls, levels: Mapping[float, Seen], floors: Mapping[TurnClass, float], seed: int) -> IdleSessions:
        """The levels with cached shares by turn. ``floors``: least hit rates by turn, further criteria of a
        level."""
        tells = any(tells_cached(seen.records) for seen in levels.values())
        classes = tuple(dict.fromkeys((*USUAL, *floors)))
        return cls(
            {slots: _with_cached(seen, classes, floors, tells, seed) for slots, seen in levels.items()}
        )

    def named(self, key: float) -> str:
        return f"{key:g} sessions"

    @property
    def _first(self) -> float:
        """The fewest sessions at once, with which the other levels are compared."""
        return min(self.levels)

    @property
    def beyond(self) -> list[float]:
        return [slots for slots in self.levels if slots > self._first]

    def pressed(self, key: float) -> bool | None:
        """Whether memory was short: there was a preemption or an out-of-memory error, or returning turns
        found less than those of the first level. None where that is not known.

        A KV cache in use up to the brim says nothing here: idle contexts are not in use.
        """
        signs = signs_of(self.levels[key].observation)
        if signs.preemptions or signs.out_of_memory:
            return True
        first = self._hit_rate(self._first)
        now = self._hit_rate(key)
        if first.point is None or now.point is None:
            return None
        apart = first.lower is None or now.upper is None or now.upper < first.lower
        return apart and first.point - now.point >= LEAST_FALL

    def _hit_rate(self, slots: float) -> Estimate:
        return self.levels[slots].level.metrics[_HIT_RATE]

    @property
    def metrics(self) -> dict[str, Estimate]:
        return {"pressed_levels": self.pressed_levels, "max_sessions": self.most_sessions}

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

    def none(self, known: Sequence[float]) -> tuple[str, dict[str, Any]]:
        return "memory_pressure.no_sessions", {"levels": self.said([self._first, *known])}

    def said(self, keys: Sequence[float]) -> tuple[Note, ...]:
        return tuple(
            Note.of(
                "memory_of_sessions",
                sessions=self.named(slots),
                hit_rate=Amount(self._hit_rate(slots).point, "ratio"),
                signs=signs_of(self.levels[slots].observation).told,
            )
            for slots in keys
        )

    def table(self, metrics: Mapping[str, Estimate]) -> Table:
        rows = tuple(self._row(slots, seen, metrics) for slots, seen in self.levels.items())
        return Table("memory_pressure_sessions", "Memory Pressure by Idle Sessions", _COLUMNS, rows)

    def _row(self, slots: float, seen: Seen, metrics: Mapping[str, Estimate]) -> tuple[Cell, ...]:
        own, jobs = seen.level.metrics, jobs_of(seen.records)
        return (
            int(slots),
            f"{len(jobs) - jobs.cut_off} of {len(jobs)}",
            int(RETURNING.holds(seen.inside.turn).sum()),
            *cells(own, (f"turn_cacheable_share[{RETURNING}]", f"turn_cached_share[{RETURNING}]")),
            Figure(_HIT_RATE, own[_HIT_RATE], "both"),
            *cells(own, (f"turn_ttft[{RETURNING}].p50", _TTFT_P95, f"turn_ttft[{USUAL[0]}].p95")),
            *cells(metrics, (f"{name}[{self.named(slots)}]" for name in _OF_LEVELS)),
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
