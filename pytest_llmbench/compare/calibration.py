"""How much runs of one unchanged system differ, and what may be asked of it in view of that (A/A).

x_1 … x_n: logarithms of a metric by run, taken as normal; mean m, standard deviation s. Noise is the
coefficient of variation √(exp(s²) - 1) of the metric; its interval is that of s, √((n-1) s² / χ²(n-1)).

A limit is proposed at the one-sided tolerance bound m ± k s, beyond which lies at most 1 % of all runs with
95 % confidence: k = t(0.95; n-1, z √n) / √n, noncentral t with z the 99 % quantile of the normal law (Owen
1958; Krishnamoorthy & Mathew 2009, Statistical Tolerance Regions, ch. 2). How often a next run of the
unchanged system lies beyond a limit L is predicted by Student's t: P(t(n-1) > (ln L - m) / (s √(1 + 1/n))).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytest_llmbench.compare.regression import LogRatio
from pytest_llmbench.metrics.jobs import job_interval
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.judgement import Better, Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.objective import Objective

LEVEL = 0.95
COVERED, CONFIDENCE = 0.99, 0.95
RUNS_SHOWN = (3, 5, 10)
"""The numbers of runs of each arm for which the report names the smallest change that an A/B in pairs would
find."""
MOST_FALSE_ALARMS = 0.05
"""Share of the runs of an unchanged system that may break a limit; a limit that more of them break is tighter
than the noise."""


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise of one metric on one system."""

    metric: str
    unit: str
    better: Better
    runs: int
    mean_log: float
    spread_log: float
    """Standard deviation of the logarithms."""
    of_job: bool = False
    """Whether the load is a finite job, which one run has to decide by this noise."""

    @property
    def typical(self) -> float:
        """Geometric mean of the runs."""
        return math.exp(self.mean_log)

    @property
    def cv(self) -> float:
        return _cv(self.spread_log)

    @property
    def interval(self) -> tuple[float, float]:
        """The confidence interval of the coefficient of variation, at 95 %."""
        from scipy.special import chdtri

        freedom, tail = self.runs - 1, (1 - LEVEL) / 2
        ends = [
            self.spread_log * math.sqrt(freedom / float(chdtri(freedom, share))) for share in (tail, 1 - tail)
        ]
        return _cv(ends[0]), _cv(ends[1])

    def detectable(self, runs: int) -> float | None:
        """Smallest worsening that an A/B of ``runs`` pairs finds four times out of five; a share."""
        beyond = self._pairs(runs).detectable
        if beyond is None:
            return None
        return math.expm1(beyond) if self.better == "lower" else -math.expm1(-beyond)

    def halfwidth(self, runs: int, *, paired: bool = True) -> float:
        """Half-width of the interval of the change between two equal builds, from ``runs`` pairs, or from so
        many runs of each; a share."""
        return math.expm1(self._pairs(runs, 1 if paired else 2).halfwidth)

    def _pairs(self, runs: int, arms: int = 1) -> LogRatio:
        error = self.spread_log * math.sqrt(2.0 / runs)
        return LogRatio(0.0, error, arms * (runs - 1.0), LEVEL, "", noise_freedom=self.runs - 1.0)

    @property
    def proposed(self) -> float:
        """A limit for a run of this system that is not tighter than its noise, of three digits. One run of a
        job also has to stay clear of it by the interval that it gets by this noise."""
        from scipy.special import nctdtrit, ndtri

        shift = float(ndtri(COVERED)) * math.sqrt(self.runs)
        factor = float(nctdtrit(self.runs - 1, shift, CONFIDENCE)) / math.sqrt(self.runs)
        away = factor * self.spread_log
        if self.of_job:
            saved = SavedSpread(self.spread_log, self.runs)
            half = job_interval([self.typical], 2.0, saved=saved, level=LEVEL).half
            away = max(away, half + float(ndtri(COVERED)) * self.spread_log)
        side = 1.0 if self.better == "lower" else -1.0
        limit = math.exp(self.mean_log + side * away)
        # Away from the runs: what people copy from the table must not be tighter than what was found.
        digit = 10.0 ** (math.floor(math.log10(limit)) - 2)
        steps = math.ceil(limit / digit) if side > 0 else math.floor(limit / digit)
        return float(f"{steps * digit:.3g}")

    def false_alarms(self, limit: float) -> float:
        """Share of the next runs of the unchanged system that lie beyond ``limit``, as predicted."""
        from scipy.special import stdtr

        if limit <= 0:
            return 1.0 if self.better == "lower" else 0.0
        side = 1.0 if self.better == "lower" else -1.0
        distance = side * (math.log(limit) - self.mean_log)
        if self.spread_log == 0.0:
            return 0.0 if distance >= 0 else 1.0
        scale = self.spread_log * math.sqrt(1.0 + 1.0 / self.runs)
        return float(stdtr(self.runs - 1, -distance / scale))


def _cv(spread: float) -> float:
    return math.sqrt(math.expm1(spread**2))


def noise_of(
    metric: str, unit: str, better: Better, values: Sequence[float | None], *, of_job: bool = False
) -> Noise | None:
    """The noise of a metric, from its values by run.

    None where there are too few runs, and where the metric is undefined, zero or negative in one of them.
    """
    known = [value for value in values if value is not None and value > 0]
    if len(known) < max(len(values), FEWEST_RUNS):
        return None
    logs = np.log(np.asarray(known, dtype=np.float64))
    return Noise(metric, unit, better, len(known), float(logs.mean()), float(logs.std(ddof=1)), of_job)


def tight_limits(objectives: Sequence[Objective], noise: Mapping[str, Noise]) -> list[Finding]:
    """Warnings for limits of the gate that runs of an unchanged system break too often."""
    found = []
    for objective in objectives:
        own = noise.get(objective.metric)
        if own is None or objective.is_ceiling != (own.better == "lower"):
            continue
        share = own.false_alarms(objective.limit)
        if share > MOST_FALSE_ALARMS:
            found.append(
                Finding.of(
                    "limit_within_noise",
                    value=share,
                    limit=MOST_FALSE_ALARMS,
                    objective=str(objective),
                    noise=Amount(own.cv, "ratio"),
                    runs=own.runs,
                    proposed=Amount(own.proposed, own.unit),
                )
            )
    return found


def tight_margins(
    margins: Mapping[str, float], runs: int, noise: Mapping[str, Noise], *, paired: bool = True
) -> list[Finding]:
    """Warnings for margins that lie within the difference between equal builds."""
    found = []
    for metric, margin in margins.items():
        own = noise.get(metric)
        if own is None or runs < FEWEST_RUNS:
            continue
        half = own.halfwidth(runs, paired=paired)
        if half > margin:
            found.append(
                Finding.of("limit_within_noise.margin", value=half, limit=margin, metric=metric, runs=runs)
            )
    return found
