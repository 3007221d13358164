"""TTFT by input length: the draft's six half-open buckets (section 5.1.4.2, AMB-04), and how TTFT grows with
it (section 5.9.4, AMB-21): a power law and a straight line through the means of the lengths.

Each length is one point, mean length against mean latency, whatever the number of its requests. A coefficient
is Σ w_i y_i with fixed weights, so its error follows from the standard errors of the means
(:mod:`~pytest_llmbench.stats.spectral`; of fewer than 50 requests s / √n),

    error² = Σ w_i² error_i²,     degrees of freedom error⁴ / Σ (w_i⁴ error_i⁴ / f_i)  (Satterthwaite 1946),

and its interval is Student's t, lengthened on the side of the skewness. It holds the truth if the model does.
R² tells how well it fits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.latency import given_up, ttft_ms
from pytest_llmbench.metrics.ratios import ratio_of_sums
from pytest_llmbench.metrics.summary import GivenUp, distribution, estimate
from pytest_llmbench.model.draft import FEWEST_LENGTHS
from pytest_llmbench.model.estimate import LEVEL, Estimate, EstimateKind
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Samples
from pytest_llmbench.stats.spectral import Spread, spread, student_interval

EDGES = (0, 256, 512, 1024, 2048, 4096)
"""Lower edges of the buckets in input tokens. Each ends before the next edge; the last has no end."""
LABELS: tuple[str, ...] = (*(f"{low}-{high}" for low, high in pairwise(EDGES)), f"{EDGES[-1]}+")

Tokens = npt.NDArray[np.int64] | Sequence[npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Bucket:
    label: str
    count: int
    """Number of samples in the bucket."""
    metrics: Mapping[str, Estimate]
    """``ttft[0-256].p50`` … ``ttft[0-256].max``."""


def by_input_length(
    samples_ms: Samples,
    input_tokens: Tokens,
    *,
    given_up: Mapping[str, GivenUp] | None = None,
) -> list[Bucket]:
    """The non-empty buckets from short to long, each with the distribution of its samples.

    ``input_tokens`` is aligned with ``samples_ms``, run by run. A sample of unknown input length belongs to
    no bucket, so the counts may add up to less than the samples. ``given_up``: those of each label, where
    there are any. ValueError when the lengths differ.
    """
    runs = _each_run(samples_ms)
    tokens = _each_run(input_tokens)
    if [len(run) for run in runs] != [len(lengths) for lengths in tokens]:
        raise ValueError("every sample needs its input length")
    # 0 for the unknown (negative), 1 for the first bucket, and so on.
    places = [np.searchsorted(EDGES, lengths, side="right") for lengths in tokens]
    buckets = []
    for place, label in enumerate(LABELS, start=1):
        chosen: list[FloatArray] = [run[where == place] for run, where in zip(runs, places, strict=True)]
        count = sum(len(run) for run in chosen)
        if count:
            gone = (given_up or {}).get(label)
            metrics = distribution(f"ttft[{label}]", chosen, given_up=gone)
            buckets.append(Bucket(label, count, metrics))
    return buckets


def given_up_by_length(runs: Sequence[Records]) -> dict[str, GivenUp]:
    """The requests of each bucket that were given up on, as samples of TTFT. They lie where their lengths as
    asked for do: few were counted."""
    gone = [run.select(run.given_up) for run in runs]
    places = [np.searchsorted(EDGES, run.requested_input_tokens, side="right") for run in gone]
    return {
        label: given_up("ttft", [run.select(where == place) for run, where in zip(gone, places, strict=True)])
        for place, label in enumerate(LABELS, start=1)
        if any((where == place).any() for where in places)
    }


def _each_run(vectors: npt.NDArray[Any] | Sequence[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    return [vectors] if isinstance(vectors, np.ndarray) else [np.asarray(vector) for vector in vectors]


_METHOD = "t, from the errors of the mean of each length"
_TOO_FEW = "undefined: fewer than three lengths with successful requests"


@dataclass(frozen=True)
class PrefillScaling:
    power: Fit | None
    """Fit of log TTFT [ms] over log tokens, whose slope is k; None with too few lengths."""
    line: Fit | None
    """Fit of TTFT [ms] over tokens, slope in ms per token, intercept in ms; None with too few lengths."""
    metrics: dict[str, Estimate]
    """The metrics ``prefill_exponent`` (k), ``prefill_slope`` (us/token), ``prefill_intercept`` (ms), and R²
    of both fits."""


def length_group(records: Records) -> Group:
    """Input tokens and TTFT in ms of the successful requests; tokens as requested where the server counts
    none."""
    known = records.input_tokens != MISSING
    lengths = np.where(known, records.input_tokens, records.requested_input_tokens)
    has_both = (records.submitted_ns != MISSING) & (records.first_content_ns != MISSING)
    chosen = records.ok & has_both & (lengths > 0)
    return Group(lengths[chosen].astype(np.float64), ttft_ms(records.select(chosen)))


def ms_per_1k_tokens(records: Records, *, seed: int) -> Estimate:
    """1000 · mean TTFT / mean input tokens of one length, in ms."""
    lengths, latencies = length_group(records)
    return ratio_of_sums(1000 * latencies, lengths, unit="ms", seed=seed)


def prefill_scaling(levels: Sequence[Records]) -> PrefillScaling:
    """The power law and the straight line, each fitted to the means of the lengths."""
    groups = [length_group(records) for records in levels]
    power, line = fit(groups, logarithmic=True), fit(groups)
    metrics = {
        "prefill_exponent": _coefficient(power, "slope", "ratio", 1.0),
        "prefill_exponent_fit": _fit_of(power),
        "prefill_slope": _coefficient(line, "slope", "us/token", 1000.0),
        "prefill_intercept": _coefficient(line, "intercept", "ms", 1.0),
        "prefill_linear_fit": _fit_of(line),
    }
    return PrefillScaling(power, line, metrics)


def _coefficient(fit: Fit | None, name: str, unit: str, scale: float) -> Estimate:
    if fit is None:
        return Estimate.undefined(unit=unit, method=_TOO_FEW)
    point: float = getattr(fit, name)
    interval: Interval = getattr(fit, f"{name}_interval")
    scaled = Interval(*(None if end is None else scale * end for end in interval))
    return estimate(scale * point, scaled, fit.samples, _METHOD, unit)


def _fit_of(fit: Fit | None) -> Estimate:
    """R² of the means about the fit. It describes these points, so it has no interval."""
    if fit is None:
        return Estimate.undefined(unit="ratio", method=_TOO_FEW)
    method = f"R² over {fit.points} lengths"
    return Estimate(
        fit.r_squared, None, None, LEVEL, fit.samples, method, "ratio", kind=EstimateKind.OBSERVED
    )


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


def fit(groups: Sequence[Group], *, logarithmic: bool = False) -> Fit | None:
    """Fit of latency = slope · length + intercept, in the units given. ``logarithmic``: of their logarithms,
    whose slope is the exponent k of latency ∝ length^k.

    ``None`` for fewer than three different lengths, or a mean without a logarithm.
    """
    used = [group for group in groups if len(group.latencies)]
    x = np.array([float(np.mean(group.lengths)) for group in used])
    y = np.array([float(np.mean(group.latencies)) for group in used])
    if len(np.unique(x)) < FEWEST_LENGTHS or (logarithmic and min(x.min(), y.min()) <= 0):
        return None
    if logarithmic:
        x, y = np.log(x), np.log(y)
    # Each is Σ w_i y_i with these weights w.
    around = x - x.mean()
    of_slope = around / np.square(around).sum()
    of_intercept = 1 / len(x) - x.mean() * of_slope
    slope, intercept = float(of_slope @ y), float(of_intercept @ y)
    total = float(np.square(y - y.mean()).sum())
    errors = None
    if min(len(group.latencies) for group in used) > 1:
        errors = [_error(group, slope, logarithmic) for group in used]
    intervals = [
        OPEN if errors is None else student_interval(value, _combined(weights, errors))
        for value, weights in ((slope, of_slope), (intercept, of_intercept))
    ]
    return Fit(
        slope=slope,
        intercept=intercept,
        r_squared=1.0 - float(np.square(y - slope * x - intercept).sum()) / total if total else None,
        slope_interval=intervals[0],
        intercept_interval=intervals[1],
        points=len(used),
        samples=sum(len(group.latencies) for group in used),
    )


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
