"""Ratios of sums over requests, such as cached tokens / input tokens."""

from __future__ import annotations

import math

import numpy as np

from pytest_llmbench.metrics.summary import BOOTSTRAP_FLOOR, bootstrap_method
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.stats import bootstrap
from pytest_llmbench.stats.dependence import block_length, effective_size
from pytest_llmbench.stats.runs import Samples, as_runs, pooled


def ratio_of_sums(
    numerators: Samples, denominators: Samples, *, unit: str, seed: int, level: float = 0.95
) -> Estimate:
    """Σ numerator / Σ denominator over requests in arrival order, resampled in blocks of requests.

    Denominators must be positive. Undefined without requests; no interval below 30 effective requests.
    """
    tops, bottoms = as_runs(numerators), as_runs(denominators)
    n = sum(map(len, bottoms))
    if n == 0:
        return Estimate.undefined(unit=unit, method="no samples", level=level)
    ratio = float(np.sum(pooled(tops)) / np.sum(pooled(bottoms)))
    errors = [top - ratio * bottom for top, bottom in zip(tops, bottoms, strict=True)]
    worth = effective_size(errors)
    if worth < BOOTSTRAP_FLOOR:
        return Estimate(
            point=ratio,
            lower=None,
            upper=None,
            level=level,
            n=n,
            method=f"ratio of sums; no interval at effective n={math.floor(worth)}",
            unit=unit,
            n_required=math.ceil(BOOTSTRAP_FLOOR * n / worth),
        )
    block = block_length(errors)
    lower, upper = bootstrap.ratio_interval(tops, bottoms, seed=seed, level=level, block=block)
    return Estimate(
        point=ratio,
        lower=None if lower is None else min(lower, ratio),
        upper=None if upper is None else max(upper, ratio),
        level=level,
        n=n,
        method=bootstrap_method(block, of=" of a ratio of sums"),
        unit=unit,
    )


__all__ = ["ratio_of_sums"]
