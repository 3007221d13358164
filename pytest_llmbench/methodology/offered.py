"""Was the load offered at all? What the generator itself fell short of (METHODOLOGY §3, AMB-28).

An open loop is defined by its schedule. Where the sends fell behind it, the run says nothing about the system
at that load: neither that it holds nor that it is saturated. Such a level is run once more, since it may have
been a disturbance, and one that fails again is beyond the generator. Both stand in the report under their
role with :data:`NOT_OFFERED`, and what they saw is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.level import Level
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import MISSING

SEND_LAG_FLOOR_MS = 10.0
"""Lag P99 above max(10 ms, 0.1 / rate) violates request isolation."""
_GROWTH_SHARE = 0.25
"""Of that limit: so much may the median lag grow. Near saturation every pass of the loop takes longer, which
is not falling behind; who falls behind does so without end."""
_FEWEST_IN_A_TENTH = 10
"""A median of fewer is that of a moment: one disturbance near the end is no trend. It is told, but voids
nothing; what it did to the figures is in the lag at P99."""
ACHIEVED_RATE_SHARE = 0.95
NOT_OFFERED = " (not offered)"
"""Ends the role of a level whose sends fell behind its schedule."""
_ATTEMPTS = 2


def send_lag(run: Observation) -> Finding | None:
    lag = run.selfcheck.send_lag_p99_ns
    if not isinstance(run.plan.load, OpenLoop) or lag is None:
        return None
    limit = _limit_ms(run.plan.load)
    ok = lag / 1e6 <= limit
    advice = "" if ok else ": the generator could not keep its schedule; lower the rate or free the CPU"
    return Finding(
        "send_lag",
        ok=ok,
        voids=True,
        message=f"sends were late by {lag / 1e6:.3f} ms at P99 (limit {limit:g} ms){advice}",
        value=lag / 1e6,
        limit=limit,
        unit="ms",
    )


def _limit_ms(load: OpenLoop) -> float:
    return max(SEND_LAG_FLOOR_MS, 100.0 / load.rate)


def growing_lag(run: Observation) -> Finding | None:
    first, last = run.selfcheck.send_lag_first_tenth_p50_ns, run.selfcheck.send_lag_last_tenth_p50_ns
    if first is None or last is None or not isinstance(run.plan.load, OpenLoop):
        return None
    limit_ms = 2 * first / 1e6 + _GROWTH_SHARE * _limit_ms(run.plan.load)
    ok = last / 1e6 <= limit_ms
    return Finding(
        "send_lag_growth",
        ok=ok,
        voids=len(run.records) >= 10 * _FEWEST_IN_A_TENTH,
        message=(
            f"median send lag {first / 1e6:.3f} ms in the first tenth, {last / 1e6:.3f} ms in the last"
            + ("" if ok else ": the generator fell behind; lower the rate or free the CPU")
        ),
        value=last / 1e6,
        limit=limit_ms,
        unit="ms",
    )


def achieved_rate(run: Observation) -> Finding | None:
    """Offered against achieved: the sends themselves, over the span that the schedule gave them."""
    if not isinstance(run.plan.load, OpenLoop):
        return None
    both = (run.records.submitted_ns != MISSING) & (run.records.scheduled_ns != MISSING)
    if int(both.sum()) < 2:
        return None
    planned = np.ptp(run.records.scheduled_ns[both])
    sent = np.ptp(run.records.submitted_ns[both])
    share = float(planned / sent) if sent > 0 else 1.0
    return Finding(
        "achieved_rate",
        ok=share >= ACHIEVED_RATE_SHARE,
        voids=True,
        message=f"requests left at {share:.1%} of the scheduled rate (limit {ACHIEVED_RATE_SHARE:.0%})",
        value=share,
        limit=ACHIEVED_RATE_SHARE,
        unit="ratio",
    )


SCHEDULE_CHECKS = (send_lag, growing_lag, achieved_rate)


def shortfalls(run: Observation) -> tuple[str, ...]:
    """In what the sends fell behind the schedule; empty where they kept it, and in a closed loop."""
    found = (check(run) for check in SCHEDULE_CHECKS)
    return tuple(
        finding.message for finding in found if finding is not None and finding.voids and not finding.ok
    )


def is_offered(level: Level) -> bool:
    return not level.role.endswith(NOT_OFFERED)


@dataclass(frozen=True, slots=True)
class Attempts:
    """One level, as often as it was sent."""

    runs: tuple[Seen, ...]

    @property
    def level(self) -> Seen:
        """What stands for the level: the last run."""
        return self.runs[-1]

    @property
    def offered(self) -> bool:
        return is_offered(self.level.level)

    @property
    def notes(self) -> tuple[str, ...]:
        if len(self.runs) == 1:
            return ()
        label, why = self.runs[0].level.label, "; ".join(shortfalls(self.runs[0].observation))
        if self.offered:
            return (f"{label} was run again: the generator had been disturbed ({why})",)
        why = "; ".join(shortfalls(self.level.observation))
        return (f"{label} is beyond this generator, so it says nothing about the system: {why}",)


def attempted(
    plan: Callable[[], LoadPlan], see: Callable[[Observation], Seen], *, needed: bool = False
) -> Procedure[Attempts]:
    """Runs a level, and once more where the generator fell behind.

    ``plan`` is asked before each run, so that the second can have requests of its own; ``see`` takes note of
    what was sent. ``needed``: the test cannot do without the level, so its second run counts, and voids the
    test if that fell behind too.
    """
    runs: list[Seen] = []
    for attempt in range(1, _ATTEMPTS + 1):
        observation = yield plan()
        seen = see(observation)
        if not shortfalls(observation) or (needed and attempt == _ATTEMPTS):
            return Attempts((*runs, seen))
        role = f"{seen.level.role}{NOT_OFFERED}"
        runs.append(seen.with_(role=role, saturated=None, saturation_reasons=(), passed=None))
    return Attempts(tuple(runs))


def set_aside(levels: Iterable[Level]) -> tuple[int, ...]:
    """Indices of the observations of levels that were not offered."""
    return tuple(
        level.observation for level in levels if level.observation is not None and not is_offered(level)
    )


__all__ = [
    "ACHIEVED_RATE_SHARE",
    "NOT_OFFERED",
    "SCHEDULE_CHECKS",
    "SEND_LAG_FLOOR_MS",
    "Attempts",
    "achieved_rate",
    "attempted",
    "growing_lag",
    "is_offered",
    "send_lag",
    "set_aside",
    "shortfalls",
]
