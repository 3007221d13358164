"""Crude ends of the figures of a sample, where its own are open: wider than the sampling error, not nowhere.

A sample that is a few memories of its system long is worth few independent ones, and order statistics at that
number bound nothing, though all its values lie close together. What may still move them all is the level of
the system. So an end is that of independent samples, moved by a factor e^ℓ, both counted from the smallest
value: ℓ = t · error / (mean - min), the error and Student's t those of the mean
(:mod:`~pytest_llmbench.stats.spectral`), lengthened for few memories as there, but by half at most.

"Independent" is taken for half as many samples. Where these do not support an upper end it is the largest
value; and where not even all do, the largest value lengthened by (a / b)^0.4, b the share beyond the
percentile, a the share beyond which one of n independent values lies with the asked certainty,
1 - a = tail^(1/n): the tail is taken to be no heavier than that of Pareto's law with exponent 2.5, down to a
quarter of a; beyond there is no end.

Where the samples have two modes or more (:mod:`~pytest_llmbench.stats.shape`) a change of level is a step
from one to another, of which the error of the mean knows nothing while a percentile lies within one of them:
the upper end is then at least the order statistic at the discounted effective size.

Chosen by simulation; how often such ends hold: docs/reference/statistics.md.

**Bound by a moment.** Markov's inequality on a high moment bounds a percentile from above too, and the nearer
end counts.

For Y = X - min X ≥ 0, P(Y > u) ≤ E[Yᵏ] / uᵏ. So the q-th percentile of X is at most
min X + (E[Yᵏ] / (1 - q/100))^(1/k), and at most the same with an upper limit of that moment: mean of the
powers + t · error, t and error those of the means of 16 consecutive batches, the error lengthened where the
sample is a few memories long (:func:`~pytest_llmbench.stats.spectral.stretched`). The bound is loose (1.8
times the P99 of exponential latencies for k = 3, at best, and 1.5 times for k = 4) and needs far fewer
samples than the percentile's own interval, so it decides limits that are far away.

k = 3 + ½ ln(n / 24 m), from 3 to 4, m the memory of the series. A higher power is nearer and takes a longer
sample: a thousand requests of a queue at 80 to 90 % load may be a quiet stretch, and nothing in them tells it
from a calm system. The fourth moment then misses the true percentile in up to 30 of a hundred samples, and
any moment of a few hundred requests does. Hence no bound below 500 samples, nor below 16 memories, nor for a
percentile with fewer than five samples beyond it. How often it holds: docs/reference/coverage.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.backlog import NO_RISE, Rise
from pytest_llmbench.stats.percentiles import Ordered, Worth, ordered_percentile_interval, risen
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, mean_of, pooled
from pytest_llmbench.stats.shape import modality
from pytest_llmbench.stats.spectral import (
    FEWEST_EFFECTIVE,
    Spread,
    mean_interval,
    normal_quantile,
    quantile,
    stretched,
    student_quantile,
    with_rise,
)

CRUDELY = ", crude ends"
"""Added to the method of an estimate with such an end."""
FEWEST = 40
"""Fewest samples for a crude end."""
_TAIL_POWER = 0.4
_FARTHEST = 4.0
"""How many times as rare as what the sample may lack a percentile is at most."""
_LONGEST_STRETCH = 1.5


class Crude(NamedTuple):
    """The crude ends of one sample."""

    least: float
    """The smallest value."""
    mean: float
    factor: float
    """e^ℓ."""
    level: float

    @classmethod
    def of(cls, runs: Runs, of: Spread | None, level: float, rise: Rise = NO_RISE) -> Crude | None:
        """The crude ends of runs with this spread of their mean; None for fewer than forty samples, and
        where a hidden queue may be of any length."""
        every = pooled(runs)
        if of is None or len(every) < FEWEST or math.isinf(rise.mean):
            return None
        least, mean = float(every.min()), mean_of(every)
        height = mean - least
        if height <= 0:
            return cls(least, mean, 1.0, level)
        return cls(least, mean, level_factor(height, of, level) ** rise.burstiness, level)

    def of_mean(self) -> Interval:
        height = self.mean - self.least
        return Interval(self.least + height / self.factor, self.least + height * self.factor)

    def of_percentile(self, ordered: FloatArray, q: float, effective_n: float) -> Interval:
        """The ends of the q-th percentile; the lower one is None where half as many independent samples have
        none. ``ordered``: the samples, ascending. ``effective_n``: their discounted effective size."""
        lower, _ = ordered_percentile_interval(ordered, q, level=self.level, effective_n=len(ordered) / 2)
        upper = self._independent_upper(ordered, q)
        if lower is not None:
            lower = self.least + (lower - self.least) / self.factor
        if upper is not None:
            upper = self.least + (upper - self.least) * self.factor
            beyond = ordered_percentile_interval(ordered, q, level=self.level, effective_n=effective_n).upper
            beyond = float(ordered[-1]) if beyond is None else beyond
            if beyond > upper and modality(ordered).multimodal:
                upper = beyond
        return Interval(lower, upper)

    def _independent_upper(self, ordered: Ordered, q: float) -> float | None:
        n, largest = len(ordered), float(ordered[-1])
        upper = ordered_percentile_interval(ordered, q, level=self.level, effective_n=n / 2).upper
        if upper is not None:
            return upper
        times = self._unseen(n) / (1 - q / 100)
        if times > _FARTHEST:
            return None
        longer = max(1.0, math.pow(times, _TAIL_POWER))
        return max(largest * longer, self.least + (largest - self.least) * longer)

    def moved(self, values: FloatArray) -> FloatArray:
        """The values with the highest level that the mean allows."""
        return self.least + (values - self.least) * self.factor

    def share_above(self, n: int, largest: float, limit: float) -> float:
        """The most that the share of values above a limit may be, where all n are below it: the limit is the
        crude end of the percentile with that share beyond it. 1 where it is none's."""
        end = self.least + (limit - self.least) / self.factor
        if self.least < 0 or end <= 0 or end < largest:
            return 1.0
        return self._unseen(n) * max(1 / _FARTHEST, math.pow(largest / end, 1 / _TAIL_POWER))

    def _unseen(self, n: int) -> float:
        """a: the share beyond which one of n independent values lies with the asked certainty."""
        return float(1 - ((1 - self.level) / 2) ** (1 / n))


