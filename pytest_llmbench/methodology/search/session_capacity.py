"""Search for the most sessions at once that meet criteria, as for a capacity in requests.

A level keeps so many sessions going at once; the end of each starts the next. All begin together, as the
draft has requests do (section 5.5.3), and it lasts for a number of sessions per slot: turns pause, so seconds
would say nothing. What counts is the time while every slot has a session, without its first tenth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.bracketing import doubling, searched
from pytest_llmbench.methodology.search.capacity_search import (
    QUICK_MAXIMUM,
    Capacity,
    Criteria,
    bound_notes,
)
from pytest_llmbench.metrics.session_figures import jobs_of, turn_metrics
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.result import PROBE
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.model.session import USUAL, OfSessions, TurnClass
from pytest_llmbench.workloads.sessions import turns_of

SESSIONS_PER_SLOT = ByScale(quick=2, standard=4, full=10)


@dataclass(frozen=True)
class SessionsAsked:
    """The parameters of a search."""

    criteria: Criteria
    turn_ttft_p95_ms: Mapping[TurnClass, float]
    """Turn class → ceiling on the P95 of its TTFT, in ms."""
    initial: int
    maximum: int
    """Sessions at once: those of the first level, and the upper bound."""
    per_slot: int | None = None
    """Sessions per slot of a level, on average; None: the default of the scale."""

    def ceiling(self, setting: Setting) -> int:
        return min(self.maximum, QUICK_MAXIMUM) if setting.scale == "quick" else self.maximum


def find_session_capacity(setting: Setting, asked: SessionsAsked) -> Procedure[Capacity]:
    """Search for the capacity: a closed loop of sessions, from ``initial`` up to ``maximum`` at once."""
    ceiling = asked.ceiling(setting)
    by_slots: dict[int, Seen] = {}
    runs, told = list[Seen](), list[Note]()

    def at(slots: int) -> Procedure[bool]:
        numbers = count(1)
        attempts = yield from attempted(
            lambda: session_slots_plan(setting, asked, slots, next(numbers)),
            lambda run: session_level(setting, asked, run),
            setting.remeasure,
            needed=True,
        )
        by_slots[slots] = attempts.level
        runs.extend(attempts.runs)
        told.extend(attempts.notes)
        return by_slots[slots].level.passed is True

    passed, failed = yield from searched(doubling(min(asked.initial, ceiling), ceiling), at)
    best = None if passed is None else by_slots[passed]
    notes = bound_notes(passed, failed, ceiling, asked.maximum, sessions=True)
    return Capacity(best, passed, failed, tuple(by_slots.values()), (*notes, *told), tuple(runs))


def session_slots_plan(setting: Setting, asked: SessionsAsked, slots: int, attempt: int = 1) -> LoadPlan:
    """The plan of a level, shared by every search that has this level, whatever its criteria. Each attempt
    has sessions of its own."""
    workload = setting.workload
    assert isinstance(workload, OfSessions)
    sessions = slots * SESSIONS_PER_SLOT.count(setting.scale, asked.per_slot)
    told = {"slots": slots, "sessions": sessions, **({} if attempt == 1 else {"attempt": attempt})}
    part = part_of(setting, workload, "level of sessions at once", **told)
    return LoadPlan(
        label=f"{slots} sessions at once",
        workload=workload,
        load=ClosedLoop(slots, of_sessions=True),
        requests=turns_of(workload, sessions, part.seed),
        seed=part.seed,
        part=part.name,
        deadlines=setting.deadlines,
        ignore_eos=setting.ignore_eos,
        may_break=True,
    )


def session_level(setting: Setting, asked: SessionsAsked, run: Observation) -> Seen:
    """The level with its TTFT by turn, and why it fails."""
    seen = level_of(run, seed=setting.seed, role=PROBE)
    classes = dict.fromkeys((*USUAL, *asked.turn_ttft_p95_ms))
    figures = {**seen.level.metrics, **turn_metrics([seen.inside], classes, seed=setting.seed)}
    seen = seen.with_(metrics=figures, steady=None)
    failures = (*asked.criteria.failures(seen), *_turn_failures(asked, seen), *_cut_off(asked, run))
    return seen.with_(passed=not failures, fail_reasons=failures)


def _turn_failures(asked: SessionsAsked, seen: Seen) -> list[str]:
    found = []
    for turns, limit in asked.turn_ttft_p95_ms.items():
        p95 = seen.point(f"turn_ttft[{turns}].p95")
        if p95 is None:
            found.append(f"TTFT P95 of turn {turns} not known")
        elif p95 > limit:
            found.append(f"TTFT P95 of turn {turns} {p95:.1f} ms (at most {limit:g} ms)")
    return found


def _cut_off(asked: SessionsAsked, run: Observation) -> list[str]:
    """Why the level fails for sessions that were cut off. A failed turn takes those after it along, which
    nobody sent and no share of requests shows."""
    jobs = jobs_of(run.records)
    if not len(jobs) or 1 - jobs.cut_off / len(jobs) >= asked.criteria.min_completion:
        return []
    least = asked.criteria.min_completion
    return [f"{jobs.cut_off} of {len(jobs)} sessions cut off (at least {least:.0%} complete)"]
