"""The capacity test (section 5.5): criteria, load levels, search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks, lacking_columns
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.stored import has
from pytest_llmbench.compliance.tested_levels import Tested, close, names_of, percentile, tested
from pytest_llmbench.metrics.in_flight import tokens_in_flight
from pytest_llmbench.metrics.latency import ttft_ms
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.plan import ClosedLoop

check = Checks()

LEAST_COMPLETION = 0.99
LARGEST_SPREAD_NS = 100_000_000
LEAST_IN_FLIGHT = 0.99
SHORTEST_S, COMPLETIONS_PER_SLOT = 60.0, 100
GAP_SHARE = 0.05
_COLUMNS = ("Concurrency", "Completion", "TTFT P99", "TPOT P99", "Errors", "Status")


@check("S-5.5.2-workload")
def synthetic_uniform(view: EvidenceView) -> Answer:
    """Nothing of the workload is changed but the output length, and that change is declared (AMB-11)."""
    name, changes = view.need("workload.name"), view.fact("workload.deviations", [])
    other = [change.get("what") for change in changes if change.get("what") != "output_length"]
    return view.answer(
        name == "synthetic-uniform" and not other,
        "synthetic-uniform" + (" with a fixed output length (AMB-11)" if changes else ""),
        f"the workload is {name}" + (f", with changes of {other}" if other else ""),
    )


@check("P-5.5.2-fixed-output")
def fixed_output(view: EvidenceView) -> Answer:
    """One limit for all requests, and the realised lengths shown."""
    limits = np.unique(view.records.requested_max_tokens)
    view.note("requested_max_tokens", limits.tolist())
    shown = any("output tokens of the replies" in note for note in view.result.notes)
    return view.answer(
        len(limits) == 1 and limits[0] > 0 and shown,
        f"{limits[0]} output tokens for every request, realised lengths shown",
        f"{len(limits)} different output limits"
        if len(limits) != 1
        else "the lengths of the replies are not shown",
    )


def _bounds(view: EvidenceView) -> tuple[int, int]:
    values = view.need("load.concurrency_range")
    if not isinstance(values, Sequence) or len(values) < 2:
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
        f"from {initial} up to {maximum}, the first level had {first.value:g} in flight",
    )


@check("P-5.5.2-criterion-completion-99")
def completion_99(view: EvidenceView) -> Answer:
    levels = tested(view)
    shares = {one.label: one.completed for one in levels}
    view.note("completion", shares)
    wrong = [one for one in levels if one.level.passed and shares[one.label] < LEAST_COMPLETION]
    return view.answer(
        not wrong and all(one.level.passed is not None for one in levels),
        "no level passes with less than 99 % completed",
        f"passed with less than 99 % completed, or not judged: {names_of(wrong)}",
    )


@check("P-5.5.2-criterion-ttft-p99")
def ttft_threshold(view: EvidenceView) -> Answer:
    """The threshold is mandatory in this test."""
    (threshold,) = view.need_fields("load.slo", "ttft_p99_ms")
    levels = tested(view)
    tails = {one.label: _tail_ms(one) for one in levels}
    view.note("ttft_p99_ms", tails)
    wrong = [one for one in levels if one.level.passed and not (tails[one.label] or np.inf) <= threshold]
    return view.answer(
        not wrong,
        f"no level passes with TTFT P99 above {threshold:g} ms",
        f"passed with TTFT P99 above {threshold:g} ms: {names_of(wrong)}",
    )


def _tail_ms(one: Tested) -> float | None:
    values = ttft_ms(one.inside)
    return percentile(values, "p99") if len(values) else None


@check("P-5.5.2-criterion-no-oom")
def no_out_of_memory(view: EvidenceView) -> Answer:
    """The rule for such errors is stated; no level passes with one, or with a restart of the engine."""
    rule = view.need("load.out_of_memory_rule")
    levels = tested(view)
    view.note("out_of_memory_errors", {one.label: one.out_of_memory for one in levels})
    wrong = [one for one in levels if one.level.passed and (one.out_of_memory or restarted(one))]
    return view.answer(
        not wrong, f"no level passes with {rule}", f"passed out of memory, or restarted: {names_of(wrong)}"
    )


def restarted(one: Tested) -> bool:
    """Whether a counter of the engine fell during the run."""
    engine = one.run.engine
    if engine is None:
        return False
    return any(
        engine.totals_after.get(name, before) < before for name, before in engine.totals_before.items()
    )


def _closed(view: EvidenceView) -> list[tuple[Tested, int]]:
    levels = []
    for one in tested(view):
        if not isinstance(one.run.plan.load, ClosedLoop):
            raise NoEvidenceError(f"a closed loop of requests at {one.label}")
        levels.append((one, one.run.plan.load.concurrency))
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
        f"all slots start within {worst / 1e6:.3f} ms",
        f"the slots start over {worst / 1e6:.1f} ms, 100 ms is the limit",
    )


@check("P-5.5.3-maintain-concurrency")
def concurrency_maintained(view: EvidenceView) -> Answer:
    shares = {
        one.label: float(np.mean(one.in_flight_means)) / slots
        for one, slots in _closed(view)
        if one.window_s > 0
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
        view.note(f"{one.label}", f"{one.lasted_s:.2f} s, {ended} ended")
        stopped = one.level.passed is False and one.run.stopped is not None
        if not stopped and (one.lasted_s < SHORTEST_S or ended < COMPLETIONS_PER_SLOT * slots):
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
        flagged = stated.reason is Reason.RANGE_ENDED
        return view.answer(
            best == _bounds(view)[1] and flagged,
            f"the upper bound {best} passed, and it is said so",
            f"nothing above {best} failed, and it is not the upper bound, or not said to be",
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
    """Throughput and tokens in flight at the highest passing level, once more from its records."""
    best = view.metric("max_concurrency").point
    chosen = [one for one in tested(view) if one.level.passed and one.value == best]
    if not chosen:
        return view.answer(best == 0, "no level passed", f"no level with {best} in flight passed")
    rate = chosen[0].output_tokens / chosen[0].window_s
    held = tokens_in_flight(chosen[0].window).point
    if held is None:
        raise NoEvidenceError("record.input_tokens")
    view.note("tokens_in_flight.from_records", held)
    stated = view.metric("output_token_throughput").point, view.metric("tokens_in_flight").point
    agree = close(stated[0], rate) and close(stated[1], held)
    return view.answer(
        agree,
        f"{best:g} in flight, {rate:.1f} tok/s, {held:.0f} tokens in flight",
        f"{stated[0]} tok/s and {stated[1]} tokens in flight, the records give {rate:g} and {held:g}",
    )


@check("P-5.5.5-table")
def search_table(view: EvidenceView) -> Answer:
    """A row for every tested concurrency, and the closing line with the maximum."""
    table, levels = view.table("capacity_search"), tested(view)
    lacking = lacking_columns(table, *_COLUMNS)
    shown = [row[0] for row in table.rows]
    lacking += [one.label for one in levels if f"{one.value:g}" not in shown]
    best = view.metric("max_concurrency").point
    line = f"meeting criteria: {best:g}" if best else "meeting criteria: none"
    if not any(line in note for note in view.result.notes):
        lacking.append("the closing line")
    return view.answer(not lacking, f"{len(shown)} levels", f"lacking: {', '.join(lacking)}")
