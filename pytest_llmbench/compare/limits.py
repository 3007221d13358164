"""The metrics that are compared, and the limits that make some of them decide: ``ttft.p99`` may be 5 %
worse; and those that may be asked of a system in view of how much its runs differ unchanged (A/A).

x_1 … x_n: logarithms of a metric by run, taken as normal; mean m, standard deviation s. Noise is the
coefficient of variation √(exp(s²) - 1) of the metric; its interval is that of s, √((n-1) s² / χ²(n-1)).

A limit is proposed at the one-sided tolerance bound m ± k s, beyond which lies at most 1 % of all runs with
95 % confidence: k = t(0.95; n-1, z √n) / √n, noncentral t with z the 99 % quantile of the normal law (Owen
1958; Krishnamoorthy & Mathew 2009, Statistical Tolerance Regions, ch. 2). How often a next run of the
unchanged system lies beyond a limit L is predicted by Student's t: P(t(n-1) > (ln L - m) / (s √(1 + 1/n))).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_llmbench.compare.regression import LogRatio, better_of, compared, compared_by_session
from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.metrics.definitions import metric_unit
from pytest_llmbench.metrics.jobs import job_interval
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.judgement import MOST_SESSIONS, Better, Comparison, Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.sentences import Note

SHOWN_MARGIN = 0.05
"""The margin of metrics that nobody set a limit for: they are shown, and decide nothing."""
_SHOWN_STATISTICS = ("p50", "p99")
_NOT_SHOWN = ("ttft_any", "ttft_first_event", "ttft_scheduled", "e2e_scheduled")
_LIMIT = re.compile(r"(?P<metric>.+):(?P<number>[^:%]*+)(?P<unit>%?)")
_EXAMPLE = "write for example ttft.p99:5%"

ByRun = Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The sessions in which a regression has to show before it decides."""

    shown: int
    of: int
    """The sessions, the present one among them."""

    @classmethod
    def of_option(cls, given: str) -> Confirmation:
        """Parse ``2/3``. SuiteError for anything else."""
        first, _, last = given.partition("/")
        if first.isdecimal() and last.isdecimal():
            found = cls(int(first), int(last))
            if 1 <= found.shown <= found.of <= MOST_SESSIONS:
                return found
        raise SuiteError(
            f"--llm-compare-confirm {shown(given)} is no number of sessions",
            remedy=f"write 2/3 for two of the last three; of at most {MOST_SESSIONS}",
        )


@dataclass(frozen=True, slots=True)
class RegressionLimit:
    """A metric that may get worse by a share of the baseline, and no more."""

    metric: str
    margin: float
    origin: str
    """The origin of the limit: a marker, or an option as it was written."""
    everywhere: bool = True
    """Whether it also holds for tests without that metric, which then decide nothing; an option is for those
    that have it."""


def limits_of_option(given: Sequence[str], option: str = "--llm-compare-fail") -> tuple[RegressionLimit, ...]:
    """Parse limits such as ``ttft.p99:5%``, several in a list or with commas between. SuiteError with every
    mistake."""
    texts = [text.strip() for part in given for text in part.split(",")]
    found, mistakes = [], []
    for text in texts:
        match, value = _LIMIT.fullmatch(text), math.nan
        if match is None:
            wrong = [f"needs a limit: {_EXAMPLE}"]
        else:
            metric, number, unit = match.groups()
            wrong = metric_mistakes(metric)
            try:
                value = float(number)
            except ValueError:
                wrong.append(f"has {number!r} for a limit: {_EXAMPLE}")
            else:
                if not unit:
                    wrong.append(f"lacks a unit: a limit is a share of the baseline, {metric}:{number}%")
                elif not 0 <= value < 100:
                    wrong.append(f"must lie from 0 % to below 100 %, got {number}%")
            found.append(RegressionLimit(metric, value / 100.0, f"{option}={text}", False))
        mistakes += [f"{option} {shown(text)} {what}" for what in wrong]
    if mistakes:
        raise SuiteError.from_mistakes(mistakes)
    return tuple(found)


