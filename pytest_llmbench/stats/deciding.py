"""How many times as many samples would decide a limit on which the interval of a sample does not decide.

The figure lies t standard errors from the limit, as far as the sample tells, so its true distance is about
N(t, 1). A new sample g times as large sees √g of that distance, give or take one of its own errors, and
decides where it sees more than z, the quantile of the level:

    P(g) = Φ((√g t - z) / √(1 + g)) + Φ((-√g t - z) / √(1 + g)),

the predictive power of the larger sample (Spiegelhalter, Freedman and Blackburn 1986, Controlled Clinical
Trials 7). The advice is the least g with P(g) ≥ 3/4. It is not (half-width / distance)², the g at which the
same figure and its interval would just touch the limit: that one decides every other time at best, and is
without bound for a figure that happens to lie next to the limit.

g is at least 2, since what dependent samples owe to a single event shrinks in steps, and at most 16: a sample
tells little of what takes more, and the larger one will tell. How often following the advice decides, and at
what price: benchmarks/bench_advice.py.
"""

from __future__ import annotations

import math

from pytest_llmbench.stats.runs import Interval
from pytest_llmbench.stats.spectral import normal_quantile

CHANCE = 0.75
"""The share of the sessions following the advice in which it is to decide."""
MOST, LEAST = 16.0, 2.0
"""The largest and the smallest factor that is advised."""
_ABOVE = 3.0
"""Assumed distance of the upper end, as a multiple of that of the lower one on the logarithmic scale, if it
is open or only a bound. Latencies are skewed, and such an end has to become an order statistic before it can
come nearer."""
_UNVARIED = 2.0
"""Factor for a share of 0 or 1, which is an end of its own interval; the other end comes nearer as 1/n. It is
twice what would touch the limit, since the larger sample may have one or two on the other side."""
_CLOSING, _OF_FEW = 1.25, 5.0
_STEPS = 40


def times_to_decide(point: float, ends: Interval, limit: float, *, level: float = 0.95) -> float:
    """The advised factor g, from 2 to 16, for a figure on whose ``ends`` the limit is not decided.

    ``ends``: the upper one is ``None`` where it is open or a mere bound of the figure. Positive figures are
    taken by their logarithms, in which the intervals of latencies are nearly symmetric.
    """
    figures = (point, limit, *(end for end in ends if end is not None))
    scale = math.log if min(figures) > 0 else float
    distance = scale(limit) - scale(point)
    below = None if ends.lower is None else scale(point) - scale(ends.lower)
    above = None if ends.upper is None else scale(ends.upper) - scale(point)
    if distance >= 0:
        half, other = above if above is not None or below is None else _ABOVE * below, below
    else:
        half, other = above if below is None else below, above
    if half is None or half <= 0:
        return LEAST
    if other == 0 and distance != 0:
        return min(MOST, max(LEAST, _UNVARIED * half / abs(distance)))
    z = normal_quantile(level)
    return _least_times(abs(distance) / half * z, z)


def times_to_close(required: int, n: int) -> float:
    """The advised factor, where ``required`` samples of the same dependence would close an open end of an
    interval from n. How much samples depend on each other is an estimate too, and a poor one while they are
    few."""
    return max(required, n + 1) / n * (_CLOSING + _OF_FEW / math.sqrt(n))


def chance(errors: float, times: float, z: float) -> float:
    """P(g), the chance that a sample ``times`` as large decides. ``errors``: t, the distance in standard
    errors."""
    from scipy.special import ndtr

    seen, spread = math.sqrt(times) * errors, math.sqrt(1 + times)
    return float(ndtr((seen - z) / spread) + ndtr((-seen - z) / spread))


def _least_times(errors: float, z: float) -> float:
    low, high = LEAST, MOST
    if chance(errors, low, z) >= CHANCE:
        return low
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if chance(errors, middle, z) >= CHANCE else (middle, high)
    return high