def crude_samples_required(q: float, level: float = 0.95) -> int:
    """Fewest samples with a crude upper end of the q-th percentile: 40 to P95, 91 for P99, 921 for P99.9."""
    least = min(1.0, _FARTHEST * (1 - q / 100))
    needed = math.log((1 - level) / 2) / math.log(1 - least) if least < 1 else 0.0
    return max(FEWEST, math.ceil(needed - 1e-9))


def level_factor(height: float, of: Spread, level: float) -> float:
    """e^ℓ of a positive figure with this spread; 1 for a figure of 0."""
    if height <= 0:
        return 1.0
    stretch = min(_LONGEST_STRETCH, stretched(of.recalled, level) or _LONGEST_STRETCH)
    error = of.error * math.sqrt(1 + of.dependence * (stretch**2 - 1))
    return math.exp(quantile(of, level) * error / height)


def mean_ends(runs: Runs, of: Spread, *, level: float, rise: Rise) -> tuple[Interval, bool]:
    """The interval of the mean of latencies, and whether it has a crude end: where the sample is worth fewer
    than 30, or bounds nothing above."""
    own = mean_interval(runs, level=level, of=of, rise=rise.mean, fall=rise.fall)
    if of.worth >= FEWEST_EFFECTIVE and own.upper is not None:
        return own, False
    crude = Crude.of(runs, of, level, rise)
    if crude is None:
        return Interval(own.lower, None), False
    every = pooled(runs)
    independent = normal_quantile(level) * float(every.std()) / math.sqrt(len(every))
    upper = with_rise(crude.of_mean().upper, crude.mean, independent, rise.mean)
    return Interval(own.lower, upper), True


