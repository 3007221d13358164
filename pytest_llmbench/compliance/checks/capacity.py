"""The capacity test (section 5.5): criteria, load levels, search."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.compliance.checks.levels import Tested, names_of, tested
from pytest_llmbench.compliance.checks.registry import Checks, tables
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.metrics.balance import growth_in_flight
from pytest_llmbench.model.draft import COMPLETIONS_OF_A_SLOT, GAP_SHARE, LEAST_COMPLETION, SHORTEST_LEVEL_S
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.facts import LoadFact, WorkloadFact
from pytest_llmbench.model.numbers import quantity, trimmed

check = Checks()

LARGEST_SPREAD_NS = 100_000_000
LEAST_IN_FLIGHT = 0.99


@check("S-5.5.2-workload")
def synthetic_uniform(view: EvidenceView) -> Answer:
    """Nothing of the workload is changed but the output length, and that change is declared (AMB-11)."""
    name, changes = view.need(WorkloadFact.NAME), view.fact(WorkloadFact.DEVIATIONS, [])
    other = [change.get("what") for change in changes if change.get("what") != "output_length"]
    return view.answer(
        name == "synthetic-uniform" and not other,
        "synthetic-uniform" + (" with a fixed output length (AMB-11)" if changes else ""),
        f"the workload is {name}" + (f", with changes of {other}" if other else ""),
    )


@check("P-5.5.2-fixed-output")
def fixed_output(view: EvidenceView) -> Answer:
    """One limit for all requests, and the realised lengths known."""
    records = view.records
    limits = np.unique(records.requested_max_tokens)
    view.note("requested_max_tokens", limits.tolist())
    if not has(records.output_tokens[records.ok]).any():
        raise NoEvidenceError("record.output_tokens")
    return view.answer(
        len(limits) == 1 and limits[0] > 0,
        f"{limits[0]} output tokens for every request",
        f"{len(limits)} different output limits",
    )


def _bounds(view: EvidenceView) -> tuple[int, int]:
    values = view.need(LoadFact.CONCURRENCY_RANGE)
    if len(values) < 2:
        raise NoEvidenceError("load.concurrency_range [initial, maximum, step]")
    return int(values[0]), int(values[1])


@check("P-5.5.2-search-bounds")
def search_bounds(view: EvidenceView) -> Answer:
    """A first and a larger concurrency, so that there is something to search; it begins with the first."""
    initial, maximum = _bounds(view)
    first = min(tested(view), key=lambda one: one.run.started_ns)
    return view.answer(
        1 <= initial < maximum and first.value == initial,
        f"from {initial} up to {maximum}",
        f"from {initial} up to {maximum}, the first level had {trimmed(first.value)} in flight",
    )


@check("P-5.5.2-criterion-completion-99")
def completion_99(view: EvidenceView) -> Answer:
    levels = tested(view)
    view.note("completion", {one.label: one.level.completion_ratio for one in levels})
    wrong = [one for one in levels if one.level.passed is None]
    wrong += [
        one for one in levels if one.level.passed and (one.level.completion_ratio or 0) < LEAST_COMPLETION
    ]
    return view.answer(
        not wrong,
        "no level passes with less than 99 % completed",
        f"passed with less than 99 % completed, or not judged: {names_of(wrong)}",
    )


@check("P-5.5.2-criterion-ttft-p99")
def ttft_threshold(view: EvidenceView) -> Answer:
    """The threshold is mandatory in this test."""
    (threshold,) = view.need_fields(LoadFact.SLO, "ttft_p99_ms")
    passed = [one for one in tested(view) if one.level.passed]
    wrong = [one for one in passed if one.point("ttft.p99") > threshold]
    return view.answer(
        not wrong,
        f"no level passes with TTFT P99 above {trimmed(threshold)} ms",
        f"passed with TTFT P99 above {trimmed(threshold)} ms: {names_of(wrong)}",
    )


@check("P-5.5.2-criterion-no-oom")
def no_out_of_memory(view: EvidenceView) -> Answer:
    """The rule for such errors is stated; no level passes with one, or with a restart of the engine."""
    rule = view.need(LoadFact.OUT_OF_MEMORY_RULE)
    levels = tested(view)
    view.note("out_of_memory_errors", {one.label: one.out_of_memory for one in levels})
    wrong = [one for one in levels if one.level.passed and (one.out_of_memory or one.restarted)]
    return view.answer(
        not wrong, f"no level passes with {rule}", f"passed out of memory, or restarted: {names_of(wrong)}"
    )


def _closed(view: EvidenceView) -> list[tuple[Tested, int]]:
    levels = []
    for one in tested(view):
        slots = one.run.plan.load.requests_in_flight
        if slots is None:
            raise NoEvidenceError(f"a closed loop of requests at {one.label}")
        levels.append((one, slots))
    return levels


@check("P-5.5.3-simultaneous-start")
def simultaneous_start(view: EvidenceView) -> Answer:
    spreads = {}
    for one, slots in _closed(view):
        starts = np.sort(one.records.dispatched_ns[has(one.records.dispatched_ns)])[:slots]
        if len(starts) < slots:
            return view.unmet(f"{one.label}: {len(starts)} requests were dispatched")
        spreads[one.label] = int(starts[-1] - starts[0])
    view.note("spread_of_the_start_ns", spreads)
    worst = max(spreads.values())
    return view.answer(
        worst <= LARGEST_SPREAD_NS,
        f"all slots start within {quantity(worst / 1e6, 'ms')}",
        f"the slots start over {quantity(worst / 1e6, 'ms')}, 100 ms is the limit",
    )


@check("P-5.5.3-maintain-concurrency")
def concurrency_maintained(view: EvidenceView) -> Answer:
    shares = {
        one.label: float(np.mean(growth_in_flight(one.window).means)) / slots
        for one, slots in _closed(view)
        if one.window.duration_s > 0
    }
    view.note("mean_in_flight_over_concurrency", shares)
    low = [label for label, share in shares.items() if share < LEAST_IN_FLIGHT]
    return view.answer(
        not low and bool(shares),
        "99 % or more of the slots were filled in every window",
        f"fewer than 99 % of the slots were filled: {', '.join(low)}",
    )


@check("P-5.5.3-level-duration")
def level_duration(view: EvidenceView) -> Answer:
    """60 s and 100 completions per slot; a level that failed may have been stopped early."""
    short = []
    for one, slots in _closed(view):
        ended = int(has(one.records.finished_ns).sum())
        view.note(one.label, f"{quantity(one.lasted_s, 's')}, {ended} ended")
        stopped = one.level.passed is False and one.run.stopped is not None
        if not stopped and (one.lasted_s < SHORTEST_LEVEL_S or ended < COMPLETIONS_OF_A_SLOT * slots):
            short.append(one)
    return view.answer(
        not short,
        "every level lasted 60 s and 100 completions per slot",
        f"shorter than 60 s or 100 completions per slot: {names_of(short)}",
    )


@check("P-5.5.3-binary-search")
def binary_search(view: EvidenceView) -> Answer:
    """Highest pass and lowest fail within max(1, 5 %); or the bound passed; or not even one in flight did."""
    levels = _closed(view)
    passed = [slots for one, slots in levels if one.level.passed]
    best = max(passed, default=0)
    failed = [slots for one, slots in levels if one.level.passed is False and slots > best]
    stated = view.metric("max_concurrency")
    view.note("passed", sorted(passed))
    view.note("failed", sorted(failed))
    if stated.point != best:
        return view.unmet(f"{stated.point} is reported, the highest level that passed has {best} in flight")
    if not failed:
        return view.answer(
            best == _bounds(view)[1] and stated.reason is Reason.RANGE_ENDED,
            f"the upper bound {best} passed",
            f"nothing above {best} failed, and it is not the upper bound",
        )
    if not passed:
        return view.answer(min(failed) == 1, "not even one request passes", "1 in flight was not tested")
    gap = min(failed) - best
    return view.answer(
        gap <= max(1.0, GAP_SHARE * best),
        f"{best} passes, {min(failed)} fails",
        f"between {best}, which passes, and {min(failed)} lies more than 5 %",
    )


@check("P-5.5.4-measurements")
def measurements(view: EvidenceView) -> Answer:
    """Throughput and tokens in flight at the highest passing level."""
    best = view.metric("max_concurrency").point
    if not best:
        return view.met("no level passed")
    view.need_metrics(("output_token_throughput", "tokens_in_flight"))
    return view.met(f"throughput and tokens in flight at {trimmed(best)}")


check("P-5.5.5-table")(tables("capacity_search"))
