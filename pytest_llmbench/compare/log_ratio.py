"""How two arms differ on the logarithmic scale, from the values of whole runs.

A ratio of medians, tails or rates spreads evenly on logarithms, and the noise of a run is a share of its
level: so differences of logarithms are judged by Student's t.

Paired runs (measured side by side): x_i = log(candidate_i / baseline_i); mean ± t(ν) s / √n, ν = n - 1.
Independent runs: difference of the mean logarithms, s² / n of each arm added, ν by Welch (1947, Biometrika
34) and Satterthwaite (1946, Biometrics Bulletin 2):

    ν = (v_b + v_c)² / (v_b² / (n_b - 1) + v_c² / (n_c - 1)),      v = s² / n.

Power: with a true difference δ beyond the margin, (x - margin) / se follows the noncentral t distribution
with noncentrality δ / se, and "lower > margin" is "above t(ν)". The δ found with power 0.8 is λ se, where
λ solves F(t; ν, λ) = 0.2 (Julious 2004, Statistics in Medicine 23, for trials with estimated variance).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.stats.runs import FloatArray

POWER = 0.8
"""Four times out of five."""
_ROUNDING = 1e-12
"""Below this a standard error is what arithmetic leaves of equal values, not noise."""


@dataclass(frozen=True, slots=True)
class LogRatio:
    """log(candidate / baseline) with what is needed of Student's t; natural logarithm."""

    point: float
    error: float
    """Standard error of ``point``; 0 where every run measured the same."""
    freedom: float
    """Degrees of freedom; undefined, NaN, with no error."""
    level: float
    method: str

    @property
    def halfwidth(self) -> float:
        return 0.0 if self.error == 0.0 else self._quantile() * self.error

    @property
    def detectable(self) -> float | None:
        """Difference beyond a margin that is found with power 0.8; None where noise cannot be told."""
        if self.error == 0.0:
            return None
        from scipy.special import nctdtrinc

        return float(nctdtrinc(self.freedom, 1.0 - POWER, self._quantile())) * self.error

    def _quantile(self) -> float:
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 0.5 + self.level / 2.0))


def log_ratio(
    baseline: Sequence[float], candidate: Sequence[float], *, paired: bool, level: float = 0.95
) -> LogRatio:
    """Of positive values, two runs of each arm at least. ValueError for pairs of unequal number."""
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


def _noiseless(point: float, level: float) -> LogRatio:
    rounded = 0.0 if abs(point) < _ROUNDING else point
    return LogRatio(rounded, 0.0, math.nan, level, "ratio of runs that do not differ among themselves")


__all__ = ["POWER", "LogRatio", "log_ratio"]
