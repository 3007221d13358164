"""How many questions were answered rightly: those of a data set, or of a share of the load."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from pytest_llmbench.metrics.ratios import share_estimate
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.reply_checks import CHECKS, RIGHT, SCORER_FAILED, check_of
from pytest_llmbench.stats.ratios import exact_share_interval, share_of
from pytest_llmbench.stats.runs import Interval

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


def accuracy(runs: Sequence[Records], *, level: float = 0.95) -> dict[str, Estimate]:
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
            unit="ratio", method="the scorer failed", level=level, n=asked, reason=Reason.NOT_COMPUTABLE
        )
        return {ACCURACY: failed, ACCURACY_OF_SET: failed}
    series = [np.array([each == RIGHT for each in run], dtype=np.float64) for run in told]
    found = share_of(series, level=level)
    assert found is not None
    share = found.share
    if found.interval.lower is None:
        ends = exact_share_interval(found.ones, found.of, tail=(1 - level) / 2, effective_n=found.worth)
        found = found._replace(interval=Interval(*ends))
    return {
        ACCURACY: share_estimate(found, level, "no questions"),
        ACCURACY_OF_SET: Estimate(
            share, share, share, level, asked, "of these questions", "ratio", kind=EstimateKind.OBSERVED
        ),
    }
