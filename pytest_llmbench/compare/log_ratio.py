"""The difference of two arms on the logarithmic scale, from the values of whole runs, or of whole sessions.

A ratio of medians, tails or rates spreads evenly on logarithms, and the noise of a run is a share of its
level: so differences of logarithms are judged by Student's t.

Paired runs (measured side by side): x_i = log(candidate_i / baseline_i); mean ± t(ν) s / √n, ν = n - 1.
Independent runs: difference of the mean logarithms, s² / n of each arm added, ν by Welch (1947, Biometrika
34) and Satterthwaite (1946, Biometrics Bulletin 2):

    ν = (v_b + v_c)² / (v_b² / (n_b - 1) + v_c² / (n_c - 1)),      v = s² / n.

Sessions: runs of one session know nothing of other days. y_h is the mean logarithm over the K runs of
session h, x that of the candidate's, whose own squared error is e². With s² the variance of the H values y,

    x - mean(y) ± t(H - 1) √(max(s², e²) + s² / H),

which is exact where sessions are alike in their noise, whatever it is. It is never less than what the runs
tell, with their pooled variance w² of ν degrees of freedom: t(ν) w √(1/K + 1/(K H)). So luck with few days
makes no narrow interval.

Power: with a true difference δ beyond the margin, (x - margin) / se follows the noncentral t distribution
with noncentrality δ / σ, and "lower > margin" is "above t(ν)". σ is known as se only, with ν₀ degrees of
freedom, so the power is averaged over σ² = ν₀ se² / χ²(ν₀); δ is found where it is 0.8 (Julious 2004,
Statistics in Medicine 23, for trials with estimated variance).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from pytest_llmbench.stats.runs import FloatArray

POWER = 0.8
"""Power of the detectable difference: it is found four times out of five."""
_SHARES = 200
_STEPS, _CLOSE = 60, 1e-10
"""The most steps of the search for the power, and how near to it is near enough."""
_ROUNDING = 1e-12
"""Standard errors below this are rounding errors of equal values, not noise."""


@dataclass(frozen=True, slots=True)
class LogRatio:
    """log(candidate / baseline), natural logarithm, with what Student's t needs."""

    point: float
    error: float
    """Standard error of ``point``; 0 where every run measured the same."""
    freedom: float
    """Degrees of freedom; undefined, NaN, with no error."""
    level: float
    method: str
    noise_freedom: float | None = None
    """Degrees of freedom of the error where they are not those of the comparison: noise known beforehand."""

    @property
    def halfwidth(self) -> float:
        return 0.0 if self.error == 0.0 else self._quantile() * self.error

    @property
    def detectable(self) -> float | None:
        """Difference beyond a margin that is found with power 0.8; None where noise cannot be told."""
        return self.found_with(POWER)

    def found_with(self, power: float) -> float | None:
        """Difference beyond a margin that is found with this power; None where noise cannot be told."""
        if self.error == 0.0:
            return None
        own = self.freedom if self.noise_freedom is None else self.noise_freedom
        return _detectable(self.freedom, own, self.level, power) * self.error

    def _quantile(self) -> float:
        return _quantile(self.freedom, self.level)


def _quantile(freedom: float, level: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 0.5 + level / 2.0))


@lru_cache(maxsize=1024)
def _detectable(freedom: float, own: float, level: float, power: float) -> float:
    """The smallest difference that is found with the wanted power, in standard errors.

    ``own`` is the degrees of freedom of the standard error. The result is the same for all metrics of paired
    runs.
    """
    from scipy.special import chdtri, nctdtr

    quantile = _quantile(freedom, level)
    # Noise at the middles of equal shares of what it may be, in units of the estimate.
    noise = np.sqrt(own / chdtri(own, (np.arange(_SHARES) + 0.5) / _SHARES))

    def lacking(difference: float) -> float:
        return power - 1.0 + float(np.mean(nctdtr(freedom, difference / noise, quantile)))

    low, high = 0.0, 1.0
    while lacking(high) > 0:
        low, high = high, 2.0 * high
    return _root(lacking, low, high)


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """The zero of ``falling`` between ``low``, where it is above zero, and ``high``, where it is not.

    Regula falsi in the manner of Illinois (Dowell and Jarratt 1971, BIT 11): some eight steps where halving
    takes forty. SciPy's would load the whole of its optimizers.
    """
    above, below = falling(low), falling(high)
    kept = 0
    for _ in range(_STEPS):
        between = low + (high - low) * above / (above - below)
        found = falling(between)
        if abs(found) < _CLOSE:
            return between
        if found > 0:
            low, above = between, found
            below, kept = (below / 2 if kept > 0 else below), 1
        else:
            high, below = between, found
            above, kept = (above / 2 if kept < 0 else above), -1
    return high


