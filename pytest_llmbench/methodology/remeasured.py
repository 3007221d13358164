"""A load that is void for a cause on the generator's own host is measured again, ``Setting.remeasure`` times.

It may have been a passing disturbance: a neighbour, a virtual machine whose core was given away. The void
attempts are in the records and counted in the report, and no figure rests on them. The last one counts
whatever it is, and voids the test if it has to.

Only what this machine did is a reason to measure again, never what the system under test did: slow answers,
errors, a buffered stream that was read in time, a server that is slow to take a request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_llmbench.methodology.measuring.offered import begun_late, gave_up, is_offered, shortfalls
from pytest_llmbench.methodology.measuring.validity import (
    filters_output,
    read_late,
    stream_fidelity,
)
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.uncertainty import FULL_CORE_SHARE, spoiled
from pytest_llmbench.metrics.latency import lag_limit_ns
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import percentage, quantity, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.result import NOT_OFFERED, VoidLoad
from pytest_llmbench.model.sentences import Note

if TYPE_CHECKING:
    from pytest_llmbench.methodology.measuring.levels import Seen

FAILED_SHARE = 0.1
"""The share of failed requests beyond which the system is the cause, however late the sends were: a server
that is gone is not asked again."""


def disturbed(run: Observation, *, gaps: bool = False) -> bool:
    """Whether the load is void with this machine as the only cause.

    ``gaps``: the test is about the time between tokens.
    """
    if gave_up(run):  # what was in flight was given up with it
        return True
    completed = run.records.ok_share
    return (completed is None or 1.0 - completed <= FAILED_SHARE) and (
        begun_late(run) or bool(_ran_together(run)) or bool(_spoiled(run, gaps))
    )


def void_causes(run: Observation, *, gaps: bool = False) -> tuple[str, ...]:
    """Why the load says nothing about the system; empty where it does."""
    return (*shortfalls(run), *_ran_together(run), *(finding.message for finding in _spoiled(run, gaps)))


def _spoiled(run: Observation, gaps: bool = False) -> tuple[Finding, ...]:
    """The findings on a load that was read or refilled too late for its figures.

    There are none for a load that was cut short: that is what makes it void.
    """
    return spoiled(run, gaps=gaps) if run.interrupted is None else ()


def _ran_together(run: Observation) -> tuple[str, ...]:
    """The cause, in words, if a stream looks buffered and was read late: chunks that wait in a socket get one
    stamp. Else empty."""
    finding = stream_fidelity(run.records, run.host_limits.buffered_share, late=True)
    late = read_late(run) and not filters_output(run)
    return () if finding is None or finding.ok or not late else (finding.message,)


def of_this_machine(run: Observation) -> tuple[str, ...]:
    """Names of the validity checks that a disturbed run fails on account of this machine."""
    names = ["send_lag", "send_lag_growth", "achieved_rate"] if begun_late(run) else []
    names += ["complete", "all_requests_recorded"] if gave_up(run) else []
    names += [finding.check for finding in _spoiled(run)]
    return (*names, *(["stream_fidelity"] if _ran_together(run) else []))


@dataclass(frozen=True, slots=True)
class Attempts:
    """All attempts at one level."""

    runs: tuple[Seen, ...]

    @property
    def level(self) -> Seen:
        """The run that counts for the level: the last one."""
        return self.runs[-1]

    @property
    def offered(self) -> bool:
        return is_offered(self.level.level)

    @property
    def notes(self) -> tuple[Note, ...]:
        label = self.level.level.label
        if not self.offered:
            return (Note.of("beyond_generator", level=label, causes=_told_causes(self.level.observation)),)
        return tuple(measured_again(void_load(run.observation, label)) for run in self.runs[:-1])


def attempted(
    plan: Callable[[], LoadPlan],
    see: Callable[[Observation], Seen],
    remeasure: int,
    *,
    needed: bool = False,
    prepare: Callable[[], Procedure[None]] | None = None,
    gaps: bool = False,
    at_stake: Sequence[Objective] = (),
) -> Procedure[Attempts]:
    """Run a level, and up to ``remeasure`` times again if this machine disturbed the generator.

    ``plan`` is asked before each run, so that the next can have requests of its own; ``see`` takes note of
    what was sent. ``needed``: the test cannot do without the level, so its last run counts, and voids the
    test if that fell behind too. ``prepare`` comes before each further run: it brings the system back into
    the state in which the first one found it, where the same requests have to be sent again. ``gaps``: the
    test is about the time between tokens. ``at_stake``: see :class:`Observation`.
    """
    runs: list[Seen] = []
    for attempt in range(1, remeasure + 2):
        if attempt > 1 and prepare is not None:
            yield from prepare()
        observation = replace((yield plan().with_(attempt=attempt)), at_stake=tuple(at_stake))
        seen = see(observation)
        last = attempt > remeasure or not disturbed(observation, gaps=gaps)
        if not void_causes(observation, gaps=gaps) or (needed and last):
            return Attempts((*runs, seen))
        role = f"{seen.level.role}{NOT_OFFERED}"
        nothing = {"saturated": None, "overloaded": None, "saturation_reasons": (), "passed": None}
        runs.append(seen.with_(role=role, **nothing))
        if last:
            break
    return Attempts(tuple(runs))


def same_requests_again(setting: Setting, variant: str) -> int:
    """How often a load of the very same requests may be measured again: not at all where a prefix cache could
    still hold them, since it cannot be emptied and is not known to be off."""
    info = setting.variants.get(variant)
    facts = setting.facts if info is None else setting.facts | info.facts
    forgets = facts.value(SUTFact.PREFIX_CACHING) == "disabled" or (info is not None and info.can_be_fresh)
    return setting.remeasure if forgets else 0


def void_load(run: Observation, label: str) -> VoidLoad:
    return VoidLoad(label, run.plan.attempt, len(run.records), _told_causes(run))


def _told_causes(run: Observation) -> tuple[str, ...]:
    """The causes of a void load, in words; its gaps if nothing else is wrong with it."""
    return void_causes(run) or void_causes(run, gaps=True)


def host_text(run: Observation) -> str:
    """One line on a load that this machine spoiled: what happened, what shows it, and what helps."""
    check = run.selfcheck
    full = check.cpu_share is not None and check.cpu_share > FULL_CORE_SHARE
    late_ns = check.send_lag_p99_ns if begun_late(run) else check.loop_lag_p99_ns
    by = "" if late_ns is None else f" {quantity(late_ns / 1e6, 'ms')}"
    what = f"the load generator fell{by} behind" if full else f"this machine woke up{by} late"
    helps = "lower the rate or give more --llm-workers" if full else "free its CPU"
    attempts = "1 attempt" if run.plan.attempt == 1 else f"{run.plan.attempt} attempts"
    return f"{what}, measured by: {'; '.join(_evidence(run))}; {attempts} void: {helps}"


def _evidence(run: Observation) -> list[str]:
    check, load = run.selfcheck, run.plan.load
    told = [] if run.interrupted is None else [run.interrupted]
    if load.request_rate is not None and check.send_lag_p99_ns is not None:
        late = check.send_lag_p99_ns / 1e6
        limit = lag_limit_ns(load.request_rate, run.host_limits.send_lag_ns) / 1e6
        told.append(
            f"sends behind their schedule by {quantity(late, 'ms')} at P99 (limit {trimmed(limit)} ms)"
        )
    if _ran_together(run):
        told += _ran_together(run)
        if check.loop_lag_p99_ns is not None:
            told.append(f"the measuring loop late by {quantity(check.loop_lag_p99_ns / 1e6, 'ms')} at P99")
    told += [finding.message for finding in _spoiled(run)]
    if check.waited_for_core_share is not None:
        told.append(
            f"ready to run and without a core for {percentage(check.waited_for_core_share)} of the time"
        )
    if check.stolen_share:
        told.append(f"{percentage(check.stolen_share)} of the CPU stolen by the hypervisor")
    if check.cpu_share is not None and check.cpu_share > FULL_CORE_SHARE:
        told.append(f"{percentage(check.cpu_share)} of a core used by the measuring process")
    if check.priority:
        told.append(f"priority {check.priority}")
    return told


def measured_again(void: VoidLoad) -> Note:
    """The note in the report on a load that was measured again."""
    return Note.of("measured_again", level=void.label, attempt=void.attempt, causes=void.causes)
