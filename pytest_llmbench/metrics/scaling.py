"""The growth of TTFT with input length (section 5.9.4, AMB-21): one set of records per length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.metrics.latency import ttft_ms
from pytest_llmbench.metrics.ratios import ratio_of_sums
from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.stats.runs import Interval
from pytest_llmbench.stats.scaling import Fit, Group, power_law, straight_line

_METHOD = "t, from the errors of the mean of each length"
_TOO_FEW = "undefined: fewer than three lengths with successful requests"


@dataclass(frozen=True)
class PrefillScaling:
    power: Fit | None
    """Fit of log TTFT [ms] over log tokens, whose slope is k; None with too few lengths."""
    line: Fit | None
    """Fit of TTFT [ms] over tokens, slope in ms per token, intercept in ms; None with too few lengths."""
    metrics: dict[str, Estimate]
    """The metrics ``prefill_exponent`` (k), ``prefill_slope`` (us/token), ``prefill_intercept`` (ms), and R²
    of both fits."""


def length_group(records: Records) -> Group:
    """Input tokens and TTFT in ms of the successful requests; tokens as requested where the server counts
    none."""
    known = records.input_tokens != MISSING
    lengths = np.where(known, records.input_tokens, records.requested_input_tokens)
    has_both = (records.submitted_ns != MISSING) & (records.first_content_ns != MISSING)
    chosen = records.ok & has_both & (lengths > 0)
    return Group(lengths[chosen].astype(np.float64), ttft_ms(records.select(chosen)))


def ms_per_1k_tokens(records: Records, *, seed: int, level: float = 0.95) -> Estimate:
    """1000 · mean TTFT / mean input tokens of one length, in ms."""
    lengths, latencies = length_group(records)
    return ratio_of_sums(1000 * latencies, lengths, unit="ms", seed=seed, level=level)


def prefill_scaling(levels: Sequence[Records], *, level: float = 0.95) -> PrefillScaling:
    """The power law and the straight line, each fitted to the means of the lengths."""
    groups = [length_group(records) for records in levels]
    power = power_law(groups, level=level)
    line = straight_line(groups, level=level)
    metrics = {
        "prefill_exponent": _of(power, "slope", "ratio", 1.0, level),
        "prefill_exponent_fit": _fit(power, level),
        "prefill_slope": _of(line, "slope", "us/token", 1000.0, level),
        "prefill_intercept": _of(line, "intercept", "ms", 1.0, level),
        "prefill_linear_fit": _fit(line, level),
    }
    return PrefillScaling(power, line, metrics)


def _of(fit: Fit | None, name: str, unit: str, scale: float, level: float) -> Estimate:
    if fit is None:
        return Estimate.undefined(unit=unit, method=_TOO_FEW, level=level)
    point: float = getattr(fit, name)
    interval: Interval = getattr(fit, f"{name}_interval")
    lower, upper = interval
    return Estimate(
        point=scale * point,
        lower=None if lower is None else scale * min(lower, point),
        upper=None if upper is None else scale * max(upper, point),
        level=level,
        n=fit.samples,
        method=_METHOD,
        unit=unit,
    )


def _fit(fit: Fit | None, level: float) -> Estimate:
    """R² of the means about the fit. It describes these points, so it has no interval."""
    if fit is None:
        return Estimate.undefined(unit="ratio", method=_TOO_FEW, level=level)
    method = f"R² over {fit.points} lengths"
    return Estimate(
        fit.r_squared, None, None, level, fit.samples, method, "ratio", kind=EstimateKind.OBSERVED
    )
