"""Was the load offered at all? What the generator itself fell short of (METHODOLOGY §3, AMB-28).

An open loop is defined by its schedule. Where the sends fell behind it, the run says nothing about the system
at that load: neither that it holds nor that it is saturated. Such a load is measured again, at most
``Setting.remeasure`` times, since it may have been a disturbance of this machine; one that fails every time
is beyond the generator. The void ones are in the records and counted in the report (levels under their role
with :data:`NOT_OFFERED`), and what they saw is not judged.

Only what this machine did is a reason to measure again. A request whose send was begun in time and whose last
byte left late waited for the server to take it: that is the server's doing, and voids the run as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.level import Level
from pytest_llmbench.model.observation import BEHIND_SCHEDULE, Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.records import MISSING, IntColumn
from pytest_llmbench.model.result import VoidLoad

SEND_LAG_FLOOR_MS = 10.0
"""Lag P99 above max(10 ms, 0.1 / rate) violates request isolation."""
_GROWTH_SHARE = 0.25
"""Of that limit: so much may the median lag grow. Near saturation every pass of the loop takes longer, which
is not falling behind; who falls behind does so without end."""
_FEWEST_IN_A_TENTH = 10
"""A median of fewer is that of a moment: one disturbance near the end is no trend. It is told, but voids
nothing; what it did to the figures is in the lag at P99."""
ACHIEVED_RATE_SHARE = 0.95
FULL_CORE_SHARE = 0.9
"""CPU of the measuring process above which it has too much to do by itself."""
NOT_OFFERED = " (not offered)"
"""Ends the role of a level whose sends fell behind its schedule."""


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
    share = _share_of_rate(run, run.records.submitted_ns)
    if share is None:
        return None
    return Finding(
        "achieved_rate",
        ok=share >= ACHIEVED_RATE_SHARE,
        voids=True,
        message=f"requests left at {share:.1%} of the scheduled rate (limit {ACHIEVED_RATE_SHARE:.0%})",
        value=share,
        limit=ACHIEVED_RATE_SHARE,
        unit="ratio",
    )


def _share_of_rate(run: Observation, instants_ns: IntColumn) -> float | None:
    """Of the scheduled rate, that at which these instants of the requests followed one another."""
    both = (instants_ns != MISSING) & (run.records.scheduled_ns != MISSING)
    if not isinstance(run.plan.load, OpenLoop) or int(both.sum()) < 2:
        return None
    planned, took = np.ptp(run.records.scheduled_ns[both]), np.ptp(instants_ns[both])
    return float(planned / took) if took > 0 else 1.0


SCHEDULE_CHECKS = (send_lag, growing_lag, achieved_rate)


def shortfalls(run: Observation) -> tuple[str, ...]:
    """In what the sends fell behind the schedule; empty where they kept it, and in a closed loop."""
    found = (check(run) for check in SCHEDULE_CHECKS)
    late = [finding.message for finding in found if finding is not None and finding.voids and not finding.ok]
    return (*late, *([run.interrupted or ""] if gave_up(run) else []))


def gave_up(run: Observation) -> bool:
    """Whether the generator ended the load since its schedule was out of reach."""
    return run.interrupted is not None and BEHIND_SCHEDULE in run.interrupted


def disturbed(run: Observation) -> bool:
    """Whether the load is void for what happened on the generator's own host, and may be measured again."""
    if run.interrupted is not None:
        return gave_up(run)
    begun = (send_lag(run), growing_lag(run))
    if any(finding is not None and finding.voids and not finding.ok for finding in begun):
        return True
    share = _share_of_rate(run, run.records.dispatched_ns)
    return share is not None and share < ACHIEVED_RATE_SHARE


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
        label, why = self.level.level.label, "; ".join(shortfalls(self.level.observation))
        if not self.offered:
            return (f"{label} is beyond this generator, so it says nothing about the system: {why}",)
        return tuple(measured_again(void_load(run.observation, label)) for run in self.runs[:-1])


