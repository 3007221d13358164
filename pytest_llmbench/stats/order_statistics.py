"""Distribution-free interval of a percentile: two order statistics of the sample.

Of n independent samples the number below the true percentile is binomial(n, q / 100), whatever they are
distributed like. So the ends are the l-th and the u-th smallest sample, where (two-sided, α = 1 - level)

    l - 1 = the largest b with P(B ≤ b) ≤ α/2,      u = the smallest b with P(B ≥ b) ≤ α/2.

l < 1 or u > n means that the sample cannot support that end: it is open. Ties make the interval conservative.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import lru_cache

from pytest_llmbench.stats.percentiles import Ordered
from pytest_llmbench.stats.runs import Interval


def percentile_interval(
    ordered: Ordered, q: float, *, level: float = 0.95, effective_n: float | None = None
) -> Interval:
    """Interval of the q-th percentile from samples in ascending order.

    ``effective_n``: of how many independent samples they are worth; default as many as there are. Fewer give
    the spread of the smaller binomial, stretched to the ranks of this sample.
    """
    lower, upper = ranks(len(ordered), q, level=level, effective_n=effective_n)
    return Interval(
        None if lower is None else float(ordered[lower - 1]),
        None if upper is None else float(ordered[upper - 1]),
    )


def ranks(
    n: int, q: float, *, level: float = 0.95, effective_n: float | None = None
) -> tuple[int | None, int | None]:
    """The ranks l and u of the ends, from 1 to n; ``None`` for an open end. ValueError for q or level out of
    range."""
    _check(q, level)
    worth = n if effective_n is None else min(n, max(1, math.floor(effective_n)))
    if n < 1:
        return None, None
    below, above = _limits(worth, q / 100, (1 - level) / 2)
    lower = (below - 1) * n // worth + 1 if below >= 1 else None
    upper = -(-above * n // worth) if above <= worth else None
    return lower, upper


@lru_cache(maxsize=4096)
def _limits(worth: int, share: float, tail: float) -> tuple[int, int]:
    """The ranks of the interval's ends among ``worth`` independent samples: the lower less one, the upper as
    it is. Cached: the latencies of a load share them, and so do loads of equal length."""
    from scipy.special import bdtr, bdtrc

    below = bisect_right(range(worth), tail, key=lambda b: float(bdtr(b, worth, share)))
    above = bisect_left(range(worth), -tail, key=lambda b: -float(bdtrc(b, worth, share))) + 1
    return below, above


def samples_required(q: float, level: float = 0.95) -> int:
    """Fewest independent samples with which both ends exist: the smallest n with max(p, 1-p)^n ≤ (1 -
    level)/2.

    Two-sided 95 %: 36 for P90, 72 for P95, 368 for P99, 3688 for P99.9.
    """
    _check(q, level)
    rarer = max(q, 100 - q) / 100
    return math.ceil(math.log((1 - level) / 2) / math.log(rarer))


def _check(q: float, level: float) -> None:
    if not 0 < q < 100:
        raise ValueError(f"a percentile with an interval lies between 0 and 100, not at {q}")
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
