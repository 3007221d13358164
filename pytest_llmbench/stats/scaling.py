"""The growth of latency with length: a power law and a straight line through the means of the lengths.

Each length is one point, mean length against mean latency, whatever the number of its requests (section
5.9.4, AMB-21). A coefficient is Σ w_i y_i with fixed weights, so its error follows from the standard errors
of the means (:mod:`~pytest_llmbench.stats.spectral`; of fewer than 50 requests s / √n),

    error² = Σ w_i² error_i²,     degrees of freedom error⁴ / Σ (w_i⁴ error_i⁴ / f_i)  (Satterthwaite 1946),

and its interval is Student's t, lengthened on the side of the skewness. It holds the truth if the model does.
R² tells how well it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.draft import FEWEST_LENGTHS
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval
from pytest_llmbench.stats.spectral import Spread, spread, student_interval

_FEWEST_FOR_DEPENDENCE = 50
"""Fewest requests of a length that tell dependence from chance; fewer are taken as independent."""


class Group(NamedTuple):
    """The requests of one length, in arrival order."""

    lengths: FloatArray
    latencies: FloatArray


class Fit(NamedTuple):
    slope: float
    intercept: float
    r_squared: float | None
    """R²; ``None`` where the fitted values do not vary at all."""
    slope_interval: Interval
    intercept_interval: Interval
    points: int
    samples: int


def power_law(groups: Sequence[Group], *, level: float = 0.95) -> Fit | None:
    """Fit of log latency = slope · log length + intercept: the slope is the exponent k of latency ∝ length^k.

    ``None`` for fewer than three different lengths or a mean that is not positive.
    """
    return _fit(groups, level, logarithmic=True)


def straight_line(groups: Sequence[Group], *, level: float = 0.95) -> Fit | None:
    """Fit of latency = slope · length + intercept, in the units given. ``None`` for fewer than three
    lengths."""
    return _fit(groups, level, logarithmic=False)


def _fit(groups: Sequence[Group], level: float, *, logarithmic: bool) -> Fit | None:
    used = [group for group in groups if len(group.latencies)]
    x = np.array([float(np.mean(group.lengths)) for group in used])
    y = np.array([float(np.mean(group.latencies)) for group in used])
    if len(np.unique(x)) < FEWEST_LENGTHS or (logarithmic and min(x.min(), y.min()) <= 0):
        return None
    if logarithmic:
        x, y = np.log(x), np.log(y)
    slope, intercept, of_slope, of_intercept = _least_squares(x, y)
    errors = None
    if min(len(group.latencies) for group in used) > 1:
        errors = [_error(group, slope, logarithmic) for group in used]
    intervals = [
        OPEN if errors is None else student_interval(value, _combined(weights, errors), level=level)
        for value, weights in ((slope, of_slope), (intercept, of_intercept))
    ]
    return Fit(
        slope=slope,
        intercept=intercept,
        r_squared=_r_squared(x, y, slope, intercept),
        slope_interval=intervals[0],
        intercept_interval=intervals[1],
        points=len(used),
        samples=sum(len(group.latencies) for group in used),
    )


def _least_squares(x: FloatArray, y: FloatArray) -> tuple[float, float, FloatArray, FloatArray]:
    """Slope, intercept, and for each the weights w with which it is Σ w_i y_i."""
    around = x - x.mean()
    of_slope = around / np.square(around).sum()
    of_intercept = 1 / len(x) - x.mean() * of_slope
    return float(of_slope @ y), float(of_intercept @ y), of_slope, of_intercept


def _r_squared(x: FloatArray, y: FloatArray, slope: float, intercept: float) -> float | None:
    total = float(np.square(y - y.mean()).sum())
    if total == 0.0:
        return None
    return 1.0 - float(np.square(y - slope * x - intercept).sum()) / total


def _error(group: Group, slope: float, logarithmic: bool) -> Spread:
    """The spread of the distance of a length's point from the line; both of its coordinates are means."""
    lengths, latencies = group
    if logarithmic:
        lengths, latencies = lengths / float(np.mean(lengths)), latencies / float(np.mean(latencies))
    distances = latencies - slope * lengths
    n = len(distances)
    if n >= _FEWEST_FOR_DEPENDENCE and (of := spread(distances)) is not None:
        return of
    around = distances - float(np.mean(distances))
    deviation = float(np.sqrt(np.square(around).sum() / (n - 1)))
    skewness = float(np.mean(around**3)) / deviation**3 / float(np.sqrt(n)) if deviation > 0 else 0.0
    return Spread(deviation / float(np.sqrt(n)), n - 1.0, skewness, float(n))


def _combined(weights: FloatArray, errors: Sequence[Spread]) -> Spread:
    """The spread of Σ w_i y_i."""
    squares = np.square(weights * np.array([of.error for of in errors]))
    variance = float(squares.sum())
    worth = sum(of.worth for of in errors)
    if variance == 0.0:
        return Spread(0.0, sum(of.freedom for of in errors), 0.0, worth)
    cubes = np.sign(weights) * squares**1.5 * np.array([of.skewness for of in errors])
    freedom = variance**2 / float((np.square(squares) / np.array([of.freedom for of in errors])).sum())
    return Spread(float(np.sqrt(variance)), freedom, float(cubes.sum()) / variance**1.5, worth)