def log_ratio(
    baseline: Sequence[float], candidate: Sequence[float], *, paired: bool, level: float = 0.95
) -> LogRatio:
    """The ratio of two arms, on logarithms, from positive values with at least two runs of each arm.

    Raises ValueError for pairs of unequal number.
    """
    before, after = np.log(np.asarray(baseline, float)), np.log(np.asarray(candidate, float))
    if paired:
        return _paired(before, after, level)
    point = float(after.mean() - before.mean())
    own = [float(arm.var(ddof=1)) / len(arm) for arm in (before, after)]
    error = math.sqrt(sum(own))
    if error < _ROUNDING:
        return _noiseless(point, level)
    weights = [share**2 / (len(arm) - 1) for share, arm in zip(own, (before, after), strict=True)]
    freedom = sum(own) ** 2 / sum(weights)
    method = f"Welch's t on logarithms, {len(before)} and {len(after)} runs, {freedom:.1f} degrees of freedom"
    return LogRatio(point, error, freedom, level, method)


def _paired(before: FloatArray, after: FloatArray, level: float) -> LogRatio:
    if len(before) != len(after):
        raise ValueError(f"{len(before)} runs of the baseline cannot be paired with {len(after)}")
    pairs = after - before
    error = float(pairs.std(ddof=1)) / math.sqrt(len(pairs))
    if error < _ROUNDING:
        return _noiseless(float(pairs.mean()), level)
    return LogRatio(
        float(pairs.mean()), error, len(pairs) - 1.0, level, f"Student's t on {len(pairs)} paired log ratios"
    )


def session_ratio(
    sessions: Sequence[FloatArray], candidate: FloatArray, *, same_runs: bool, level: float = 0.95
) -> LogRatio:
    """The ratio of a session to earlier ones, at least two, from the logarithms of their runs. ``same_runs``:
    run i of all sessions has the same requests, which are not those of run k; then only the runs that all of
    them have are compared."""
    count = len(sessions)
    fewest = min(map(len, (*sessions, candidate))) if same_runs else None
    logs = [own[:fewest] for own in (*sessions, candidate)]
    left, kept = [own - own.mean() for own in logs], 1.0
    if same_runs:  # without the mean of each run in all sessions, which takes a share of the freedom
        left, kept = [own - np.mean(left, axis=0) for own in left], count / (count + 1)
    runs, squares = np.array([len(own) for own in logs]), np.array([(own**2).sum() for own in left])
    freedom = kept * (runs - 1)
    own = float(squares[-1] / freedom[-1] / runs[-1]) if freedom[-1] else 0.0
    pooled = float(squares.sum() / freedom.sum()) if freedom.any() else 0.0

    figures = np.array([own.mean() for own in logs])
    point, spread = float(figures[-1] - figures[:-1].mean()), float(figures[:-1].var(ddof=1))
    days = math.sqrt(max(spread, own) + spread / count)
    noise = math.sqrt(pooled * (1 / runs[-1] + (1 / runs[:-1]).sum() / count**2))
    if max(days, noise) < _ROUNDING:
        return _noiseless(point, level)
    method = f"Student's t on logarithms, one session against {count}"
    by_days = LogRatio(point, days, count - 1.0, level, method)
    by_runs = LogRatio(point, noise, float(freedom.sum()), level, f"{method}, by the noise of their runs")
    return max(by_days, by_runs, key=lambda found: found.halfwidth)


def _noiseless(point: float, level: float) -> LogRatio:
    rounded = 0.0 if abs(point) < _ROUNDING else point
    return LogRatio(rounded, 0.0, math.nan, level, "ratio of runs that do not differ among themselves")
