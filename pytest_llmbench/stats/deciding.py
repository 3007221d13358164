"""How many times as many samples would decide a limit on which the interval of a sample does not decide.

The figure lies t standard errors from the limit, as far as the sample tells, so its true distance is about
N(t, 1). A new sample g times as large sees √g of that distance, give or take one of its own errors, and
decides where it sees more than z, the quantile of the level:

    P(g) = Φ((√g t - z) / √(1 + g)) + Φ((-√g t - z) / √(1 + g)),

the predictive power of the larger sample (Spiegelhalter, Freedman and Blackburn 1986, Controlled Clinical
Trials 7). The advice is the least g with P(g) ≥ 0.85, with which four of five sessions decide: intervals are
wider than the errors of their figures, so true distances are shorter than N(t, 1). It is not (half-width /
distance)², the g at which the same figure and its interval would just touch the limit: that one decides every
other time at best, and is without bound for a figure that happens to lie next to the limit.

A crude end says how wide intervals are now, not how they shrink: the order statistics that replace it are no
nearer at about three times the samples, and come nearer from there. So towards the farther end of an estimate
with crude ends g is tripled.

g is at least 2, since what dependent samples owe to a single event shrinks in steps, and infinite beyond 64:
a sample tells little of what takes more. How often following the advice decides, and at what price:
benchmarks/bench_advice.py.
"""

from __future__ import annotations

import math

from pytest_llmbench.stats.runs import Interval
from pytest_llmbench.stats.spectral import normal_quantile, student_quantile

CHANCE, PREDICTED = 0.8, 0.85
"""The share of the sessions following the advice in which it is to decide, and the P(g) that gives it."""
MOST, LEAST = 64.0, 2.0
"""The largest and the smallest factor that is advised."""
_ABOVE = 3.0
"""Assumed distance of the upper end, as a multiple of that of the lower one on the logarithmic scale, if it
is open or only a bound. Latencies are skewed, and such an end has to become an order statistic before it can
come nearer."""
_UNVARIED = 2.0
"""Factor for a share of 0 or 1, which is an end of its own interval; the other end comes nearer as 1/n. It is
twice what would touch the limit, since the larger sample may have one or two on the other side."""
_CLOSING, _OF_FEW = 1.25, 5.0
_CRUDE = 3.0
"""Factor where a crude end has to become an order statistic."""
_STEPS = 40
FEWEST_RUNS, MOST_RUNS = 5, 50
"""The fewest and the most runs of a job that are advised."""
_USUAL_NOISE = 0.03
"""Spread of the logarithms of a figure between runs of a job, where fewer than three runs say nothing of
it."""


def times_to_decide(
    point: float, ends: Interval, limit: float, *, level: float = 0.95, crude: bool = False
) -> float:
    """The advised factor g, from 2 to 64, for a figure on whose ``ends`` the limit is not decided; ∞ where it
    would be more.

    ``crude``: an end may be a mere bound, so it says nothing where it lies three times as far off as the
    other, and takes three times as many samples to become one that comes nearer. Positive figures are taken
    by their logarithms, in which the intervals of latencies are nearly symmetric.
    """
    figures = (point, limit, *(end for end in ends if end is not None))
    scale = math.log if min(figures) > 0 else float
    distance = scale(limit) - scale(point)
    below = None if ends.lower is None else scale(point) - scale(ends.lower)
    above = None if ends.upper is None else scale(ends.upper) - scale(point)
    half, other = (above, below) if distance >= 0 else (below, above)
    becoming = _CRUDE if crude and half is not None and half >= (other or 0.0) else 1.0
    if half is None and distance < 0:
        half = above
    elif other is not None and other > 0 and (half is None or crude):
        half = _ABOVE * other if half is None else min(half, _ABOVE * other)
    if half is None or half <= 0:
        return LEAST
    if other == 0 and distance != 0:
        return max(LEAST, _UNVARIED * half / abs(distance))
    z = normal_quantile(level)
    times = becoming * _least_times(abs(distance) / half * z, z)
    return times if times <= MOST else math.inf


def times_to_close(required: int, n: int) -> float:
    """The advised factor, where ``required`` samples of the same dependence would close an open end of an
    interval from n. How much samples depend on each other is an estimate too, and a poor one while they are
    few."""
    return max(required, n + 1) / n * (_CLOSING + _OF_FEW / math.sqrt(n))


def runs_to_decide(point: float, ends: Interval, limit: float, runs: int) -> int | None:
    """The fewest runs of a job, more than there are, after which Student's t decides in four of five
    sessions: with K runs the half-width is t(K - 1) s / √K, and the mean of them lies off by s √(1/K +
    1/runs). ``None`` for more than fifty.

    ``ends``: by Student's t over ``runs``; of fewer than three nothing is known of s, so it is taken as 3 %.
    On logarithms where all figures are positive.
    """
    scale = math.log if min(point, limit, *(end for end in ends if end is not None)) > 0 else float
    spread = _USUAL_NOISE
    if runs >= 3 and None not in ends:
        half = max(abs(scale(end) - scale(point)) for end in ends if end is not None)
        spread = half * math.sqrt(runs) / student_quantile(runs - 1, 0.95)
    off = normal_quantile(2 * CHANCE - 1) * spread
    for more in range(max(FEWEST_RUNS, runs + 1), MOST_RUNS + 1):
        half = student_quantile(more - 1, 0.95) * spread / math.sqrt(more)
        if abs(scale(limit) - scale(point)) >= half + off * math.sqrt(1 / more + 1 / runs):
            return more
    return None


def chance(errors: float, times: float, z: float) -> float:
    """P(g), the chance that a sample ``times`` as large decides. ``errors``: t, the distance in standard
    errors."""
    from scipy.special import ndtr

    seen, spread = math.sqrt(times) * errors, math.sqrt(1 + times)
    return float(ndtr((seen - z) / spread) + ndtr((-seen - z) / spread))


def _least_times(errors: float, z: float) -> float:
    low, high = LEAST, MOST
    if chance(errors, low, z) >= PREDICTED:
        return low
    if chance(errors, high, z) < PREDICTED:
        return math.inf
    for _ in range(_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if chance(errors, middle, z) >= PREDICTED else (middle, high)
    return high
