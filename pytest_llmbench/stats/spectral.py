"""How far the mean of dependent samples may be off: its standard error, from the lowest frequencies.

The **equal-weighted cosine** estimate of the long-run variance of n samples x_t in arrival order,

    ω² = (1/B) Σ_{j=1..B} Λ_j²,      Λ_j = √(2/n) Σ_t x_t cos(π j (t - ½) / n),

is a mean of B nearly independent squares, so (mean - μ) / √(ω²/n) is Student's t with B degrees of freedom,
even if B is small (Müller 2007, Journal of Econometrics 141; Lazarus, Lewis, Stock and Watson 2018, Journal
of Business & Economic Statistics 36). A queue remembers long: B must be so small that the spectrum is level
up to frequency B/2n, and the price, a wider t, is paid openly instead of in coverage.

B = n / (8 m), but at least min(12, n / (4 m)) and 3, and at most n^(2/3) and n/4. m, the **memory**, is the
last lag with a significant autocorrelation, by the rule of Politis and White (2004, Econometric Reviews 23).

Latencies are skewed, and a sample that happens to lack the long waits shows too small a mean and too small an
error together. Two things lengthen an end, none shortens one: the skewness of the means of batches of 2 m
samples, by the transformed t of Johnson (1978) and Hall (1992) as Tafazzoli et al. use it (2011, N-Skart,
IEEE Transactions on Automatic Control 56); and, for a mean of latencies, :func:`mean_interval`.

Several runs: ω² is the mean over runs, and the spread between the runs' means replaces it where it is larger
(two levels, runs and samples in them).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.dependence import SHORTEST_SERIES, autocovariance, last_significant_lag
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled

FEWEST_COSINES = 3
_ENOUGH_COSINES = 12
_MEMORIES, _FEWEST_MEMORIES = 8, 4
"""Of a sample per cosine: as many as it takes to see no bias, and as few as will do where B is small."""
_SKEWNESS_BATCH = 2
"""Memories per batch that the skewness is taken over."""


_FIRST_LAGS, _QUIET_END = 512, 10
_LONG = 1 << 18
_MOST_ROUNDS = 100


class Spread(NamedTuple):
    """Of the mean of a sample."""

    error: float
    """Standard error, in the samples' unit."""
    freedom: float
    """Degrees of freedom that the error rests on."""
    skewness: float
    """Third standardised moment of the mean's own law."""
    worth: float
    """Independent samples with the same standard error, from 1 to n."""


def memory(samples: Samples) -> int:
    """Lags after which no autocorrelation of the runs is significant; 1 for independent samples."""
    runs = [run for run in as_runs(samples) if len(run) >= SHORTEST_SERIES]
    scale = max((float(np.max(np.abs(run))) for run in runs), default=0.0)
    varied = [run / scale for run in runs if float(np.ptp(run)) > 0]
    if not varied:
        return 1
    n, longest = sum(map(len, varied)), max(map(len, varied)) // 2
    lags = min(longest, _FIRST_LAGS)
    while True:
        last = last_significant_lag(_correlation(varied, lags), n)
        # Significant to the end of the lags looked at: there may be more.
        if last < lags - _QUIET_END or lags == longest:
            return max(1, last)
        lags = min(longest, 8 * lags)


def _correlation(runs: Sequence[FloatArray], lags: int) -> FloatArray:
    """ρ(0) … of all runs, each around its own mean."""
    total = np.zeros(lags + 1)
    for run in runs:
        own = min(lags, len(run) - 1)
        total[: own + 1] += len(run) * autocovariance(run, own)
    return np.asarray(total / total[0], dtype=np.float64)


def spread(samples: Samples, *, lags: int | None = None) -> Spread | None:
    """The spread of the mean; ``None`` below ten samples. ``lags``: the memory, default :func:`memory`."""
    runs = as_runs(samples)
    n = sum(map(len, runs))
    if n < SHORTEST_SERIES:
        return None
    lags = memory(runs) if lags is None else lags
    every = pooled(runs)
    scale = float(np.max(np.abs(every - every.mean())))
    if scale == 0.0 or float(np.ptp(every)) == 0.0:
        return Spread(0.0, float(n - 1), 0.0, float(n))
    centred = tuple((run - float(every.mean())) / scale for run in runs)
    variance, freedom = _between(centred, *_within(centred, lags))
    single = float(np.mean(np.square(pooled(centred))))
    variance = max(variance, 1e-12 * single / n)
    return Spread(
        error=scale * math.sqrt(variance),
        freedom=freedom,
        skewness=_skewness(centred, _SKEWNESS_BATCH * lags),
        worth=min(float(n), max(1.0, single / variance)),
    )


def student_interval(point: float, of: Spread, *, level: float = 0.95) -> Interval:
    """point ± t · error, the end on the side of the skewness farther away; for any statistic that is nearly
    a mean, given the :func:`spread` of its influence.
    """
    down, up = legs(of, level)
    return Interval(point - down, point + up)


def mean_interval(samples: Samples, *, level: float = 0.95, of: Spread | None = None) -> Interval:
    """Interval of the mean of latencies; open for fewer than ten samples. ``of``: their :func:`spread`.

    The upper end is that mean μ of which the observed one would still be in reach, when the error grows in
    proportion with μ - min: min + L / (1 - a), L = mean - min, a = t · error / L. Errors do grow with the
    mean (in a queue, as its square: Whitt 1989, Management Science 35), and a sample with a ≥ 1 bounds
    nothing above. The lower end is at least the smallest sample.
    """
    runs = as_runs(samples)
    of = spread(runs) if of is None else of
    if of is None:
        return OPEN
    every = pooled(runs)
    mean, least = float(every.mean()), float(every.min())
    down, up = legs(of, level)
    farthest = upper_end(mean - least, up)
    return Interval(max(least, mean - down), None if farthest is None else least + farthest)


