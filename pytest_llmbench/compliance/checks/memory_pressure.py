"""The memory pressure test (sections 5.8 and 7.4)."""

from __future__ import annotations

import math

from pytest_llmbench.compliance.capacity_evidence import is_narrow
from pytest_llmbench.compliance.checks.capacity import restarted
from pytest_llmbench.compliance.checks.levels import at_least_s
from pytest_llmbench.compliance.checks.registry import Checks, lacking_columns, one_of, stated
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.stored import has
from pytest_llmbench.compliance.tested_levels import Tested, close, names_of, percentile, tested
from pytest_llmbench.metrics.latency import ttft_ms
from pytest_llmbench.model.plan import ClosedLoop, SessionSlots
from pytest_llmbench.model.record import NO_FAILURES, Outcome
from pytest_llmbench.model.result import TestResult

check = Checks()

PRESSURE = ("baseline", "overload")
SHORTEST_S = 120.0
_COLUMNS = ("Oversub Level", "Complete", "Preempt", "Fail Rate", "TTFT P99")
_TURNS = "the requests are turns of sessions, so many sessions at once and no share of a capacity in flight"

check("S-5.8.2-workload")(one_of("workload.name", "long-context", "long-context-uniform"))
check("S-7.4-isolated-system")(one_of("isolation.isolated_system", True))
check("S-7.4-recovery-ready")(stated("isolation.recovery_plan"))


@check("S-7.4-cascade-monitoring")
def cascade_monitoring(view: EvidenceView) -> Answer:
    """A monitoring of the tester's own, or the probes of the test, which leave a recovery time per level."""
    watch = view.fact("isolation.failure_monitoring")
    if watch:
        return view.met(f"watched by {watch}")
    probe = view.need("isolation.health_probe")
    lacking = [
        one.label
        for one in tested(view, *PRESSURE)
        if f"recovery_time[{_percent(one)}]" not in view.result.metrics
    ]
    return view.answer(not lacking, probe, f"no probe after {', '.join(lacking)}")


def _percent(one: Tested) -> str:
    """The qualifier of the level's metrics; for sessions how many were active at once."""
    load = one.run.plan.load
    if isinstance(load, SessionSlots):
        return f"{load.sessions} sessions"
    percent = one.level.percent_of_capacity
    if percent is None:
        raise NoEvidenceError(f"percent_of_capacity of {one.label}")
    return f"{percent:g}%"


def _of_sessions(view: EvidenceView) -> bool:
    """Whether the requests are turns of sessions, which the draft does not know."""
    return any(isinstance(one.run.plan.load, SessionSlots) for one in tested(view, *PRESSURE))


@check("P-5.8.2-levels")
def levels(view: EvidenceView) -> Answer:
    """One level above capacity at least; each at ceil(capacity * percent / 100) in flight (AMB-19)."""
    if _of_sessions(view):
        return view.unmet(_TURNS)
    capacity = view.need("load.capacity_concurrency")
    found = tested(view, *PRESSURE)
    percents = [one.level.percent_of_capacity or 0.0 for one in found]
    view.note("percent_of_capacity", percents)
    wrong = [
        one
        for one, percent in zip(found, percents, strict=True)
        if not isinstance(one.run.plan.load, ClosedLoop)
        or one.run.plan.load.concurrency != math.ceil(capacity * percent / 100)
    ]
    return view.answer(
        max(percents) > 100 and not wrong,
        f"{', '.join(f'{percent:g} %' for percent in percents)} of {capacity} in flight",
        f"no level beyond capacity, or not at its share of {capacity}: {names_of(wrong)}",
    )


@check("P-5.8.3-capacity-first")
def capacity_first(view: EvidenceView) -> Answer:
    """A search of this test on its own workload, or a capacity test of this SUT with that workload. One that
    ended at its upper bound has found none: there is room above."""
    if _of_sessions(view):
        return view.unmet(_TURNS)
    capacity, name = view.need_all("load.capacity_concurrency", "workload.name")
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
            return view.unmet(f"nothing close above {best:g} in flight failed: the search found no capacity")
        return view.answer(
            best == capacity and before and same,
            f"{capacity} in flight by a search with {name}",
            f"{capacity} is stated, the search with {name} ahead of the levels says {best:g}",
        )
    found = [
        sibling.metrics["max_concurrency"].point
        for sibling in view.evidence.others("capacity")
        if sibling.facts.value("workload.name") == name and _has_failed(sibling)
    ]
    view.note("capacity_tests", found)
    return view.answer(
        capacity in found,
        f"{capacity} in flight by the capacity test of this report",
        f"{capacity} in flight rests on no capacity test of this SUT with {name}",
    )


def _has_failed(capacity_test: TestResult) -> bool:
    """Whether the search of a capacity test saw a level close above its result that does not hold."""
    stated = capacity_test.metrics.get("max_concurrency")
    if stated is None or stated.point is None:
        return False
    failed = [
        level.concurrency
        for level in capacity_test.levels
        if level.passed is False and (level.concurrency or 0) > stated.point
    ]
    return any(is_narrow(stated.point, concurrency or 0, "closed") for concurrency in failed)


@check("P-5.8.3-min-duration-120s")
def min_duration(view: EvidenceView) -> Answer:
    if _of_sessions(view):
        return view.unmet("the requests are turns of sessions: a level lasts for sessions, not for a time")
    return at_least_s(SHORTEST_S, *PRESSURE)(view)