def attempted(
    plan: Callable[[], LoadPlan],
    see: Callable[[Observation], Seen],
    remeasure: int,
    *,
    needed: bool = False,
    prepare: Callable[[], Procedure[None]] | None = None,
) -> Procedure[Attempts]:
    """Runs a level, and up to ``remeasure`` times again where this machine disturbed the generator.

    ``plan`` is asked before each run, so that the next can have requests of its own; ``see`` takes note of
    what was sent. ``needed``: the test cannot do without the level, so its last run counts, and voids the
    test if that fell behind too. ``prepare`` comes before each further run: it brings the system back into
    the state in which the first one found it, where the same requests have to be sent again.
    """
    runs: list[Seen] = []
    for attempt in range(1, remeasure + 2):
        if attempt > 1 and prepare is not None:
            yield from prepare()
        observation = yield plan().with_(attempt=attempt)
        seen = see(observation)
        last = attempt > remeasure or not disturbed(observation)
        if not shortfalls(observation) or (needed and last):
            return Attempts((*runs, seen))
        role = f"{seen.level.role}{NOT_OFFERED}"
        runs.append(seen.with_(role=role, saturated=None, saturation_reasons=(), passed=None))
        if last:
            break
    return Attempts(tuple(runs))


def same_requests_again(setting: Setting, variant: str) -> int:
    """How often a load of the very same requests may be measured again: not at all where a prefix cache could
    still hold them, since that cannot be emptied and is not known to be off."""
    info = setting.variants.get(variant)
    facts = setting.facts if info is None else setting.facts | info.facts
    forgets = facts.value("sut.prefix_caching") == "disabled" or (info is not None and info.can_be_fresh)
    return setting.remeasure if forgets else 0


def void_load(run: Observation, label: str) -> VoidLoad:
    return VoidLoad(label, run.plan.attempt, len(run.records), shortfalls(run))


def host_text(run: Observation) -> str:
    """One line about a load that this machine spoiled: what it did, what tells so, and what helps."""
    check, lag, load = run.selfcheck, run.selfcheck.send_lag_p99_ns, run.plan.load
    told = [] if run.interrupted is None else [run.interrupted]
    if lag is not None and isinstance(load, OpenLoop):
        told.append(
            f"sends behind their schedule by {lag / 1e6:.3g} ms at P99 (limit {_limit_ms(load):g} ms)"
        )
    if check.waited_for_core_share is not None:
        told.append(f"ready to run and without a core for {check.waited_for_core_share:.1%} of the time")
    if check.stolen_share:
        told.append(f"{check.stolen_share:.1%} of the CPU stolen by the hypervisor")
    if check.priority:
        told.append(f"priority {check.priority}")
    full = check.cpu_share is not None and check.cpu_share > FULL_CORE_SHARE
    what = "the load generator fell" if full else "this machine woke up"
    late = " late" if lag is None else f" {lag / 1e6:.3g} ms {'behind' if full else 'late'}"
    helps = "lower the rate or give more --llm-workers" if full else "free its CPU"
    if full:
        told.append(f"{check.cpu_share:.0%} of a core used by the measuring process")
    attempts = "1 attempt" if run.plan.attempt == 1 else f"{run.plan.attempt} attempts"
    return f"{what}{late}, measured by: {'; '.join(told)}; {attempts} void: {helps}"


def measured_again(void: VoidLoad) -> str:
    """What the report says of it."""
    return (
        f"{void.label}: attempt {void.attempt} was void for a cause on this machine, and was measured again "
        f"({'; '.join(void.causes)})"
    )


def set_aside(levels: Iterable[Level]) -> tuple[int, ...]:
    """Indices of the observations of levels that were not offered."""
    return tuple(
        level.observation for level in levels if level.observation is not None and not is_offered(level)
    )


__all__ = [
    "ACHIEVED_RATE_SHARE",
    "FULL_CORE_SHARE",
    "NOT_OFFERED",
    "SCHEDULE_CHECKS",
    "SEND_LAG_FLOOR_MS",
    "Attempts",
    "achieved_rate",
    "attempted",
    "disturbed",
    "gave_up",
    "growing_lag",
    "host_text",
    "is_offered",
    "measured_again",
    "same_requests_again",
    "send_lag",
    "set_aside",
    "shortfalls",
    "void_load",
]
