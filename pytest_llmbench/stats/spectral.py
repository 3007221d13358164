"""The standard error of the mean of dependent samples, from the lowest frequencies or from blocks.

The **equal-weighted cosine** estimate of the long-run variance of n samples x_t in arrival order,

    ω² = (1/B) Σ_{j=1..B} Λ_j²,      Λ_j = √(2/n) Σ_t x_t cos(π j (t - ½) / n),

is a mean of B nearly independent squares, so (mean - μ) / √(ω²/n) is Student's t with B degrees of freedom,
even if B is small (Müller 2007, Journal of Econometrics 141; Lazarus, Lewis, Stock and Watson 2018, Journal
of Business & Economic Statistics 36). A queue remembers long: B must be so small that the spectrum is level
up to frequency B/2n, and the price, a wider t, is paid openly instead of in coverage.

B = n / (8 m), but at least min(12, n / (4 m)) and 3, and at most 24, n^(2/3) and n/4. m, the **memory**, is
the last lag with a significant autocorrelation, at whatever scale (:mod:`~pytest_llmbench.stats.dependence`).
What is too weak even for that shows as a spectrum that rises towards its lowest frequencies: where the first
4 or 8 cosines have more power than the rest has by chance (F test at 80 %), they alone count.

A sample of a few memories may be a quiet stretch as a whole, and nothing in it says so. What an error owes to
dependence is therefore lengthened by 1 / (1 - a), a = z · √(m / n), which is about how far the level of a
queue may be off; from a > 0.8 on the end is open.

Latencies are skewed, and a sample that happens to lack the long waits shows too small a mean and too small an
error together. Two things lengthen an end, none shortens one: the skewness of the means of batches of 2 m
samples, by the transformed t of Johnson (1978) and Hall (1992) as Tafazzoli et al. use it (2011, N-Skart,
IEEE Transactions on Automatic Control 56); and, for a mean of latencies, :func:`mean_interval`.

A queue of many slots waits seldom, and the noise of service hides it: the samples look independent, and a
quiet stretch looks calm. The order of requests tells of it: :mod:`~pytest_llmbench.stats.backlog`.

Several runs: ω² is the mean over runs, and the spread between the runs' means replaces it where it is larger
(two levels, runs and samples in them).

Bootstrap intervals (``--llm-intervals``) come from a studentised block bootstrap of the mean. A resample is k
blocks of neighbouring samples, drawn with replacement from all runs and never across two; its studentised
mean is t* = (mean* - mean) / s*, s* the standard error from the k blocks drawn. The quantiles of t* stand in
for Student's: mean - t*(1 - α/2) s and mean - t*(α/2) s (Hall 1992, The Bootstrap and Edgeworth Expansion;
Götze and Künsch 1996, Annals of Statistics 24). They bring the sample's skewness along.

Blocks are 2 m samples long, m the memory, and n / 100 at least, n / 6 at most. Whatever has an interval rests
on a mean, that of its influence or of a 0/1 series, so this serves every figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Literal, NamedTuple, Protocol

import numpy as np

from pytest_llmbench.stats.dependence import SHORTEST_SERIES, memory
from pytest_llmbench.stats.runs import (
    OPEN,
    FloatArray,
    Interval,
    Runs,
    Samples,
    as_runs,
    batch_means,
    is_constant,
    mean_of,
    pooled,
)

FEWEST_EFFECTIVE = 30
"""Fewest effective samples for a mean, a ratio or a rate. With fewer, neither spread nor dependence is known
well enough: the interval of a mean of latencies stays open above, that of others on both sides. Order
statistics are exact at any size."""
FEWEST_COSINES = 3
_ENOUGH_COSINES = 12
_MOST_COSINES = 24
"""Most cosines B. More would narrow an interval by 3 %, and hide the lowest frequencies among the rest."""
_LOWEST = (4, 8)
_CHANCE, _FEWEST_COMPARED, _USUAL = 0.8, 2, 0.95
"""Limits of the test whether the ``_LOWEST`` cosines count alone: the level of the F test, how many others it
compares them with at least, and the level at which the wider interval is chosen."""
_MEMORIES, _FEWEST_MEMORIES = 8, 4
"""How many memories of a sample make a cosine: enough to see no bias, and the fewest that will do where B is
small."""
_SKEWNESS_BATCH, _FEWEST_SKEWED = 2, 16
"""How many memories long a batch for the skewness is, and the fewest batches: that of fewer is chance."""


_FARTHEST = 0.8
"""The largest share of a value, or of its queue, that an error may be; beyond it an end is open."""
_LONG = 1 << 18
_MOST_ROUNDS = 100


class _Studentised(Protocol):
    @property
    def freedom(self) -> float: ...

    @property
    def resampled(self) -> FloatArray | None: ...


class Spread(NamedTuple):
    """The spread of the mean of a sample: its error, and how well that is known."""

    error: float
    """Standard error of the mean, in the samples' unit."""
    freedom: float
    """Degrees of freedom that the error rests on."""
    skewness: float
    """Skewness of the distribution of the mean."""
    worth: float
    """Number of independent samples with the same standard error, from 1 to n."""
    dependence: float = 0.0
    """Share of the error's square that is due to dependence."""
    recalled: float = 0.0
    """(m - 1) / n: the share of the sample that its memory spans."""
    resampled: FloatArray | None = None
    """Studentised means of resamples, ascending, whose quantiles stand in for Student's; None: Student's are
    used."""

    def lengthening(self, level: float) -> float | None:
        """The factor by which an end lies farther where the sample is a stretch of few memories; ``None``:
        the end is open."""
        stretch = stretched(self.recalled, level) if self.dependence > 0 else 1.0
        if stretch is None:
            return None
        return math.sqrt(1 + self.dependence * (stretch**2 - 1))