def far_ends(
    crude: Crude | None,
    runs: Runs,
    ordered: FloatArray,
    q: float,
    worth: Worth,
    *,
    lags: int,
    level: float,
    rise: Rise,
) -> Interval:
    """Ends of the q-th percentile for where its own are open: above the nearer of the crude one and the bound
    by a moment, lengthened for a hidden queue. ``crude``: of these runs; ``worth``: theirs for this
    percentile; ``lags``: their memory."""
    usable = worth.usable(len(ordered), level)
    lower, upper = OPEN if crude is None else crude.of_percentile(ordered, q, usable)
    bound = moment_bound(runs, q, lags=lags, level=level)
    if bound is not None:
        upper = bound.end if upper is None else min(upper, bound.end)
    return Interval(lower, risen(upper, ordered, q, level=level, rise=rise))


FEWEST_OF_MOMENT, FEWEST_BEYOND, FEWEST_MEMORIES = 500, 5, 16
"""Fewest samples in all, fewest samples beyond the percentile, and fewest lengths of the memory for a
bound."""
_LOWEST_POWER, _HIGHEST_POWER = 3.0, 4.0
_MEMORIES_OF_LOWEST = 24
_FEWEST_BATCHES, _BATCHES = 3, 16


class MomentBound(NamedTuple):
    end: float
    power: float


def samples_required(q: float, *, lags: int) -> int:
    """Fewest samples with this memory for which the q-th percentile has a bound."""
    # 5 / (1 - q/100) is 500.000…04 for P99.
    beyond = math.ceil(FEWEST_BEYOND / (1 - q / 100) - 1e-6)
    return max(FEWEST_OF_MOMENT, FEWEST_MEMORIES * lags, beyond)


def moment_bound(runs: Runs, q: float, *, lags: int, level: float = 0.95) -> MomentBound | None:
    """Upper end of the q-th percentile at ``level`` (two-sided, as the ends of intervals are), and the power
    of its moment; ``None`` for too few samples, see above, and for negative ones. It grows with q.

    ``runs``: in arrival order. ``lags``: their memory.
    """
    n = sum(map(len, runs))
    if n < samples_required(q, lags=lags):
        return None
    spread_out = power_mean_bound(runs, lags=lags, level=level)
    if spread_out is None:
        return None
    least = min(float(run.min()) for run in runs)
    return MomentBound(least + spread_out.end / (1 - q / 100) ** (1 / spread_out.power), spread_out.power)


def power_mean_bound(runs: Runs, *, lags: int, level: float = 0.95) -> MomentBound | None:
    """Upper end of (E[Yᵏ])^(1/k), Y = X - min X, at ``level`` (two-sided); ``None`` for too few samples, see
    above, and for negative ones. No mean of a lower power is above it
    (Lyapunov's inequality)."""
    n = sum(map(len, runs))
    if n < max(FEWEST_OF_MOMENT, FEWEST_MEMORIES * lags):
        return None
    least = min(float(run.min()) for run in runs)
    stretch = stretched((lags - 1) / n, level)
    if least < 0 or stretch is None:
        return None
    power = _LOWEST_POWER + math.log(n / lags / _MEMORIES_OF_LOWEST) / 2
    power = min(_HIGHEST_POWER, max(_LOWEST_POWER, power))
    scale = max(float(run.max()) for run in runs) - least
    if scale == 0.0:
        return MomentBound(0.0, power)
    powers = tuple(((run - least) / scale) ** power for run in runs)
    means = _batch_means(powers, n, _BATCHES)
    if len(means) < _FEWEST_BATCHES:
        return None
    moment = sum(float(own.sum()) for own in powers) / n
    error = stretch * float(np.std(means, ddof=1)) / math.sqrt(len(means))
    highest = moment + student_quantile(len(means) - 1, level) * error
    return MomentBound(float(scale * highest ** (1 / power)), power)


def _batch_means(runs: Runs, n: int, batches: int) -> FloatArray:
    """The means of consecutive batches. Each run has its share of the batches, and at least one."""
    found = []
    for run in runs:
        own = min(len(run), max(1, round(batches * len(run) / n)))
        found += [float(np.mean(part)) for part in np.array_split(run, own)]
    return np.asarray(found, dtype=np.float64)
