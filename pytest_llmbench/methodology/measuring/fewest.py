"""How many requests it takes at least before a limit can be kept, whatever the requests come out at.

A limit is kept by the end of an interval, and too few requests have no such end. Of independent requests,
the best that there could be, an upper end of P90 takes 36 by order statistics, P95 72, P99 368; a crude one
of P95 takes 40, of P99 91, and of P99.9 921. Of n good requests Clopper and Pearson's lower end is
(α/2)^(1/n).
"""

from __future__ import annotations

import math

from pytest_llmbench.metrics.definitions import METRICS
from pytest_llmbench.metrics.summary import STATISTICS
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.stats.crude import crude_samples_required
from pytest_llmbench.stats.percentiles import PERCENTILES, samples_required
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE

_TAIL = 0.025
_FLOORS, _CEILINGS = ("completion_rate", "goodput_share", "accuracy"), ("schema_violation_rate",)


def fewest_requests(limit: Objective) -> float:
    """The fewest requests with which the limit may be kept; ∞ for a share that no number of them shows, 0
    where their number says nothing."""
    family = limit.metric.partition(".")[0].partition("[")[0]
    if family in _FLOORS and not limit.is_ceiling:
        return _alike(limit.limit)
    if family in _CEILINGS and limit.is_ceiling:
        return _alike(1 - limit.limit)
    row = METRICS.get(family)
    if row is None or row.statistics != STATISTICS or row.by_turn or not limit.is_ceiling:
        return 0
    statistic = limit.metric.rpartition(".")[2]
    if statistic == "mean":
        return FEWEST_EFFECTIVE
    return _of_percentile(statistic) if statistic in PERCENTILES else 0


def highest_decided(metric: str, count: int) -> str | None:
    """The metric with the highest percentile that ``count`` requests may bound; None for what is no
    percentile."""
    stem, _, statistic = metric.rpartition(".")
    if statistic not in PERCENTILES:
        return None
    bounded = [each for each in PERCENTILES if _of_percentile(each) <= count]
    return f"{stem}.{bounded[-1]}" if bounded else None


def _of_percentile(statistic: str) -> int:
    q = PERCENTILES[statistic]
    return min(samples_required(q), crude_samples_required(q))


def _alike(share: float) -> float:
    """The fewest n with (α/2)^(1/n) ≥ ``share``."""
    if share <= 0:
        return 0
    return math.inf if share >= 1 else math.ceil(math.log(_TAIL) / math.log(share) - 1e-9)