def stretched(recalled: float, level: float) -> float | None:
    """The factor 1 / (1 - a), a = z · √(m / n); ``None`` for a > 0.8. ``recalled``: the share m / n.

    z is at most that of 95 %: beyond it, at the levels of early looks, nothing would ever be bounded.
    """
    relative = normal_quantile(min(level, _USUAL)) * math.sqrt(recalled)
    return 1 / (1 - relative) if relative <= _FARTHEST else None


def memories_required(recalled: float, level: float) -> float:
    """How many times as many samples are needed so that an end is not open for their memory alone."""
    return (normal_quantile(min(level, _USUAL)) / _FARTHEST) ** 2 * recalled


@lru_cache(maxsize=256)
def normal_quantile(level: float) -> float:
    """The two-sided quantile z_{(1 + level)/2}."""
    from scipy.special import ndtri

    return float(ndtri((1 + level) / 2))


def spread(
    samples: Samples,
    *,
    lags: int | None = None,
    tested: bool = True,
    skewed: bool = True,
    seed: int = 0,
) -> Spread | None:
    """The spread of the mean; ``None`` below ten samples. ``lags``: the memory, by default :func:`memory`.

    ``tested``: whether the lowest cosines count alone where the spectrum rises towards them. ``skewed``:
    whether the skewness is asked for; else it is 0. ``seed``: of the resamples, where a bootstrap was asked
    for (:mod:`~pytest_llmbench.stats.spectral`).
    """
    runs = as_runs(samples)
    n = sum(map(len, runs))
    if n < SHORTEST_SERIES:
        return None
    lags = memory(runs) if lags is None else lags
    every = pooled(runs)
    centre = mean_of(every)
    scale = float(np.max(np.abs(every - centre)))
    if scale == 0.0 or is_constant(every):
        return Spread(0.0, float(n - 1), 0.0, float(n))
    centred = tuple((run - centre) / scale for run in runs)
    drawn = draw_blocks(centred, lags, seed) if bootstrap_is_chosen() else None
    within = _within(centred, lags, tested) if drawn is None else drawn[:2]
    variance, freedom = _between(centred, *within)
    single = mean_of(np.square(pooled(centred)))
    variance = max(variance, 1e-12 * single / n)
    return Spread(
        error=scale * math.sqrt(variance),
        freedom=freedom,
        skewness=_skewness(centred, _SKEWNESS_BATCH * lags) if skewed else 0.0,
        worth=min(float(n), max(1.0, single / variance)),
        dependence=max(0.0, 1 - single / n / variance),
        recalled=(lags - 1) / n,
        # Runs that differ by more than their samples explain are too few to be resampled.
        resampled=drawn[2] if drawn is not None and variance == within[0] else None,
    )