def upper_end(height: float, leg: float, power: float = 1.0) -> float | None:
    """u = height + leg · (u / height)^power: the upper end of a value whose error grows as that power of it.

    ``None`` where no value is that high above the observed one, because the error outgrows it.
    """
    if leg == 0.0:
        return height
    relative = leg / height if height > 0 else math.inf
    if power == 1.0:
        return height / (1 - relative) if relative < 1 else None
    # The curve 1 + a y^k meets the diagonal as long as a ≤ (k-1)^(k-1) / k^k.
    if relative >= (power - 1) ** (power - 1) / power**power:
        return None
    ratio = 1.0
    for _ in range(_MOST_ROUNDS):
        ratio = 1 + relative * ratio**power
    return height * ratio


def legs(of: Spread, level: float) -> tuple[float, float]:
    """How far the lower and the upper end lie from the point, neither nearer than Student's t says."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    t = student_quantile(of.freedom, level)
    return (
        of.error * max(t, _unskewed(t, of.skewness)),
        of.error * max(t, -_unskewed(-t, of.skewness)),
    )


def student_quantile(freedom: float, level: float) -> float:
    """The two-sided quantile t_{(1 + level)/2}."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def _unskewed(t: float, skewness: float) -> float:
    """Quantile of the studentised mean: (∛(1 + 6 β (t - β)) - 1) / 2 β, β a sixth of the mean's skewness."""
    beta = skewness / 6
    if abs(beta) < 1e-4:
        return t
    return float((np.cbrt(1 + 6 * beta * (t - beta)) - 1) / (2 * beta))


def _within(runs: Runs, lags: int) -> tuple[float, float]:
    """Variance of the pooled mean from inside the runs, and its degrees of freedom."""
    n = sum(map(len, runs))
    cosines = [_cosines(len(run), lags) for run in runs]
    powers = [_power(run, count) for run, count in zip(runs, cosines, strict=True)]
    long_run = sum(count * power for count, power in zip(cosines, powers, strict=True)) / max(1, sum(cosines))
    return long_run / n, float(max(1, sum(cosines)))


def _cosines(n: int, lags: int) -> int:
    """B of a run. Of several runs none is too short for one."""
    few = max(FEWEST_COSINES, min(_ENOUGH_COSINES, n // (_FEWEST_MEMORIES * lags)))
    many = min(int(n ** (2 / 3)), n // 4)
    return max(1, min(max(n // (_MEMORIES * lags), few), many))


def _power(run: FloatArray, cosines: int) -> float:
    """The mean of Λ_j² over j = 1 … B; 0 for a run too short to have any."""
    if len(run) < 2:
        return 0.0
    from scipy.fft import dct

    n = _transformed(len(run))
    transform = dct(run[:n], type=2)[1 : cosines + 1]
    return float(np.mean(np.square(transform))) / (2 * n)


def _transformed(n: int) -> int:
    """How many of n samples are transformed. Of a long run the last ones are left out, fewer than 1 %, where
    n has a prime factor above 11: it would take five times the memory and up to ten times as long.
    """
    while n > _LONG and not _of_small_factors(n):
        n -= 1
    return n


def _of_small_factors(n: int) -> bool:
    for prime in (2, 3, 5, 7, 11):
        while n % prime == 0:
            n //= prime
    return n == 1


def _between(runs: Runs, within: float, freedom: float) -> tuple[float, float]:
    """The larger of ``within`` and the spread between run means, weighted by length.

    Its degrees of freedom go from the former's to those of k runs with the share that runs add
    (Satterthwaite 1946, Biometrics Bulletin 2).
    """
    if len(runs) < 2:
        return within, freedom
    lengths = np.array([len(run) for run in runs], dtype=np.float64)
    weights = lengths / lengths.sum()
    means = np.array([float(run.mean()) for run in runs])
    around = np.square(means - float(weights @ means))
    # Unbiased whatever the weights, if each run's mean has the same variance per sample.
    between = float(weights @ around) / (len(runs) - 1)
    if between <= within:
        return within, freedom
    share = within / between
    return between, 1 / ((1 - share) ** 2 / (len(runs) - 1) + share**2 / freedom)


def _skewness(runs: Runs, batch: int) -> float:
    """Skewness of the mean: that of batch means over √batches. Too few batches show none."""
    batch = min(batch, max(1, max(map(len, runs)) // 8))
    means = [run[: len(run) // batch * batch].reshape(-1, batch).mean(axis=1) for run in runs]
    every = np.concatenate([own - float(run.mean()) for own, run in zip(means, runs, strict=True)])
    variance = float(np.mean(np.square(every))) if len(every) else 0.0
    if variance <= 0.0:
        return 0.0
    return float(np.mean(every**3) / variance**1.5 / math.sqrt(len(every)))


__all__ = [
    "FEWEST_COSINES",
    "Spread",
    "legs",
    "mean_interval",
    "memory",
    "spread",
    "student_interval",
    "student_quantile",
    "upper_end",
]
