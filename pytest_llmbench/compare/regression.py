"""Two arms compared on one metric: regressed, improved, equivalent, not worse, or not decided.

The unit of replication is the run, or, with three earlier sessions or more, the session. The interval of the
change comes from ``log_ratio.py``; the worsening is the change of a metric that should be low and minus the
change of one that should be high, so that 5 % is 5 % of the baseline in both. The verdict is read off the
whole interval [lower, upper] of the worsening and the margin m (``model/judgement.py``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.compare.level import present_level
from pytest_llmbench.compare.log_ratio import LogRatio, log_ratio, session_ratio
from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import FEWEST_SESSIONS, Better, Comparison, ComparisonVerdict, Unit

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
    obstacle = unlike or _obstacle(arms, names)
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
    """Compare a session with those of the earlier ones that tell the present level (``level.py``), all given
    by their runs (see :func:`session_ratio`); its interval has the spread between days in it. A single run of
    each will do.

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
    change, mde = _change(found, undecided.change.n), _mde(found, better, margin)
    verdict, reason = _verdict(change, better, margin, _power(better, mde, undecided.unit_of_replication))
    return replace(undecided, change=change, mde=mde, verdict=verdict, reason=reason)


def worsening(change: Estimate, better: Better) -> tuple[float | None, float | None]:
    """Lower and upper end of the worsening; None: the end is open."""
    if better == "lower":
        return change.lower, change.upper
    return (
        None if change.upper is None else 0.0 - change.upper,
        None if change.lower is None else 0.0 - change.lower,
    )


def _obstacle(arms: Sequence[Sequence[float | None]], names: Sequence[str]) -> str | None:
    """Why there is no ratio, in words; None if there is one."""
    few = [
        f"{name} has {_runs(len(arm))}"
        for arm, name in zip(arms, names, strict=True)
        if len(arm) < FEWEST_RUNS
    ]
    if few:
        return f"{' and '.join(few)}: at least {FEWEST_RUNS} of each are needed to tell a change from noise"
    return _undefined(arms, names)


def _undefined(arms: Sequence[Sequence[float | None]], names: Sequence[str]) -> str | None:
    """Which of the arms have runs without a logarithm, in words; None if none has."""
    said = []
    for arm, name in zip(arms, names, strict=False):
        undefined = len(arm) - len(_finite(arm))
        if undefined:
            said.append(f"it is undefined in {undefined} of {_runs(len(arm))} of {name}")
        elif min(_finite(arm)) <= 0:
            said.append(f"{name} measured {min(_finite(arm)):g} in a run, which has no ratio")
    return "; ".join(said) or None


def _finite(arm: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(float(value) for value in arm if value is not None and math.isfinite(value))


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _change(found: LogRatio, runs: int) -> Estimate:
    ends = found.point - found.halfwidth, found.point + found.halfwidth
    point, lower, upper = (None if end > LARGEST_LOG else math.expm1(end) for end in (found.point, *ends))
    return Estimate(point, lower, upper, found.level, runs, found.method, "1")


def _mde(found: LogRatio, better: Better, margin: float) -> float | None:
    beyond = found.detectable
    if beyond is None or not math.isfinite(beyond):
        return None
    if better == "lower":
        total = math.log1p(margin) + beyond
        return None if total > LARGEST_LOG else math.expm1(total)
    return 1.0 if margin >= 1.0 else -math.expm1(math.log1p(-margin) - beyond)


def _verdict(change: Estimate, better: Better, margin: float, power: str) -> tuple[ComparisonVerdict, str]:
    lower, upper = worsening(change, better)
    allowed = f"the {_share(margin)} that is allowed"
    if lower is not None and lower > margin:
        return ComparisonVerdict.REGRESSED, f"the whole interval of the worsening lies beyond {allowed}"
    if upper is not None and upper < 0:
        return ComparisonVerdict.IMPROVED, "the whole interval lies on the better side of no change"
    if upper is not None and upper <= margin:
        if lower is not None and lower >= -margin:
            return ComparisonVerdict.EQUIVALENT, f"the whole interval lies within ±{_share(margin)}"
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
    reason = (
        f"no worsening beyond {_share(found.margin)} was found; one of {_share(found.mde)} would have been "
        "four times out of five"
    )
    return replace(found, verdict=ComparisonVerdict.NOT_WORSE, reason=reason)


def _power(better: Better, mde: float | None, unit: Unit) -> str:
    if mde is None:
        return f"the noise between {unit}s cannot be told"
    what = "a rise" if better == "lower" else "a drop"
    more = "more runs see" if unit == "run" else "more saved sessions see"
    return f"these {unit}s would find {what} of {_share(mde)} four times out of five; {more} a smaller one"


def _share(value: float) -> str:
    return f"{value * 100:.3g} %"
