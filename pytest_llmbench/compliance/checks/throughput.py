"""The throughput test (section 5.2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from pytest_llmbench.compliance.checks.levels import REPORTED, at_least_s, overloaded, percentiles_agree
from pytest_llmbench.compliance.checks.registry import Checks, one_of
from pytest_llmbench.compliance.checks.tables import lacking_columns, lacking_rows
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
from pytest_llmbench.model.level import PROBE

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
"""Rates of plans have three or four digits."""

check("M-5.2.2.1-workload-defined")(workload_defined)
check("P-5.3.2-workload-named")(workload_defined)
check("M-5.2.2.2-load-model-defined")(one_of("load.model", "open", "closed"))
check("P-5.2.2.1-min-duration-60s")(at_least_s(SHORTEST_S))
check("S-5.2.2.1-duration-300s")(at_least_s(ADVISED_S, REPORTED))


@check("M-5.2.2.1-duration-defined")
def duration_defined(look: EvidenceView) -> Answer:
    duration_s = look.need("load.duration_s")
    return look.answer(duration_s > 0, f"{duration_s:g} s per level", f"{duration_s!r} s is no duration")


def _range(look: EvidenceView, key: str) -> tuple[float, float, float]:
    values = look.need(key)
    if not isinstance(values, Sequence) or len(values) != 3:
        raise NoEvidenceError(f"{key} [minimum, maximum, step]")
    low, high, step = values
    return float(low), float(high), float(step)


def _range_defined(look: EvidenceView, key: str) -> Answer:
    low, high, step = _range(look, key)
    return look.answer(
        0 < low < high and step > 0,
        f"from {low:g} to {high:g} in steps of {step:g}",
        f"from {low:g} to {high:g} in steps of {step:g} is no range",
    )


@check("M-5.2.2.2-open-loop-range")
def open_loop_range(look: EvidenceView) -> Answer:
    return _range_defined(look, "load.rate_range")


@check("M-5.2.2.2-closed-loop-range")
def closed_loop_range(look: EvidenceView) -> Answer:
    return _range_defined(look, "load.concurrency_range")


@check("P-5.2.2.3-slo-semantics")
def slo_semantics(look: EvidenceView) -> Answer:
    """The reported level keeps every limit, the next tested higher one does not, by their records."""
    limits = {name: value for name, value in look.need("load.slo").items() if name in LIMITS}
    everything = tested(look)
    chosen = [one for one in everything if one.level.role == CONSTRAINED]
    chosen = chosen or [one for one in everything if one.level.role == REPORTED and _keeps(look, one, limits)]
    if not chosen:
        return look.answer(
            not any(_keeps(look, one, limits) for one in everything),
            "no tested level keeps the limits, and none is reported",
            "a tested level keeps the limits, yet none is reported under them",
        )
    broken = [one for one in chosen if not _keeps(look, one, limits)]
    if broken:
        return look.unmet(f"the limits are not kept at {names_of(broken)}")
    return _bracket(look, chosen[0], everything, lambda one: _keeps(look, one, limits))


def _keeps(look: EvidenceView, one: Tested, limits: Mapping[str, float]) -> bool:
    """Not overloaded, and P99 of every limited latency at or under its limit."""
    if overloaded(one):
        return False
    for name, limit in limits.items():
        values = FAMILIES[LIMITS[name]](one.inside)
        if not len(values):
            return False
        tail = percentile(values, "p99")
        look.note(f"{name} of {one.label}", tail)
        if tail > limit:
            return False
    return True


@check("P-5.2.3-throughput-formula")
def throughput_formula(look: EvidenceView) -> Answer:
    """Output tokens in the window over its seconds, once more from the chunks; the raw quotient is stored."""
    look.need("throughput.raw_output_tok_s")
    levels = tested(look, REPORTED)
    for one in levels:
        again = one.output_tokens / one.window_s
        if not close(one.point("output_token_throughput"), again):
            stated = one.point("output_token_throughput")
            return look.unmet(f"{one.label}: {stated:g} tok/s, its chunks give {again:g} tok/s")
    tokens = sum(one.output_tokens for one in levels)
    again = tokens / sum(one.window_s for one in levels)
    look.note("output_tok_s.from_records", again)
    reported = look.metric("output_token_throughput").point
    return look.answer(
        close(reported, again),
        f"{again:.1f} output tokens per second of the window",
        f"{reported} tok/s are reported, the chunks give {again:g} tok/s",
    )


@check("P-5.2.3-binary-search")
def binary_search(look: EvidenceView) -> Answer:
    """Minimum and maximum tested; the level above the reported one, at most a step away, is saturated."""
    everything = tested(look)
    low, high, _ = _range(look, _range_key(look))
    probes = [one for one in everything if one.level.role == PROBE]
    if not any(abs(one.value - low) <= _STEP_TOLERANCE * low for one in probes):
        return look.unmet(f"the minimum of the range, {low:g}, was not tested")
    reported = [one for one in everything if one.level.role == REPORTED]
    if not reported:
        return look.answer(
            not any(_acceptable(look, one) for one in probes),
            "no tested level is sustainable, and none is reported",
            "a sustainable level was found, yet none is reported",
        )
    if not _acceptable(look, reported[0]):
        return look.unmet(f"the reported level {reported[0].label} is saturated")
    if not any(one.value >= high * (1 - _STEP_TOLERANCE) for one in probes):
        return look.unmet(f"the maximum of the range, {high:g}, was not tested")
    return _bracket(look, reported[0], everything, lambda one: _acceptable(look, one))


def _acceptable(look: EvidenceView, one: Tested) -> bool:
    """Not saturated. With limits on latency these take the place of the ten-fold rule."""
    if one.level.saturated is False:
        return True
    limits = {name: value for name, value in (look.fact("load.slo") or {}).items() if name in LIMITS}
    return bool(limits) and _keeps(look, one, limits)


def _range_key(look: EvidenceView) -> str:
    return "load.rate_range" if look.need("load.model") == "open" else "load.concurrency_range"


def _bracket(
    look: EvidenceView, best: Tested, everything: Sequence[Tested], holds: Callable[[Tested], bool]
) -> Answer:
    step = _range(look, _range_key(look))[2]
    above = sorted(
        (one for one in everything if one.value > best.value and not holds(one)), key=lambda one: one.value
    )
    look.note("reported", best.value)
    if not above:
        return look.unmet(f"no tested level above {best.label} fails: it is a lower bound, not the highest")
    gap = above[0].value - best.value
    look.note("lowest_failing_above", above[0].value)
    return look.answer(
        gap <= step + _STEP_TOLERANCE * best.value,
        f"{best.value:g} holds, {above[0].value:g} does not, the step is {step:g}",
        f"between {best.value:g}, which holds, and {above[0].value:g} lies more than the step {step:g}",
    )


@check("P-5.2.4.1-primary")
def primary(look: EvidenceView) -> Answer:
    """The three rates at the maximum, each once more from the records, and whether a limit applied."""
    levels = tested(look, REPORTED)
    seconds = sum(one.window_s for one in levels)
    again = {
        "max_output_token_throughput": sum(one.output_tokens for one in levels) / seconds,
        "max_request_throughput": sum(completions(one.window) for one in levels) / seconds,
        "max_input_token_throughput": sum(_input_tokens(one) for one in levels) / seconds,
    }
    for name, value in again.items():
        stated = look.metric(name).point
        look.note(f"{name}.from_records", value)
        if not close(stated, value):
            return look.unmet(f"{name} is {stated}, the records give {value:g}")
    lacking = lacking_rows(look.table("throughput_summary"), "Latency Constraint")
    return look.answer(
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
def tokens_per_gpu_second(look: EvidenceView) -> Answer:
    count = look.need("sut.hardware.accelerator_count")
    total = look.metric("max_output_token_throughput").point or 0.0
    stated = look.metric("output_tokens_per_gpu_second").point
    return look.answer(
        close(stated, total / count, relative=1e-6),
        f"{stated:.1f} output tokens per accelerator and second",
        f"{stated} tokens per GPU-second, {total:g} tok/s over {count} accelerators are {total / count:g}",
    )


@check("P-5.2.4.2-batch-utilization")
def batch_utilization(look: EvidenceView) -> Answer:
    """A share, or ``not measurable`` and why."""
    stated = look.result.metrics.get("batch_utilisation")
    if stated is None:
        raise NoEvidenceError("metric batch_utilisation")
    if stated.point is None:
        return look.answer(stated.method.startswith("not measurable"), stated.method, "not reported")
    look.note("metric.batch_utilisation", stated.point)
    return look.answer(0 <= stated.point <= 1, f"{stated.point:.1%} of the batch", "not a share")


@check("P-5.2.4.3-latency-at-max")
def latency_at_max(look: EvidenceView) -> Answer:
    """P50, P95 and P99 of the three latencies, over the samples of the reported level."""
    levels = tested(look, REPORTED)
    for one in levels:
        complaint = percentiles_agree(look, one, _FAMILIES, _STATISTICS)
        if complaint is not None:
            return look.unmet(complaint)
    for family in _FAMILIES:
        values = np.concatenate([FAMILIES[family](one.inside) for one in levels])
        for statistic in _STATISTICS:
            stated, again = look.metric(f"{family}.{statistic}").point, percentile(values, statistic)
            if not close(stated, again):
                return look.unmet(f"{family}.{statistic} is {stated} ms, the level's records give {again:g}")
    return look.met("TTFT, TPOT and end-to-end latency at the sustainable maximum")


@check("P-5.2.5-tables")
def tables(look: EvidenceView) -> Answer:
    lacking = lacking_rows(look.table("throughput_summary"), *_SUMMARY_ROWS)
    latencies = look.table("latency_at_max")
    lacking += lacking_columns(latencies, "P50", "P95", "P99")
    lacking += lacking_rows(latencies, "TTFT", "TPOT", "End-to-End")
    return look.answer(
        not lacking, "throughput summary and latency at maximum throughput", f"lacking: {', '.join(lacking)}"
    )