def metric_mistakes(metric: object) -> list[str]:
    """Why a metric cannot be guarded against a regression, in words; empty if it can."""
    if not isinstance(metric, str) or not metric:
        return [f"needs the name of a metric, such as 'ttft.p99', got {shown(metric)}"]
    try:
        better = better_of(metric)
    except SuiteError as error:
        return [f"{error.what}; {error.remedy}"]
    return [] if better else [f"{metric}: neither more nor less of it is better, so it cannot get worse"]


def margin_mistakes(margin: object) -> list[str]:
    if isinstance(margin, bool) or not isinstance(margin, int | float) or margin != margin:
        return [f"must be a share, such as 0.05 for 5 %, got {shown(margin)}"]
    if not 0 <= margin < 1:
        return [f"must be a share from 0 to below 1 (0.05 is 5 %), got {shown(margin)}"]
    return []


def comparisons(
    baseline: ByRun,
    candidate: ByRun,
    limits: Iterable[RegressionLimit] = (),
    *,
    names: tuple[str, str] = ("baseline", "candidate"),
    paired: bool,
    sessions: Sequence[ByRun] = (),
    level: float = 0.95,
    unlike: Callable[[str], str | None] = lambda _: None,
) -> tuple[Comparison, ...]:
    """Compare two arms, given by run, in every metric with a limit and in every metric that is shown.

    Only a metric with a limit is gated. ``sessions``: all earlier ones, the baseline among them; a metric
    that three of them have is compared by session. ``unlike``: why the values of a metric are not those of
    one definition, None where they are.

    A metric with a limit that an arm lacks is compared with an arm that is undefined in every run.
    """
    strictest: dict[str, float] = {}
    for limit in (limit for limit in limits if limit.everywhere or limit.metric in candidate):
        strictest[limit.metric] = min(limit.margin, strictest.get(limit.metric, math.inf))
    shown = [name for name in candidate if name in baseline and name not in strictest and is_shown(name)]
    found = []
    for name, margin in {**strictest, **dict.fromkeys(shown, SHOWN_MARGIN)}.items():
        better = better_of(name)
        if better is None:
            continue
        before, now = _values(name, baseline, candidate), _values(name, candidate, baseline)
        about: Any = {"margin": margin, "names": names, "gated": name in strictest, "level": level}
        what = name, metric_unit(name), better
        why = unlike(name)
        earlier = [] if why else [own.get(name, ()) for own in sessions]
        by_session = compared_by_session(*what, earlier, now, same_runs=paired, **about)
        pairs = paired and len(before) == len(now)  # all sessions together need not have as many runs
        found.append(by_session or compared(*what, before, now, paired=pairs, unlike=why, **about))
    return tuple(found)


def nothing_decides(
    limits: Sequence[RegressionLimit], found: Sequence[Comparison] = (), why: Note | None = None
) -> tuple[Finding, ...]:
    """The warning that limits were given of which none decides about a test; none where one does, or none
    were given. ``why``: default: it has no such metric."""
    if not limits or any(each.gated for each in found):
        return ()
    metrics = tuple(dict.fromkeys(limit.metric for limit in limits))
    given = tuple(dict.fromkeys(limit.origin for limit in limits))
    return (Finding.of("nothing_compared", why=why, lacking=metrics if why is None else None, limits=given),)


def _values(name: str, arm: ByRun, other: ByRun) -> Sequence[float | None]:
    if name in arm:
        return arm[name]
    runs = max((len(values) for values in (arm or other).values()), default=0)
    return (None,) * runs


def is_shown(name: str) -> bool:
    """Whether a metric is shown without a limit.

    Shown are metrics of the test as a whole: the middle and the tail of latencies, and every figure of its
    own.
    """
    family, _, statistic = name.partition(".")
    if "[" in name or family in _NOT_SHOWN:
        return False
    try:
        return better_of(name) is not None and (not statistic or statistic in _SHOWN_STATISTICS)
    except SuiteError:  # a metric that a hook or an older version named
        return False


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
            half = job_interval([self.typical], 2.0, saved=saved).half
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
