"""The memory pressure test (sections 5.8 and 7.4)."""

from __future__ import annotations

import math

from pytest_llmbench.compliance.checks.levels import (
    Tested,
    at_least_s,
    is_narrow,
    names_of,
    of_sessions,
    tested,
)
from pytest_llmbench.compliance.checks.registry import Checks, declared, figures, one_of, stated
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.model.draft import PRESSURE_S
from pytest_llmbench.model.facts import IsolationFact, LoadFact, WorkloadFact
from pytest_llmbench.model.numbers import percent_label, trimmed
from pytest_llmbench.model.record import NO_FAILURES, Outcome

check = Checks()

PRESSURE = ("baseline", "overload")
_TURNS = "the requests are turns of sessions, so many sessions at once and no share of a capacity in flight"

check("S-5.8.2-workload")(one_of(WorkloadFact.NAME, "long-context", "long-context-uniform"))
check("S-7.4-isolated-system")(
    declared(
        IsolationFact.ISOLATED_SYSTEM,
        "nobody else uses the system during the overload",
        "others use the system during the overload",
    )
)
check("S-7.4-recovery-ready")(stated(IsolationFact.RECOVERY_PLAN))


@check("S-7.4-cascade-monitoring")
def cascade_monitoring(view: EvidenceView) -> Answer:
    """A monitoring of the tester's own, or the probes of the test, which leave a recovery time per level."""
    watch = view.fact(IsolationFact.FAILURE_MONITORING)
    if watch:
        return view.met(f"watched by {watch}")
    probe = view.need(IsolationFact.HEALTH_PROBE)
    lacking = [
        one.label
        for one in tested(view, *PRESSURE)
        if f"recovery_time[{_percent(one)}]" not in view.result.metrics
    ]
    return view.answer(not lacking, probe, f"no probe after {', '.join(lacking)}")


def _percent(one: Tested) -> str:
    """The qualifier of the level's metrics; for sessions how many were active at once."""
    load = one.run.plan.load
    if load.of_sessions:
        return f"{load.in_flight} sessions"
    percent = one.level.percent_of_capacity
    if percent is None:
        raise NoEvidenceError(f"percent_of_capacity of {one.label}")
    return percent_label(percent)


@check("P-5.8.2-levels")
def levels(view: EvidenceView) -> Answer:
    """One level above capacity at least; each at ceil(capacity * percent / 100) in flight (AMB-19)."""
    if of_sessions(view, *PRESSURE):
        return view.unmet(_TURNS)
    capacity = view.need(LoadFact.CAPACITY_CONCURRENCY)
    found = tested(view, *PRESSURE)
    percents = [one.level.percent_of_capacity or 0.0 for one in found]
    view.note("percent_of_capacity", percents)
    wrong = [
        one
        for one, percent in zip(found, percents, strict=True)
        if one.run.plan.load.requests_in_flight != math.ceil(capacity * percent / 100)
    ]
    return view.answer(
        max(percents) > 100 and not wrong,
        f"{', '.join(f'{trimmed(percent)} %' for percent in percents)} of {capacity} in flight",
        f"no level beyond capacity, or not at its share of {capacity}: {names_of(wrong)}",
    )


@check("P-5.8.3-capacity-first")
def capacity_first(view: EvidenceView) -> Answer:
    """A search of this test on its own workload, or a capacity test of this SUT with that workload. One that
    ended at its upper bound has found none: there is room above."""
    if of_sessions(view, *PRESSURE):
        return view.unmet(_TURNS)
    capacity, name = view.need_all(LoadFact.CAPACITY_CONCURRENCY, WorkloadFact.NAME)
    probes = [level for level in view.result.levels if level.role == "probe"]
    if probes:
        search = tested(view, "probe")
        passed = [one for one in search if one.level.passed]
        first = min(one.run.started_ns for one in tested(view, *PRESSURE))
        before = all(one.run.started_ns < first for one in search)
        same = all(one.run.plan.workload.name == name for one in search)
        best = max((one.value for one in passed), default=0)
        failed = [one.value for one in search if one.level.passed is False and one.value > best]
        if not failed or not is_narrow(best, min(failed), "closed"):
            return view.unmet(
                f"nothing close above {trimmed(best)} in flight failed: the search found no capacity"
            )
        return view.answer(
            best == capacity and before and same,
            f"{capacity} in flight by a search with {name}",
            f"{capacity} is stated, the search with {name} ahead of the levels says {trimmed(best)}",
        )
    found = []
    for sibling in view.evidence.others("capacity"):
        stated_ = sibling.metrics.get("max_concurrency")
        if sibling.facts.value(WorkloadFact.NAME) != name or stated_ is None or stated_.point is None:
            continue
        failed = [level.concurrency or 0 for level in sibling.levels if level.passed is False]
        if any(each > stated_.point and is_narrow(stated_.point, each, "closed") for each in failed):
            found.append(stated_.point)
    view.note("capacity_tests", found)
    return view.answer(
        capacity in found,
        f"{capacity} in flight by the capacity test of this report",
        f"{capacity} in flight rests on no capacity test of this SUT with {name}",
    )


@check("P-5.8.3-min-duration-120s")
def min_duration(view: EvidenceView) -> Answer:
    if of_sessions(view, *PRESSURE):
        return view.unmet("the requests are turns of sessions: a level lasts for sessions, not for a time")
    return at_least_s(PRESSURE_S, *PRESSURE)(view)


def _percents(view: EvidenceView) -> list[str]:
    return [_percent(one) for one in tested(view, *PRESSURE)]


@check("P-5.8.3-monitor")
def monitor(view: EvidenceView) -> Answer:
    """Completions and errors by kind of every level, as its records have them; memory errors and restarts."""
    levels = tested(view, *PRESSURE)
    for one in levels:
        seen = {**one.level.errors, "out of memory": one.out_of_memory, "restarted": one.restarted}
        view.note(one.label, seen)
    wrong = []
    for one in levels:
        counts = one.records.counts()
        errors = {name: count for name, count in counts.items() if count and name not in NO_FAILURES}
        told = {name: count for name, count in one.level.errors.items() if count}
        if one.level.n_ok != counts[Outcome.OK] or told != errors:
            wrong.append(one)
    return view.answer(
        not wrong,
        "completions, errors by kind, memory errors and restarts of every level",
        f"not the completions and errors of the records: {names_of(wrong)}",
    )


check("P-5.8.4-completion")(figures("completion_rate[{}]", "fail_rate[{}]", of_every=_percents))
check("P-5.8.4-preemption-recovery")(
    figures("preemption_recovery_rate[{}]", of_every=_percents, defined=False)
)
check("P-5.8.4-preemption-loss")(figures("preemption_loss[{}]", of_every=_percents, defined=False))


@check("P-5.8.4-preemption-rate")
def preemption_rate(view: EvidenceView) -> Answer:
    """Where replies do not tell of preemptions the engine's counter gives events instead."""
    for one in tested(view, *PRESSURE):
        told = bool(has(one.records.preemptions).any())
        view.metric(f"{'preemption_rate' if told else 'preemptions_per_request'}[{_percent(one)}]")
    return view.met("share of preempted requests at every level")


@check("P-5.8.5-table")
def table(view: EvidenceView) -> Answer:
    """The levels, the 100 % base among them."""
    if of_sessions(view, *PRESSURE):
        return view.unmet(_TURNS)
    view.table("memory_pressure")
    percents = [one.level.percent_of_capacity for one in tested(view, *PRESSURE)]
    return view.answer(100.0 in percents, f"{len(percents)} levels", "lacking: the 100 % base")