def student_interval(point: float, of: Spread, *, level: float = 0.95) -> Interval:
    """The interval point ± t · error, with the end on the side of the skewness farther away; for any
    statistic that is nearly a mean, given the :func:`spread` of its influence. Open where the error has no
    bound."""
    down, up = (_lengthened(leg, of, level) for leg in legs(of, level))
    return Interval(None if down is None else point - down, None if up is None else point + up)


def with_rise(upper: float | None, point: float, independent: float, rise: float) -> float | None:
    """An upper end that allows for a hidden queue: at least √(a² + rise²) above the point, a the distance
    that it had for ``independent`` samples. An open end stays open, and one without limit is."""
    if upper is None or rise == 0.0:
        return upper
    if math.isinf(rise):
        return None
    return max(upper, point + math.hypot(independent, rise))


def mean_interval(
    samples: Samples, *, level: float = 0.95, of: Spread | None = None, rise: float = 0.0, fall: float = 0.0
) -> Interval:
    """Interval of the mean of latencies; open for fewer than ten samples. ``of``: their :func:`spread`.

    The upper end is that of :func:`upper_end`, counted from the smallest sample; the lower one is at least
    the smallest sample. ``rise`` and ``fall``: how much longer or shorter a hidden queue may be, where there
    is word of it (:mod:`~pytest_llmbench.stats.backlog`).
    """
    runs = as_runs(samples)
    of = spread(runs) if of is None else of
    if of is None:
        return OPEN
    every = pooled(runs)
    mean, least = float(every.mean()), float(every.min())
    down, _ = legs(of, level)
    farthest = upper_end(mean - least, of, level)
    upper = None if farthest is None else least + farthest
    independent = normal_quantile(level) * float(every.std()) / math.sqrt(len(every))
    if down is not None and fall > 0:
        down = max(down, math.hypot(independent, fall))
    return Interval(
        least if down is None else max(least, mean - down), with_rise(upper, mean, independent, rise)
    )


def upper_end(height: float, of: Spread, level: float, power: float = 1.0) -> float | None:
    """Upper end of a positive value whose error grows as a power of it; ``None`` where there is none.

    It is that u of which the observed height would still be in reach: u = height + leg · (u / height)^power,
    for power 1 height / (1 - a), a = leg / height. Errors of latencies do grow with their mean (in a queue,
    as its square: Whitt 1989, Management Science 35), and a sample with a > 0.8 bounds nothing above. Where
    the sample is a few memories long it is the end that these allow, if that is farther.
    """
    _, leg = legs(of, level)
    stretch = _lengthened(leg, of, level)
    if leg is None or stretch is None:
        return None
    grown = _grown(height, leg, power)
    return None if grown is None else max(grown, height + stretch)


def _grown(height: float, leg: float, power: float) -> float | None:
    if leg == 0.0:
        return height
    relative = leg / height if height > 0 else math.inf
    if power == 1.0:
        return height / (1 - relative) if relative <= _FARTHEST else None
    # The curve 1 + a y^k meets the diagonal as long as a ≤ (k-1)^(k-1) / k^k.
    if relative >= (power - 1) ** (power - 1) / power**power:
        return None
    ratio = 1.0
    for _ in range(_MOST_ROUNDS):
        ratio = 1 + relative * ratio**power
    return height * ratio


