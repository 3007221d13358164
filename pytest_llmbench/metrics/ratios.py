"""Ratios of sums over requests, such as cached tokens / input tokens, and shares of requests."""

from __future__ import annotations

import math

from pytest_llmbench.metrics.summary import of_quantiles
from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.stats.crude import CRUDELY, FEWEST
from pytest_llmbench.stats.ratios import Ratio, Share, ratio_of
from pytest_llmbench.stats.runs import OPEN, Samples, as_runs
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE


def ratio_of_sums(
    numerators: Samples, denominators: Samples, *, unit: str, seed: int, level: float = 0.95
) -> Estimate:
    """Σ numerator / Σ denominator over requests in arrival order. ``seed``: that of bootstrap intervals.

    Denominators must be positive. Undefined without requests; no interval below 30 effective requests.
    """
    tops, bottoms = as_runs(numerators), as_runs(denominators)
    n = sum(map(len, bottoms))
    if n == 0:
        return Estimate.undefined(unit=unit, method="no samples", level=level)
    found = ratio_of(tops, bottoms, seed=seed)
    return ratio_estimate(found, n, n, "ratio of sums", unit=unit, level=level)


def ratio_estimate(
    found: Ratio, samples: int, n: int, what: str, *, unit: str, level: float, most: float = math.inf
) -> Estimate:
    """The estimate of a ratio of sums. ``n``: requests that took part, of which ``samples`` pairs were made.
    ``most``: upper limit of their effective number, whatever the pairs say."""
    worth = min(most, float(samples) if found.of is None else found.of.worth)
    crude = worth < FEWEST_EFFECTIVE
    lower, upper = OPEN if crude else found.interval(level)
    if n >= FEWEST and (lower is None or upper is None):
        crude, (lower, upper) = True, found.crude(level)
    if crude and lower is not None:
        method = f"{what} at effective n={math.floor(worth)}{CRUDELY}"
    elif found.of is None or crude:
        method = f"{what}; no interval at effective n={math.floor(worth)}"
    else:
        method = f"{what} at effective n={math.floor(worth)}, {of_quantiles(found.of)}"
    required = None
    if (lower is None or upper is None) and n and worth > 0:
        required = max(n + 1, math.ceil(FEWEST_EFFECTIVE * n / worth))
    return Estimate(
        point=found.point,
        lower=None if lower is None else min(lower, found.point),
        upper=None if upper is None else max(upper, found.point),
        level=level,
        n=n,
        method=method,
        unit=unit,
        n_required=required,
        kind=EstimateKind.CRUDE if crude and lower is not None else EstimateKind.SAMPLE,
    )


def share_estimate(found: Share | None, level: float, without: str, more: str = "") -> Estimate:
    """The estimate of a share. ``without``: why there is none if ``found`` is None. ``more``: added to the
    method."""
    if found is None:
        return Estimate.undefined(unit="ratio", method=without, level=level)
    lower, upper = found.interval
    open_end = lower is None or upper is None
    return Estimate(
        point=found.share,
        lower=lower,
        upper=upper,
        level=level,
        n=found.of,
        method=f"Clopper-Pearson interval at effective n={math.floor(found.worth)}{more}"
        + (CRUDELY if found.crude else ""),
        unit="ratio",
        kind=EstimateKind.CRUDE if found.crude else EstimateKind.SAMPLE,
        n_required=max(found.of + 1, math.ceil(FEWEST_EFFECTIVE * found.of / found.worth))
        if open_end
        else None,
    )
