"""The throughput test (section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pytest_llmbench.compliance.capacity_evidence import WIDEST_BRACKET, is_narrow
from pytest_llmbench.compliance.checks.levels import REPORTED, at_least_s, overloaded, percentiles_agree
from pytest_llmbench.compliance.checks.registry import Checks, lacking_columns, lacking_rows, one_of
from pytest_llmbench.compliance.checks.ttft import workload_defined
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.tested_levels import (
    FAMILIES,
    Tested,
    close,
    names_of,
    percentile,
    tested,
)
from pytest_llmbench.metrics.throughput import completions, input_tokens
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.result import PROBE

check = Checks()

SHORTEST_S, ADVISED_S = 60.0, 300.0
CONSTRAINED = "constrained"
LIMITS = {"ttft_p99_ms": "ttft", "tpot_p99_ms": "tpot"}
_FAMILIES, _STATISTICS = ("ttft", "tpot", "e2e"), ("p50", "p95", "p99")
_SUMMARY_ROWS = (
    "Max Output Throughput",
    "Max Request Throughput",
    "Max Input Throughput",
    "Sustainable Load",
    "Tokens per GPU-second",
)
_STEP_TOLERANCE = 0.01
"""Tolerance of steps between rates: rates of plans have three or four digits."""

check("M-5.2.2.1-workload-defined")(workload_defined)
check("P-5.3.2-workload-named")(workload_defined)
check("M-5.2.2.2-load-model-defined")(one_of("load.model", "open", "closed"))
check("P-5.2.2.1-min-duration-60s")(at_least_s(SHORTEST_S))
check("S-5.2.2.1-duration-300s")(at_least_s(ADVISED_S, REPORTED))


@check("M-5.2.2.1-duration-defined")
def duration_defined(view: EvidenceView) -> Answer:
    duration_s = view.need("load.duration_s")
    return view.answer(duration_s > 0, f"{duration_s:g} s per level", f"{duration_s!r} s is no duration")


def _range(view: EvidenceView, key: str) -> tuple[float, float, float]:
    values = view.need(key)
    if not isinstance(values, Sequence) or len(values) != 3:
        raise NoEvidenceError(f"{key} [minimum, maximum, step]")
    low, high, step = values
    return float(low), float(high), float(step)


def _range_defined(view: EvidenceView, key: str) -> Answer:
    low, high, step = _range(view, key)
    return view.answer(
        0 < low < high and step > 0,
        f"from {low:g} to {high:g} in steps of {step:g}",
        f"from {low:g} to {high:g} in steps of {step:g} is no range",
    )


@check("M-5.2.2.2-open-loop-range")
def open_loop_range(view: EvidenceView) -> Answer:
    return _range_defined(view, "load.rate_range")


@check("M-5.2.2.2-closed-loop-range")
def closed_loop_range(view: EvidenceView) -> Answer:
    return _range_defined(view, "load.concurrency_range")


@check("P-5.2.2.3-slo-semantics")
def slo_semantics(view: EvidenceView) -> Answer:
    """The reported level keeps every limit, the next tested higher one does not, by their records."""
    limits = {name: value for name, value in view.need("load.slo").items() if name in LIMITS}
    everything = tested(view)
    chosen = [one for one in everything if one.level.role == CONSTRAINED]
    chosen = chosen or [one for one in everything if one.level.role == REPORTED and _keeps(view, one, limits)]
    if not chosen:
        under = view.result.metrics.get("constrained_output_token_throughput")
        if under is not None and under.point is not None:
            return view.unmet("a throughput under the limits is reported, and no level keeps them")
        return view.answer(
            not any(_keeps(view, one, limits) for one in everything),
            "no tested level keeps the limits, and none is reported",
            "a tested level keeps the limits, yet none is reported under them",
        )
    broken = [one for one in chosen if not _keeps(view, one, limits)]
    if broken:
        return view.unmet(f"the limits are not kept at {names_of(broken)}")
    return _bracket(view, chosen[0], everything, lambda one: _keeps(view, one, limits))


def _keeps(view: EvidenceView, one: Tested, limits: Mapping[str, float]) -> bool:
    """Whether a level is not overloaded and P99 of every limited latency is at or under its limit."""
    if overloaded(one):
        return False
    for name, limit in limits.items():
        values = FAMILIES[LIMITS[name]](one.inside)
        if not len(values):
            return False
        tail = percentile(values, "p99")
        view.note(f"{name} of {one.label}", tail)
        if tail > limit:
            return False
    return True


@check("P-5.2.3-throughput-formula")
def throughput_formula(view: EvidenceView) -> Answer:
    """Output tokens in the window over its seconds, once more from the chunks; the raw quotient is stored."""
    view.need("throughput.raw_output_tok_s")
    levels = tested(view, REPORTED)
    for one in levels:
        again = one.output_tokens / one.window_s
        if not close(one.point("output_token_throughput"), again):
            stated = one.point("output_token_throughput")
            return view.unmet(f"{one.label}: {stated:g} tok/s, its chunks give {again:g} tok/s")
    tokens = sum(one.output_tokens for one in levels)
    again = tokens / sum(one.window_s for one in levels)
    view.note("output_tok_s.from_records", again)
    reported = view.metric("output_token_throughput").point
    return view.answer(
        close(reported, again),
        f"{again:.1f} output tokens per second of the window",
        f"{reported} tok/s are reported, the chunks give {again:g} tok/s",
    )


@check("P-5.2.3-binary-search")
def binary_search(view: EvidenceView) -> Answer:
    """Minimum and maximum tested; the level above the reported one, at most a step away, is saturated."""
    everything = tested(view)
    low, high, _ = _range(view, _range_key(view))
    probes = [one for one in everything if one.level.role == PROBE]
    if not any(abs(one.value - low) <= _STEP_TOLERANCE * low for one in probes):
        return view.unmet(f"the minimum of the range, {low:g}, was not tested")
    reported = [one for one in everything if one.level.role == REPORTED]
    if not reported:
        return view.answer(
            not any(_acceptable(view, one) for one in probes),
            "no tested level is sustainable, and none is reported",
            "a sustainable level was found, yet none is reported",
        )
    if not _acceptable(view, reported[0]):
        return view.unmet(f"the reported level {reported[0].label} is saturated")
    if not any(one.value >= high * (1 - _STEP_TOLERANCE) for one in probes):
        return view.unmet(f"the maximum of the range, {high:g}, was not tested")
    return _bracket(view, reported[0], everything, lambda one: _acceptable(view, one))


def _acceptable(view: EvidenceView, one: Tested) -> bool:
    """Whether a level is not saturated. Limits on latency, if there are any, replace the ten-fold rule."""
    if one.level.saturated is False:
        return True
    limits = {name: value for name, value in (view.fact("load.slo") or {}).items() if name in LIMITS}
    return bool(limits) and _keeps(view, one, limits)


def _range_key(view: EvidenceView) -> str:
    return "load.rate_range" if view.need("load.model") == "open" else "load.concurrency_range"


def _bracket(
    view: EvidenceView, best: Tested, everything: Sequence[Tested], holds: Callable[[Tested], bool]
) -> Answer:
    step = _range(view, _range_key(view))[2]
    above = sorted(
        (one for one in everything if one.value > best.value and not holds(one)), key=lambda one: one.value
    )
    view.note("reported", best.value)
    if not above:
        return view.unmet(f"no tested level above {best.label} fails: it is a lower bound, not the highest")
    gap = above[0].value - best.value
    view.note("lowest_failing_above", above[0].value)
    if gap > step + _STEP_TOLERANCE * best.value:
        return view.unmet(
            f"between {best.value:g}, which holds, and {above[0].value:g} lies more than the step {step:g}"
        )
    return view.answer(
        is_narrow(best.value, above[0].value, best.level.load_model),
        f"{best.value:g} holds, {above[0].value:g} does not, the step is {step:g}",
        f"{best.value:g} holds and {above[0].value:g} does not: a maximum in between is found by steps of at "
        f"most {WIDEST_BRACKET:.0%}, so give a smaller step than {step:g}",
    )


@check("P-5.2.4.1-primary")
def primary(view: EvidenceView) -> Answer:
    """The three rates at the maximum, each once more from the records, and whether a limit applied."""
    levels = tested(view, REPORTED)
    seconds = sum(one.window_s for one in levels)
    again = {
        "max_output_token_throughput": sum(one.output_tokens for one in levels) / seconds,
        "max_request_throughput": sum(completions(one.window) for one in levels) / seconds,
        "max_input_token_throughput": sum(_input_tokens(one) for one in levels) / seconds,
    }
    for name, value in again.items():
        stated = view.metric(name).point
        view.note(f"{name}.from_records", value)
        if not close(stated, value):
            return view.unmet(f"{name} is {stated}, the records give {value:g}")
    lacking = lacking_rows(view.table("throughput_summary"), "Latency Constraint")
    return view.answer(
        not lacking,
        "output, request and input rate, and whether a latency constraint applied",
        "the summary does not say whether a latency constraint applied",
    )


def _input_tokens(one: Tested) -> float:
    counted = input_tokens(one.window)
    if counted is None:
        raise NoEvidenceError("record.input_tokens")
    return counted


@check("P-5.2.4.2-tokens-per-gpu-second")
def tokens_per_gpu_second(view: EvidenceView) -> Answer:
    count = view.need("sut.hardware.accelerator_count")
    total = view.metric("max_output_token_throughput").point or 0.0
    stated = view.metric("output_tokens_per_gpu_second").point
    return view.answer(
        close(stated, total / count, relative=1e-6),
        f"{stated:.1f} output tokens per accelerator and second",
        f"{stated} tokens per GPU-second, {total:g} tok/s over {count} accelerators are {total / count:g}",
    )


@check("P-5.2.4.2-batch-utilization")
def batch_utilization(view: EvidenceView) -> Answer:
    """A share, or ``not measurable`` and why."""
    stated = view.result.metrics.get("batch_utilisation")
    if stated is None:
        raise NoEvidenceError("metric batch_utilisation")
    if stated.point is None:
        return view.answer(stated.reason is Reason.NOT_MEASURABLE, stated.method, "not reported")
    view.note("metric.batch_utilisation", stated.point)
    return view.answer(0 <= stated.point <= 1, f"{stated.point:.1%} of the batch", "not a share")


@check("P-5.2.4.3-latency-at-max")
def latency_at_max(view: EvidenceView) -> Answer:
    """P50, P95 and P99 of the three latencies, over the samples of the reported level."""
    levels = tested(view, REPORTED)
    for one in levels:
        complaint = percentiles_agree(view, one, _FAMILIES, _STATISTICS)
        if complaint is not None:
            return view.unmet(complaint)
    for family in _FAMILIES:
        values = np.concatenate([FAMILIES[family](one.inside) for one in levels])
        for statistic in _STATISTICS:
            stated, again = view.metric(f"{family}.{statistic}").point, percentile(values, statistic)
            if not close(stated, again):
                return view.unmet(f"{family}.{statistic} is {stated} ms, the level's records give {again:g}")
    return view.met("TTFT, TPOT and end-to-end latency at the sustainable maximum")


@check("P-5.2.5-tables")
def tables(view: EvidenceView) -> Answer:
    lacking = lacking_rows(view.table("throughput_summary"), *_SUMMARY_ROWS)
    latencies = view.table("latency_at_max")
    lacking += lacking_columns(latencies, "P50", "P95", "P99")
    lacking += lacking_rows(latencies, "TTFT", "TPOT", "End-to-End")
    return view.answer(
        not lacking, "throughput summary and latency at maximum throughput", f"lacking: {', '.join(lacking)}"
    )