def _lengthened(leg: float | None, of: Spread, level: float) -> float | None:
    by = of.lengthening(level)
    return None if leg is None or by is None else leg * by


def legs(of: Spread, level: float) -> tuple[float | None, float | None]:
    """The distances of the lower and the upper end from the point, neither shorter than by Student's t;
    ``None`` where the skewness is more than its correction can handle (Hall's singularity)."""
    if not 0 < level < 1:
        raise ValueError(f"a confidence level lies between 0 and 1, not at {level}")
    if of.resampled is not None:
        low, high = np.quantile(of.resampled, [(1 - level) / 2, (1 + level) / 2])
        return of.error * max(0.0, float(high)), of.error * max(0.0, float(-low))
    t = student_quantile(of.freedom, level)
    quantiles = _unskewed(t, of.skewness), _unskewed(t, -of.skewness)
    down, up = (None if one is None else of.error * max(t, one) for one in quantiles)
    return down, up


@lru_cache(maxsize=4096)
def student_quantile(freedom: float, level: float) -> float:
    """The two-sided quantile t_{(1 + level)/2}."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


def quantile(of: _Studentised, level: float) -> float:
    """The two-sided quantile of a studentised mean: Student's, or that of the resamples."""
    if of.resampled is None:
        return student_quantile(of.freedom, level)
    return float(np.quantile(np.abs(of.resampled), level))


def _unskewed(t: float, skewness: float) -> float | None:
    """Quantile of the studentised mean: (∛(1 + 6 β (t - β)) - 1) / 2 β, β a sixth of the mean's skewness.

    ``None`` where the root is of nothing positive: from there on the quantile has no bound.
    """
    beta = skewness / 6
    if abs(beta) < 1e-4:
        return t
    inside = 1 + 6 * beta * (t - beta)
    return (math.cbrt(inside) - 1) / (2 * beta) if inside > 0 else None


def _within(runs: Runs, lags: int, tested: bool) -> tuple[float, float]:
    """The variance of the pooled mean from inside the runs, and its degrees of freedom."""
    n = sum(map(len, runs))
    powers = [_powers(run, _cosines(len(run), lags)) for run in runs]
    every = np.concatenate(powers)
    if not len(every):
        return 0.0, 1.0
    variance, count = mean_of(every), len(every)
    if tested:
        variance, count = _of_rising(powers, variance, count)
    return variance / n, float(count)


