"""Two arms compared on one metric: regressed, improved, equivalent, not worse, or not decided.

The unit of replication is the run, or, with three earlier sessions or more, the session. The interval of the
change comes from :class:`LogRatio`; the worsening is the change of a metric that should be low and minus the
change of one that should be high, so that 5 % is 5 % of the baseline in both. The verdict is read off the
whole interval [lower, upper] of the worsening and the margin m (``model/judgement.py``).

The difference of two arms is on the logarithmic scale, from the values of whole runs, or of whole sessions. A
ratio of medians, tails or rates spreads evenly on logarithms, and the noise of a run is a share of its level:
so differences of logarithms are judged by Student's t.

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

Of the earlier sessions the latest ones after the last change of the metric tell its present level, without
those that are far from all others. A broken night that nobody judged must neither move the level nor widen
the interval until nothing is found. Far is what Rosner's generalised ESD test calls so (1983, Technometrics
25: 165-172), at 1 %, for up to a quarter of the sessions; with three there is nobody to say which of them is
wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import (
    FEWEST_SESSIONS,
    MOST_SESSIONS,
    Better,
    Comparison,
    ComparisonVerdict,
    Unit,
)
from pytest_llmbench.model.numbers import counted, number, percentage, trimmed
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.spectral import student_quantile

_NEAR_FOUND = 0.75
"""Share of the way from the margin to the detectable worsening, beyond which a change that is not decided
stays so: a change of 2.3 standard errors, which one of a hundred unchanged builds shows."""
_NOISIER, _MATTERS = 1.75, 0.10
"""What may be detectable where nothing is found: so many times what was promised, by how badly the noise of
some runs is known; or 10 %."""
NEITHER = frozenset(
    {"batch_utilisation", "tokens_in_flight", "itl_modes", "prefill_exponent_fit", "prefill_linear_fit"}
)
"""Metrics that describe: more of them is neither a gain nor a loss."""
LARGEST_LOG = 700.0
"""Largest logarithm of a ratio that can be stated as a number; beyond it the interval is open."""


def better_of(metric: str) -> Better | None:
    """Whether low or high values of a full metric name are good; None where neither is.

    SuiteError, with hints, for an unknown metric.
    """
    row = definition(metric)
    return None if row.name in NEITHER else row.better


def compared(
    metric: str,
    unit: str,
    better: Better,
    baseline: Sequence[float | None],
    candidate: Sequence[float | None],
    *,
    margin: float,
    names: tuple[str, str] = ("baseline", "candidate"),
    paired: bool,
    gated: bool = False,
    level: float = 0.95,
    of: Unit = "run",
    unlike: str | None = None,
) -> Comparison:
    """Compare two arms on one metric, given by run in the order of the runs; ``paired``: run i of both was
    measured side by side, or of requests with the same lengths. ``of``: what the values are of. ``unlike``:
    why they are not those of one definition, for which there is no change to state.

    ``mde`` is the worsening, counted from no change, that these runs would call regressed with power 0.8.
    A value that is undefined, zero or negative has no logarithm; it is never left out, since a run that
    failed is no run that did not happen: the comparison is then inconclusive and says so.
    """
    arms = tuple(baseline), tuple(candidate)
    if paired and len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} runs of the baseline cannot be paired with {len(candidate)}")
    kept = _finite(arms[0]), _finite(arms[1])
    few = [
        f"{name} has {counted(len(arm), 'run')}"
        for arm, name in zip(arms, names, strict=True)
        if len(arm) < FEWEST_RUNS
    ]
    needed = f"at least {FEWEST_RUNS} of each are needed to tell a change from noise"
    obstacle = unlike or (f"{' and '.join(few)}: {needed}" if few else _undefined(arms, names))
    found = log_ratio(*kept, paired=paired, level=level) if obstacle is None else None
    change = Estimate.undefined(unit="1", method="none", level=level, n=len(baseline) + len(candidate))
    undecided = Comparison(
        metric, unit, better, *names, *kept, paired, change, margin, None,
        ComparisonVerdict.INCONCLUSIVE, obstacle or "", gated, of,
    )  # fmt: skip
    return undecided if found is None else _judged(undecided, found)


def compared_by_session(
    metric: str,
    unit: str,
    better: Better,
    sessions: Sequence[Sequence[float | None]],
    candidate: Sequence[float | None],
    *,
    margin: float,
    names: tuple[str, str] = ("baseline", "candidate"),
    same_runs: bool,
    gated: bool = False,
    level: float = 0.95,
) -> Comparison | None:
    """Compare a session with those of the earlier ones that tell the present level (:func:`present_level`),
    all given by their runs (see :func:`session_ratio`); its interval has the spread between days in it. A
    single run of each will do.

    None where fewer than three of the earlier ones have the metric in every run.
    """
    whole = [own for own in sessions if own and not _undefined([own], names)]
    if len(whole) < FEWEST_SESSIONS:
        return None
    every = [np.log(np.asarray(own, float)) for own in whole]
    logs = [every[at] for at in present_level([float(own.mean()) for own in every])]
    obstacle = _undefined([candidate or [None]], names[1:])
    now = None if obstacle else np.log(np.asarray(candidate, float))
    found = None if now is None else session_ratio(logs, now, same_runs=same_runs, level=level)
    change = Estimate.undefined(unit="1", method="none", level=level, n=len(logs) + 1)
    undecided = Comparison(
        metric, unit, better, *names,
        tuple(math.exp(own.mean()) for own in logs), () if now is None else (math.exp(now.mean()),),
        False, change, margin, None, ComparisonVerdict.INCONCLUSIVE, obstacle or "", gated, "session",
    )  # fmt: skip
    return undecided if found is None else _judged(undecided, found)


def _judged(undecided: Comparison, found: LogRatio) -> Comparison:
    """The comparison with its change, and the verdict on that."""
    better, margin = undecided.better, undecided.margin
    ends = found.point - found.halfwidth, found.point + found.halfwidth
    point, lower, upper = (None if end > LARGEST_LOG else math.expm1(end) for end in (found.point, *ends))
    change = Estimate(point, lower, upper, found.level, undecided.change.n, found.method, "1")
    beyond, mde = found.detectable, None
    if beyond is not None and math.isfinite(beyond):
        if better == "higher":
            mde = 1.0 if margin >= 1.0 else -math.expm1(math.log1p(-margin) - beyond)
        elif math.log1p(margin) + beyond <= LARGEST_LOG:
            mde = math.expm1(math.log1p(margin) + beyond)
    unit = undecided.unit_of_replication
    power = f"the noise between {unit}s cannot be told"
    if mde is not None:
        worse = f"{'a rise' if better == 'lower' else 'a drop'} of {percentage(mde)}"
        more = "more runs see" if unit == "run" else "more saved sessions see"
        power = f"these {unit}s would find {worse} four times out of five; {more} a smaller one"
    verdict, reason = _verdict(change, better, margin, power)
    return replace(undecided, change=change, mde=mde, verdict=verdict, reason=reason)


def worsening(change: Estimate, better: Better) -> tuple[float | None, float | None]:
    """Lower and upper end of the worsening; None: the end is open."""
    if better == "lower":
        return change.lower, change.upper
    return (
        None if change.upper is None else 0.0 - change.upper,
        None if change.lower is None else 0.0 - change.lower,
    )


def _undefined(arms: Sequence[Sequence[float | None]], names: Sequence[str]) -> str | None:
    """Which of the arms have runs without a logarithm, in words; None if none has."""
    said = []
    for arm, name in zip(arms, names, strict=False):
        undefined = len(arm) - len(_finite(arm))
        if undefined:
            said.append(f"it is undefined in {undefined} of {counted(len(arm), 'run')} of {name}")
        elif min(_finite(arm)) <= 0:
            said.append(f"{name} measured {number(min(_finite(arm)))} in a run, which has no ratio")
    return "; ".join(said) or None


def _finite(arm: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(float(value) for value in arm if value is not None and math.isfinite(value))


def _verdict(change: Estimate, better: Better, margin: float, power: str) -> tuple[ComparisonVerdict, str]:
    lower, upper = worsening(change, better)
    told = f"{trimmed(100 * margin)} %"
    allowed = f"the {told} that is allowed"
    if lower is not None and lower > margin:
        return ComparisonVerdict.REGRESSED, f"the whole interval of the worsening lies beyond {allowed}"
    if upper is not None and upper < 0:
        return ComparisonVerdict.IMPROVED, "the whole interval lies on the better side of no change"
    if upper is not None and upper <= margin:
        if lower is not None and lower >= -margin:
            return ComparisonVerdict.EQUIVALENT, f"the whole interval lies within ±{told}"
        return ComparisonVerdict.NOT_WORSE, f"the whole interval of the worsening lies below {allowed}"
    return ComparisonVerdict.INCONCLUSIVE, f"the interval straddles {allowed}: {power}"


def as_promised(found: Comparison, promised: float) -> Comparison:
    """An undecided comparison within a budget of time: not worse, where no worsening was found although these
    runs would have found one that matters four times out of five.

    ``promised``: the worsening that was to be found, a share. It stays undecided where the runs turned out
    much noisier than expected, or where the change is near what they would find.
    """
    lower, upper = worsening(found.change, found.better)
    point = found.change.point
    if found.verdict is not ComparisonVerdict.INCONCLUSIVE or None in (lower, upper, point, found.mde):
        return found
    assert point is not None
    assert found.mde is not None
    seen = point if found.better == "lower" else -point
    near = found.margin + _NEAR_FOUND * (found.mde - found.margin)
    if found.mde > max(_NOISIER * promised, _MATTERS) or seen > near:
        return found
    allowed, detectable = f"{trimmed(100 * found.margin)} %", percentage(found.mde)
    reason = (
        f"no worsening beyond {allowed} was found; one of {detectable} would have been four times out of five"
    )
    return replace(found, verdict=ComparisonVerdict.NOT_WORSE, reason=reason)


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
        return 0.0 if self.error == 0.0 else student_quantile(self.freedom, self.level) * self.error

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


@lru_cache(maxsize=1024)
def _detectable(freedom: float, own: float, level: float, power: float) -> float:
    """The smallest difference that is found with the wanted power, in standard errors.

    ``own`` is the degrees of freedom of the standard error. The result is the same for all metrics of paired
    runs.
    """
    from scipy.special import chdtri, nctdtr

    quantile = student_quantile(freedom, level)
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
    if paired and len(before) != len(after):
        raise ValueError(f"{len(before)} runs of the baseline cannot be paired with {len(after)}")
    point = float((after - before).mean() if paired else after.mean() - before.mean())
    error, freedom = error_of_difference(before, after, paired=paired)
    if error < _ROUNDING:
        return _noiseless(point, level)
    method = f"Student's t on {len(before)} paired log ratios"
    if not paired:
        runs = f"{len(before)} and {len(after)} runs, {number(freedom)} degrees of freedom"
        method = f"Welch's t on logarithms, {runs}"
    return LogRatio(point, error, freedom, level, method)


def error_of_difference(before: FloatArray, after: FloatArray, *, paired: bool) -> tuple[float, float]:
    """Standard error of the difference of two means, and its degrees of freedom: of pairs, else by Welch
    and Satterthwaite."""
    if paired:
        return float((after - before).std(ddof=1)) / math.sqrt(len(after)), len(after) - 1.0
    own = [float(arm.var(ddof=1)) / len(arm) for arm in (before, after)]
    squares = sum(share**2 / (len(arm) - 1) for share, arm in zip(own, (before, after), strict=True))
    freedom = sum(own) ** 2 / squares if squares else float(min(len(before), len(after)) - 1)
    return math.sqrt(sum(own)), freedom


def paired_ratio(before: Sequence[float], after: Sequence[float], *, level: float = 0.95) -> Estimate:
    """The geometric mean of ``after`` / ``before``, in pairs, of positive values."""
    found = log_ratio(before, after, paired=True, level=level)
    point, lower, upper = (math.exp(found.point + sign * found.halfwidth) for sign in (0, -1, 1))
    return Estimate(point, lower, upper, level, len(before), found.method, "ratio")


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


_SIGNIFICANCE = 0.01
_LEAST_SPREAD = 1e-9
"""Spread of logarithms below which all sessions are alike."""


def present_level(logs: Sequence[float]) -> list[int]:
    """The indices of the sessions that count, ascending, of the logarithms of a metric by session, the oldest
    first."""
    from pytest_llmbench.stats.change_points import change_points  # few compare sessions

    found = change_points(logs)
    first = max(found[-1].at if found else 0, len(logs) - MOST_SESSIONS)
    latest = np.asarray(logs[first:], float)
    far = _far(latest)
    return [first + at for at in range(len(latest)) if at not in far]


def _far(values: FloatArray) -> set[int]:
    """The indices of the outliers by the generalised ESD test."""
    from scipy.special import stdtrit

    count, left = len(values), list(range(len(values)))
    removed: list[int] = []
    outliers = 0
    for step in range(1, count // (FEWEST_SESSIONS + 1) + 1):
        own = values[left]
        spread = float(own.std(ddof=1))
        if spread < _LEAST_SPREAD:
            break
        distances = np.abs(own - own.mean()) / spread
        farthest = int(distances.argmax())
        removed.append(left.pop(farthest))
        rest = count - step + 1
        t = float(stdtrit(rest - 2, 1 - _SIGNIFICANCE / (2 * rest)))
        if distances[farthest] > (rest - 1) * t / math.sqrt((rest - 2 + t * t) * rest):
            outliers = step
    return set(removed[:outliers])