@check("P-5.8.3-monitor")
def monitor(view: EvidenceView) -> Answer:
    """Completions and errors by kind as in the records; memory errors and restarts are told of."""
    for one in tested(view, *PRESSURE):
        counts = {str(name): n for name, n in one.records.counts().items() if n}
        errors = {name: n for name, n in counts.items() if name not in NO_FAILURES}
        level = one.level
        told = (level.n_submitted, level.n_ok, level.n_failed)
        ok = counts.get(Outcome.OK, 0)
        if told != (len(one.records), ok, int(one.records.failed.sum())) or dict(level.errors) != errors:
            return view.unmet(f"{one.label}: counts {told} and {dict(level.errors)}, records {counts}")
        notes = [note for note in view.result.notes if note.startswith(f"{_percent(one)}:")]
        for happened, word in ((one.out_of_memory > 0, "out-of-memory"), (restarted(one), "restarted")):
            if happened and not any(word in note for note in notes):
                return view.unmet(f"{one.label}: {word}, and nothing is said of it")
        view.note(f"{one.label}", counts)
    return view.met("completions, errors by kind, memory errors and restarts of every level")


@check("P-5.8.4-completion")
def completion(view: EvidenceView) -> Answer:
    for one in tested(view, *PRESSURE):
        again = one.completed
        rate = view.metric(f"completion_rate[{_percent(one)}]").point
        fail = view.metric(f"fail_rate[{_percent(one)}]").point
        if not close(rate, again, absolute=1e-9) or not close(fail, 1 - again, absolute=1e-9):
            return view.unmet(f"{one.label}: completion {rate} and fail rate {fail}, records {again:g}")
    return view.met("completion and fail rate of every level")


def _told(one: Tested) -> bool:
    return bool(has(one.records.preemptions).any())


@check("P-5.8.4-preemption-rate")
def preemption_rate(view: EvidenceView) -> Answer:
    """The preemption rate of every level agrees with the counts per request.

    Where there is only the engine's counter, events are given instead, and the answer says so.
    """
    for one in tested(view, *PRESSURE):
        known = has(one.records.preemptions)
        if not known.any():
            events = view.metric(f"preemptions_per_request[{_percent(one)}]")
            view.note(f"preemption events of {one.label}", events.point)
            continue
        again = float((one.records.preemptions[known] > 0).mean())
        rate = view.metric(f"preemption_rate[{_percent(one)}]").point
        if not close(rate, again, absolute=1e-9):
            return view.unmet(f"{one.label}: preemption rate {rate}, the records give {again:g}")
    return view.met("share of preempted requests at every level")


@check("P-5.8.4-preemption-recovery")
def preemption_recovery(view: EvidenceView) -> Answer:
    """Preempted requests that finish; or why that cannot be said of a level."""
    for one in tested(view, *PRESSURE):
        preempted = one.records.judged & (one.records.preemptions > 0)
        estimate = view.result.metrics.get(f"preemption_recovery_rate[{_percent(one)}]")
        if estimate is None:
            raise NoEvidenceError(f"metric preemption_recovery_rate[{_percent(one)}]")
        if estimate.point is None:
            silent = (one.records.failed & ~has(one.records.preemptions)).any()
            if preempted.any() and not silent:
                return view.unmet(f"{one.label}: not reported, though the records tell it")
            continue
        again = float(one.records.ok[preempted].mean()) if preempted.any() else 0.0
        if not close(estimate.point, again, absolute=1e-9):
            return view.unmet(f"{one.label}: recovery {estimate.point}, the records give {again:g}")
    return view.met("share of preempted requests that finish, where one was preempted")


@check("P-5.8.4-preemption-loss")
def preemption_loss(view: EvidenceView) -> Answer:
    """Tokens thrown away per preemption event."""
    for one in tested(view, *PRESSURE):
        records = one.records
        known = has(records.preemptions) & has(records.preempted_tokens) & (records.preemptions > 0)
        events = int(records.preemptions[known].sum())
        estimate = view.result.metrics.get(f"preemption_loss[{_percent(one)}]")
        if estimate is None:
            raise NoEvidenceError(f"metric preemption_loss[{_percent(one)}]")
        again = int(records.preempted_tokens[known].sum()) / events if events else None
        if (again is None) != (estimate.point is None):
            return view.unmet(f"{one.label}: loss {estimate.point}, the records give {again}")
        if again is not None and not close(estimate.point, again):
            return view.unmet(f"{one.label}: loss {estimate.point}, the records give {again:g}")
    return view.met("tokens lost per preemption, where one happened")


@check("P-5.8.5-table")
def table(view: EvidenceView) -> Answer:
    """One row per level, the base among them, with the P99 of its records."""
    if _of_sessions(view):
        return view.unmet(_TURNS)
    found, run = view.table("memory_pressure"), tested(view, *PRESSURE)
    lacking = lacking_columns(found, *_COLUMNS)
    titles = [row[0] for row in found.rows]
    if not any(title.startswith("100%") for title in titles):
        lacking.append("the 100 % base")
    lacking += [_percent(one) for one in run if not any(t.startswith(_percent(one)) for t in titles)]
    for one in run:
        values = ttft_ms(one.inside)
        if len(values) and not close(one.point("ttft.p99"), percentile(values, "p99")):
            lacking.append(f"the right TTFT P99 of {one.label}")
    return view.answer(not lacking, f"{len(titles)} levels", f"lacking: {', '.join(lacking)}")