def _of_rising(powers: Sequence[FloatArray], variance: float, count: int) -> tuple[float, int]:
    """Long-run variance and degrees of freedom of the lowest cosines alone, where they have more power than
    the rest has by chance and make the wider interval; else the given ones."""
    widest = variance * student_quantile(count, _USUAL) ** 2
    for wanted in _LOWEST:
        each = max(1, wanted // len(powers))
        low, rest = (
            np.concatenate([own[part] for own in powers]) for part in (slice(each), slice(each, None))
        )
        if len(rest) < _FEWEST_COMPARED:
            continue
        power, ratio = mean_of(low), _by_chance(len(low), len(rest))
        width = power * student_quantile(len(low), _USUAL) ** 2
        if power > ratio * mean_of(rest) and width > widest:
            variance, count, widest = power, len(low), width
    return variance, count


@lru_cache(maxsize=1024)
def _by_chance(low: int, rest: int) -> float:
    """The ratio of so many powers to so many others that chance explains."""
    from scipy.special import fdtri

    return float(fdtri(low, rest, _CHANCE))


def _cosines(n: int, lags: int) -> int:
    """The number of cosines B for a run of n samples; at least 1."""
    few = max(FEWEST_COSINES, min(_ENOUGH_COSINES, n // (_FEWEST_MEMORIES * lags)))
    many = min(int(n ** (2 / 3)), n // 4, _MOST_COSINES)
    return max(1, min(max(n // (_MEMORIES * lags), few), many))


def _powers(run: FloatArray, cosines: int) -> FloatArray:
    """Λ_j² for j = 1 … B; none for a run too short to have any."""
    if len(run) < 2:
        return np.empty(0)
    from scipy.fft import dct

    n = _transformed(len(run))
    transform = dct(run[:n], type=2)[1 : cosines + 1]
    return np.asarray(np.square(transform) / (2 * n), dtype=np.float64)


def _transformed(n: int) -> int:
    """How many of n samples are transformed. The last ones of a long run, fewer than 1 %, are left out where
    n has a prime factor above 11: it would take five times the memory and up to ten times as long."""
    while n > _LONG and not _of_small_factors(n):
        n -= 1
    return n


def _of_small_factors(n: int) -> bool:
    for prime in (2, 3, 5, 7, 11):
        while n % prime == 0:
            n //= prime
    return n == 1


def _between(runs: Runs, within: float, freedom: float) -> tuple[float, float]:
    """The larger of ``within`` and the spread between run means, weighted by length, with its degrees of
    freedom.

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
    """Skewness of the mean: that of batch means over √batches; 0 for too few batches."""
    batch = min(batch, max(1, max(map(len, runs)) // _FEWEST_SKEWED))
    means = [batch_means(run, batch) for run in runs]
    every = np.concatenate([own - mean_of(run) for own, run in zip(means, runs, strict=True)])
    variance = mean_of(np.square(every)) if len(every) else 0.0
    if variance <= 0.0:
        return 0.0
    return float(mean_of(every**3) / variance**1.5 / math.sqrt(len(every)))


Intervals = Literal["analytic", "bootstrap"]
RESAMPLES = 1999
_BLOCK_MEMORIES, _MOST_BLOCKS, _FEWEST_BLOCKS = 2, 100, 6

_chosen: ContextVar[Intervals] = ContextVar("intervals", default="analytic")


def choose_intervals(intervals: Intervals) -> None:
    """Set the kind of intervals for this context from here on."""
    _chosen.set(intervals)


@contextmanager
def intervals_chosen(intervals: Intervals) -> Iterator[None]:
    token = _chosen.set(intervals)
    try:
        yield
    finally:
        _chosen.reset(token)


def bootstrap_is_chosen() -> bool:
    return _chosen.get() == "bootstrap"


def draw_blocks(runs: Runs, lags: int, seed: int) -> tuple[float, float, FloatArray] | None:
    """The variance of the mean of all runs, its degrees of freedom, and the studentised means of resamples in
    ascending order; ``None`` for fewer than six blocks, or blocks that do not differ."""
    n = sum(map(len, runs))
    longest = max(1, n // _FEWEST_BLOCKS)
    length = min(longest, min(map(len, runs)), max(_BLOCK_MEMORIES * lags, math.ceil(n / _MOST_BLOCKS)))
    apart = np.concatenate([_block_means(run, length)[::length] for run in runs])
    count = len(apart)
    if count < _FEWEST_BLOCKS or float(np.ptp(apart)) == 0.0:
        return None
    every = np.concatenate([_block_means(run, length) for run in runs])
    drawn = every[np.random.default_rng([seed, n]).integers(len(every), size=(RESAMPLES, count))]
    errors = drawn.std(axis=1, ddof=1) / math.sqrt(count)
    usable = errors > 1e-9 * float(np.max(errors))
    if not usable.any():
        return None
    studentised = (drawn.mean(axis=1) - float(every.mean()))[usable] / errors[usable]
    return float(np.var(apart, ddof=1)) / count, count - 1.0, np.sort(studentised)


def _block_means(run: FloatArray, length: int) -> FloatArray:
    """The means of all blocks of this length, one beginning at every sample."""
    sums = np.cumsum(np.concatenate(([0.0], run)))
    return np.asarray((sums[length:] - sums[:-length]) / length, dtype=np.float64)
