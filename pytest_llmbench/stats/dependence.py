"""How the samples of a run depend on each other, and what that costs.

Requests that queue behind each other have similar latencies, so n of them tell less than n independent ones.
The **effective sample size** n / τ says how much less, τ = g / R(0) the long-run variance over the plain one.

It rests on the flat-top lag-window estimate of Politis and White (2004, Econometric Reviews 23), whose
bandwidth follows from the first lag after which no autocorrelation is significant. Intervals of figures take
the more careful estimate of :mod:`~pytest_llmbench.stats.spectral`.

The **memory** of a series is the number of lags after which no autocorrelation is significant. Of a slow
queue under noisy service no single lag tells: each autocorrelation is the queue's small share of the
variance. Means of 2, 4, 8 … samples in a row average the noise out and leave the queue, so it is looked for
at every such scale.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.runs import (
    FloatArray,
    Samples,
    as_runs,
    batch_means,
    events,
    is_constant,
    mean_of,
    pooled,
)

SHORTEST_SERIES = 10
"""Shortest series in which dependence can be estimated; shorter ones are taken as independent."""
_SIGNIFICANCE = 2.0
_QUIET_LAGS = 5
"""Fewest insignificant lags in a row that end the dependence: K_n = max(5, √log10 n), with c = 2 (Politis and
White)."""
_FEWEST_EXCEEDANCES = 20
"""Fewest exceedances that show clustering; for a rarer event dependence is read at the nearest percentile
with that many."""


_AT_ONCE = 1 << 19
"""How many samples are transformed together; a transform takes some 50 bytes for each."""


class _Spectrum(NamedTuple):
    variance: float
    """R(0), the plain variance."""
    long_run_variance: float
    """g = Σ λ(k/M) R(k) over all lags k."""


def autocovariance(
    samples: FloatArray, lags: int, *, centre: float | None = None, at_once: int = _AT_ONCE
) -> FloatArray:
    """R(0) … R(lags), R(k) = Σ (x_t - c)(x_{t+k} - c) / n, by FFT. ``centre``: c, by default the mean;
    ``at_once``: samples per transform."""
    n = len(samples)
    deviations = samples - (mean_of(samples) if centre is None else centre)
    if n <= at_once:
        return _products(deviations, deviations, lags) / n
    products = np.zeros(lags + 1)
    for first in range(0, n, at_once):
        products += _products(deviations[first : first + at_once], deviations[first:], lags)
    return products / n


def _products(samples: FloatArray, onwards: FloatArray, lags: int) -> FloatArray:
    """Σ x_t y_{t+k} for k from 0 to ``lags``, over the samples x; y goes on where they end."""
    onwards = onwards[: len(samples) + lags]
    size = 1 << (len(samples) + lags).bit_length()
    transform = np.fft.rfft(samples, size)
    other = transform if len(onwards) == len(samples) else np.fft.rfft(onwards, size)
    return np.asarray(np.fft.irfft(other * np.conj(transform), size)[: lags + 1], dtype=np.float64)


def effective_size(samples: Samples) -> float:
    """Number of independent samples whose mean would have the same variance; from 1 to n, summed over
    runs.

    Deviations are taken from the common mean, so runs that differ in level count as dependent.
    """
    runs = as_runs(samples)
    if not runs:
        return 0.0
    centre = float(np.mean(pooled(runs)))
    return sum(_effective_size(run, centre) for run in runs)


def exceedances(samples: Samples, q: float) -> tuple[FloatArray, ...]:
    """For each run the 0/1 series "above the q-th percentile of all samples", as far as it is informative.

    The sampling error of a percentile consists of it. Where fewer than 20 samples lie beyond the percentile,
    the nearest percentile with 20 beyond it stands in.
    """
    runs = as_runs(samples)
    if not runs:
        return ()
    every = pooled(runs)
    threshold = _linear(every, informative(q, len(every)))
    # With ties nothing may lie above the percentile; then reaching it is the event.
    above = np.greater if float(every.max()) > threshold else np.greater_equal
    return events([above(run, threshold) for run in runs])


def _linear(samples: FloatArray, q: float) -> float:
    """``np.percentile(samples, q)`` to the last digit, without its overhead, which for a thousand samples is
    most of the time."""
    place = (len(samples) - 1) * (q / 100)
    low = math.floor(place)
    high = min(low + 1, len(samples) - 1)
    ordered = np.partition(samples, (low, high))
    below, above, share = float(ordered[low]), float(ordered[high]), place - low
    if share >= 0.5:
        return above - (above - below) * (1 - share)
    return below + (above - below) * share


def informative(q: float, n: int) -> float:
    """The percentile used for the q-th of n samples: itself, or the nearest one with 20 samples beyond it."""
    margin = min(50.0, 100.0 * _FEWEST_EXCEEDANCES / max(1, n))
    return min(max(q, margin), 100.0 - margin)


def _effective_size(run: FloatArray, centre: float) -> float:
    spectrum = _spectrum(run, centre)
    if spectrum is None:
        return float(len(run))
    inflation = max(1.0, spectrum.long_run_variance / spectrum.variance)
    return max(1.0, len(run) / inflation)


def _spectrum(run: FloatArray, centre: float) -> _Spectrum | None:
    """The two variances of a run; ``None`` when there is nothing to estimate: a very short or a constant
    series."""
    n = len(run)
    scale = float(np.max(np.abs(run - centre), initial=0.0))
    if n < SHORTEST_SERIES or scale == 0.0 or float(np.ptp(run)) == 0.0:
        return None
    longest = min(n - 1, max(1, math.ceil(min(3 * math.sqrt(n), n / 3))) + _quiet_lags(n))
    # Scaled, so that squares of tiny or huge values neither vanish nor overflow.
    covariance = autocovariance((run - centre) / scale, longest, centre=0.0)
    bandwidth = min(2 * max(1, last_significant_lag(covariance / covariance[0], n)), longest)
    lags = np.arange(longest + 1)
    # The flat-top window: 1 up to M/2, falling to 0 at M.
    window = np.clip(2 * (1 - lags / bandwidth), 0.0, 1.0)
    weighted = window * covariance
    long_run = 2 * float(weighted.sum()) - float(covariance[0])
    # The flat-top window may come out negative; Bartlett's cannot, and underestimates at worst.
    bartlett = np.maximum(0.0, 1 - lags / bandwidth) * covariance
    floor = max(2 * float(bartlett.sum()) - float(covariance[0]), 1e-12)
    return _Spectrum(float(covariance[0]), max(long_run, floor))


def last_significant_lag(correlation: FloatArray, n: int) -> int:
    """The lag after which K_n lags in a row are insignificant, |ρ(k)| < 2 √(log10 n / n); 0 for none.

    ``correlation``: ρ(0), ρ(1) … of ``n`` samples; K_n = max(5, √log10 n).
    """
    quiet = _quiet_lags(n)
    significant = np.abs(correlation[1:]) >= significant_correlation(n)
    if len(significant) >= quiet:
        runs_of_quiet = np.convolve(~significant, np.ones(quiet, dtype=int), mode="valid") == quiet
        if runs_of_quiet.any():
            return int(np.argmax(runs_of_quiet))
    return int(np.flatnonzero(significant)[-1]) + 1 if significant.any() else 0


def significant_correlation(n: int) -> float:
    """The smallest significant autocorrelation of n samples, 2 √(log10 n / n)."""
    return _SIGNIFICANCE * math.sqrt(math.log10(n) / n)


def _quiet_lags(n: int) -> int:
    return max(_QUIET_LAGS, math.ceil(math.sqrt(math.log10(n))))


_FEWEST_MEANS = 32
"""Fewest means at the longest scale at which memory is looked for."""
_FIRST_LAGS, _QUIET_END = 512, 10


def memory(samples: Samples, *, scales: bool = True) -> int:
    """The memory in lags: after them no autocorrelation of the runs is significant; 1 for independent
    samples.

    ``scales``: or none of their means of 2, 4, 8, … in a row, if that is farther.
    """
    varied = _varied(samples)
    if not varied:
        return 1
    return max(1, _last_lag(varied, _nearest(varied)), _farthest(varied) if scales else 0)


def memory_and_persistence(samples: Samples) -> tuple[int, int]:
    """:func:`memory`, and the memory in positive autocorrelation without a gap, of which a series that
    oscillates has none. Both follow from the same correlations."""
    varied = _varied(samples)
    if not varied:
        return 1, 1
    nearest, farthest, n = _nearest(varied), _farthest(varied), sum(map(len, varied))
    without_gap = _before_gap(nearest, n) if n >= _FEWEST_MEANS else 0
    return max(1, _last_lag(varied, nearest), farthest), max(1, without_gap, farthest)


def _varied(samples: Samples) -> list[FloatArray]:
    """The runs that are long enough and not constant, scaled so that no square overflows or vanishes."""
    runs = [run for run in as_runs(samples) if len(run) >= SHORTEST_SERIES]
    scale = max((float(np.max(np.abs(run))) for run in runs), default=0.0)
    return [run / scale for run in runs if not is_constant(run)]


def _farthest(varied: Sequence[FloatArray]) -> int:
    """The farthest significant lag at the scales from 2 on."""
    longest, width = 0, 2
    while sum(len(run) // width for run in varied) >= _FEWEST_MEANS:
        means = [batch_means(run, width) for run in varied if len(run) // width >= SHORTEST_SERIES]
        rough = [run for run in means if not is_constant(run)]
        longest = max(longest, width * _before_gap(_nearest(rough), sum(map(len, rough))) if rough else 0)
        width *= 2
    return longest


def _nearest(runs: Sequence[FloatArray]) -> FloatArray:
    """Autocorrelations of all runs at the first lags, from ρ(0) on."""
    return _correlation(runs, min(max(map(len, runs)) // 2, _FIRST_LAGS))


def _before_gap(correlation: FloatArray, n: int) -> int:
    """How many lags from the first on have significant positive autocorrelation. Further ones do not count:
    with many scales tried, single lags would turn up by chance."""
    small = np.flatnonzero(correlation[1:] < significant_correlation(n))
    return int(small[0]) if len(small) else len(correlation) - 1


def _last_lag(runs: Sequence[FloatArray], nearest: FloatArray) -> int:
    n, longest = sum(map(len, runs)), max(map(len, runs)) // 2
    correlation = nearest
    while True:
        last, lags = last_significant_lag(correlation, n), len(correlation) - 1
        # Significant to the end of the lags looked at: there may be more.
        if last < lags - _QUIET_END or lags == longest:
            return last
        correlation = _correlation(runs, min(longest, 8 * lags))


def _correlation(runs: Sequence[FloatArray], lags: int) -> FloatArray:
    """Autocorrelations ρ(0), ρ(1) … of all runs, each around its own mean."""
    total = np.zeros(lags + 1)
    for run in runs:
        own = min(lags, len(run) - 1)
        total[: own + 1] += len(run) * autocovariance(run, own)
    return np.asarray(total / total[0], dtype=np.float64)
