"""Ratios of sums over requests, such as cached tokens / input tokens, and shares of requests, such as
accuracy: how many questions were answered rightly, those of a data set, or of a share of the load."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pytest_llmbench.metrics.summary import estimate, of_quantiles
from pytest_llmbench.model.estimate import LEVEL, Estimate, EstimateKind, Reason
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.reply_checks import CHECKS, RIGHT, SCORER_FAILED, check_of
from pytest_llmbench.stats.crude import CRUDELY, FEWEST
from pytest_llmbench.stats.ratios import Ratio, Share, exact_share_interval, ratio_of, share_of
from pytest_llmbench.stats.runs import OPEN, Interval, Samples, as_runs
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE


def exact_share(ones: int, of: int) -> Estimate:
    """A share of independent ones, with the interval of Clopper and Pearson."""
    interval = Interval(*exact_share_interval(ones, of, tail=(1 - LEVEL) / 2))
    return estimate(ones / of, interval, of, "Clopper-Pearson interval")


def ratio_of_sums(numerators: Samples, denominators: Samples, *, unit: str, seed: int) -> Estimate:
    """Σ numerator / Σ denominator over requests in arrival order. ``seed``: that of bootstrap intervals.

    Denominators must be positive. Undefined without requests; no interval below 30 effective requests.
    With ``unit="ratio"`` it is a share of what the denominators count: where no request has more than its
    own denominator, the interval stays within 0 and 1.
    """
    tops, bottoms = as_runs(numerators), as_runs(denominators)
    n = sum(map(len, bottoms))
    if n == 0:
        return Estimate.undefined(unit=unit, method="no samples")
    found = ratio_of(tops, bottoms, seed=seed)
    made = ratio_estimate(found, n, n, "ratio of sums", unit=unit)
    if unit != "ratio" or any((top > bottom).any() for top, bottom in zip(tops, bottoms, strict=True)):
        return made
    lower, upper = made.lower, made.upper
    return replace(
        made,
        lower=None if lower is None else max(lower, 0.0),
        upper=None if upper is None else min(upper, max(1.0, found.point)),
    )


def ratio_estimate(
    found: Ratio, samples: int, n: int, what: str, *, unit: str, most: float = math.inf
) -> Estimate:
    """The estimate of a ratio of sums. ``n``: requests that took part, of which ``samples`` pairs were made.
    ``most``: upper limit of their effective number, whatever the pairs say."""
    worth = min(most, float(samples) if found.of is None else found.of.worth)
    crude = worth < FEWEST_EFFECTIVE
    lower, upper = OPEN if crude else found.interval(LEVEL)
    if n >= FEWEST and (lower is None or upper is None):
        crude, (lower, upper) = True, found.crude(LEVEL)
    if crude and lower is not None:
        method = f"{what} at effective n={math.floor(worth)}{CRUDELY}"
    elif found.of is None or crude:
        method = f"{what}; no interval at effective n={math.floor(worth)}"
    else:
        method = f"{what} at effective n={math.floor(worth)}, {of_quantiles(found.of)}"
    required = max(n + 1, math.ceil(FEWEST_EFFECTIVE * n / worth)) if n and worth > 0 else None
    kind = EstimateKind.CRUDE if crude and lower is not None else EstimateKind.SAMPLE
    return estimate(found.point, Interval(lower, upper), n, method, unit, required=required, kind=kind)


def share_estimate(found: Share | None, without: str, more: str = "") -> Estimate:
    """The estimate of a share. ``without``: why there is none if ``found`` is None. ``more``: added to the
    method."""
    if found is None:
        return Estimate.undefined(unit="ratio", method=without)
    method = f"Clopper-Pearson interval at effective n={math.floor(found.worth)}{more}"
    method += CRUDELY if found.crude else ""
    required = max(found.of + 1, math.ceil(FEWEST_EFFECTIVE * found.of / found.worth))
    kind = EstimateKind.CRUDE if found.crude else EstimateKind.SAMPLE
    return estimate(found.share, found.interval, found.of, method, required=required, kind=kind)


ACCURACY: Final = "accuracy"
ACCURACY_OF_SET: Final = "accuracy_of_set"


def checks(runs: Sequence[Records]) -> list[list[str]]:
    """What the records of each run tell of their answers, in order of submission: of the requests that had a
    question, but for those that users were to cut."""
    return [
        [
            told
            for told, judged in zip(run.answer_check, run.judged.tolist(), strict=True)
            if judged and told is not None
        ]
        for run in runs
    ]


def counts(runs: Sequence[Records]) -> dict[str, int]:
    """How many questions came to each of :data:`CHECKS`, in their order; those that none did are left
    out."""
    found = Counter(check_of(told) for run in checks(runs) for told in run)
    return {check: found[check] for check in CHECKS if found[check]}


def accuracy(runs: Sequence[Records]) -> dict[str, Estimate]:
    """``accuracy``: right answers / questions asked. A question whose request failed is not answered rightly.

    The interval is that of Clopper and Pearson at the effective number of questions, for such questions at
    large; wrong answers in a row count as dependent. It is never open: that a few questions tell little is
    what its width says. ``accuracy_of_set``: the same of
    just these questions, which has no interval. Empty where nothing was asked; undefined where the author's
    scorer failed, since what it would have said is not known.
    """
    told = checks(runs)
    asked = sum(map(len, told))
    if not asked:
        return {}
    if any(check_of(each) == SCORER_FAILED for run in told for each in run):
        failed = Estimate.undefined(
            unit="ratio", method="the scorer failed", n=asked, reason=Reason.NOT_COMPUTABLE
        )
        return {ACCURACY: failed, ACCURACY_OF_SET: failed}
    series = [np.array([each == RIGHT for each in run], dtype=np.float64) for run in told]
    found = share_of(series)
    assert found is not None
    share = found.share
    if found.interval.lower is None:
        ends = exact_share_interval(found.ones, found.of, tail=(1 - LEVEL) / 2, effective_n=found.worth)
        found = found._replace(interval=Interval(*ends))
    return {
        ACCURACY: share_estimate(found, "no questions"),
        ACCURACY_OF_SET: Estimate.observed(share, asked, "of these questions", "ratio", exact=True),
    }
