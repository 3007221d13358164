"""The gate: each objective decided on the whole confidence interval of its metric.

pass when the interval lies on the good side of the limit, fail when it lies on the bad side, inconclusive
when it straddles the limit or is open towards it. An undefined metric is inconclusive, never a pass.

The interval is that of the sample; what the measuring machine may have put it off by is counted on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_llmbench.model.estimate import OF_RUNS, Estimate, EstimateKind
from pytest_llmbench.model.judgement import Gate, GateVerdict, JudgedObjective, Overload
from pytest_llmbench.model.numbers import number, percentage, quantity, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import judged_name
from pytest_llmbench.stats.deciding import runs_to_decide, times_to_close, times_to_decide
from pytest_llmbench.stats.runs import Interval

_USUAL = 0.95
_SMALL_MS, _FAR = 10.0, 10.0
"""A limit up to so many ms that is missed that many times over may have been meant in seconds."""


def gate(
    objectives: Sequence[Objective], metrics: Mapping[str, Estimate], overload: Overload | None = None
) -> Gate:
    """Judge the objectives, each on the interval made for that where there is one, else on that of the
    metric. In an overloaded system fails what no longer run would keep."""
    return Gate(tuple(judge(each, judged_estimate(each, metrics), overload) for each in objectives))


def judged_estimate(objective: Objective, metrics: Mapping[str, Estimate]) -> Estimate | None:
    """The estimate that the objective is judged on."""
    own = metrics.get(judged_name(objective.metric))
    return metrics.get(objective.metric) if own is None else own


def judge(
    objective: Objective, estimate: Estimate | None, overload: Overload | None = None
) -> JudgedObjective:
    """Judge one objective on its metric's interval. The point may be missing where an end is known, as for
    failed requests that count as over the limit."""
    if overload is not None and overload.breaks(objective):
        return _judged(objective, estimate, GateVerdict.FAIL, str(overload))
    if estimate is None or (estimate.point is None and estimate.lower is None and estimate.upper is None):
        n = 0 if estimate is None else estimate.n
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, _undefined(objective, n))
    doubt = _doubt(objective, estimate)
    if doubt is not None:
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, doubt + _level(estimate))
    kept = objective.decided(estimate.lower, estimate.upper)
    if kept is not None:
        verdict = GateVerdict.PASS if kept else GateVerdict.FAIL
        side = "on the good side" if kept else "beyond the limit"
        reason = _of_one_run(objective, estimate) or f"the whole interval is {side}{_level(estimate)}"
        point, limit = estimate.point, objective.limit
        small = objective.unit == "ms" and objective.is_ceiling and 0 < limit <= _SMALL_MS
        # Small, missed by far, and kept as seconds.
        if not kept and small and point is not None and limit * _FAR <= point <= limit * 1000:
            told, instead = f"{trimmed(limit)} ms", trimmed(limit * 1000)
            reason += f"; the limit is {told}: if seconds are meant, write {instead}"
        return _judged(objective, estimate, verdict, reason)
    if estimate.given_up and objective.is_ceiling and estimate.upper is None:
        reason = (
            f"{estimate.given_up} requests were given up on, and how long they would have taken is not "
            "known: extend the deadline or the load"
        )
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, reason)
    if estimate.kind is EstimateKind.BOUND and estimate.lower is not None:
        known = estimate.lower if estimate.point is None else estimate.point
        told = quantity(known, estimate.unit)
        reason = f"how much more it is than {told} is not known: that is a lower bound"
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, reason)
    if estimate.point is None:
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, _undefined(objective, estimate.n))
    times, reason = _what_would_decide(objective, estimate)
    return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, reason + _level(estimate), times)


def _of_one_run(objective: Objective, estimate: Estimate) -> str | None:
    """How far a limit is that fewer than three runs of a job decide, and how far would do, in words; None for
    other estimates."""
    point, limit, upper = estimate.point, objective.limit, estimate.upper
    if estimate.kind not in (EstimateKind.SAVED_SPREAD, EstimateKind.ASSUMED_SPREAD):
        return None
    if point is None or upper is None or min(point, limit) <= 0 or estimate.unit == "ratio":
        return None
    away, enough = math.exp(abs(math.log(limit / point))), upper / point
    saved = estimate.kind is EstimateKind.SAVED_SPREAD
    why = "with the saved spread" if saved else "while the noise of this system is unknown"
    larger, smaller = ("limit", "value") if limit >= point else ("value", "limit")
    least = trimmed(round(enough, 2))
    return f"the {larger} is {number(away)} times the {smaller}; {least} times is enough {why}"


def _doubt(objective: Objective, estimate: Estimate) -> str | None:
    """Why an interval that decides is doubtful: the measuring machine may have put it where it is; None: it
    is not."""
    high, low = estimate.too_high_by, estimate.too_low_by
    worse, better = (low, high) if objective.is_ceiling else (-high, -low)
    ends = estimate.upper, estimate.lower
    good_end, bad_end = ends if objective.is_ceiling else reversed(ends)
    if good_end is not None and objective.holds(good_end):
        seems, by = "kept", worse
        decided = objective.holds(good_end + worse)
    elif bad_end is not None and not objective.holds(bad_end):
        seems, by = "broken", -better
        decided = not objective.holds(bad_end - better)
    else:
        return None
    if decided:
        return None
    too = f"{quantity(abs(by), estimate.unit)} too {'low' if by > 0 else 'high'}"
    return (
        f"the limit seems {seems}, but the machine that measured may have made the figure up to {too}: free "
        "its CPU and measure again"
    )


def _level(estimate: Estimate) -> str:
    """The words that name the level of an interval with a level of its own, such as one of many looks; else
    empty."""
    if math.isclose(estimate.level, _USUAL):
        return ""
    return f" (at the level of this look, {percentage(estimate.level)})"


def _undefined(objective: Objective, n: int) -> str:
    return f"{objective.metric} is undefined: " + (
        "there is no sample" if n == 0 else f"not computed from {n}"
    )


def _what_would_decide(objective: Objective, estimate: Estimate) -> tuple[float | None, str]:
    """Factor by which there would have to be more samples to decide, and why it is undecided, in words.

    How many that is in what the marker counts says whoever knows the load (methodology/advice).
    """
    assert estimate.point is not None
    n, limit = estimate.n, objective.limit
    if estimate.kind is EstimateKind.BRACKET:
        return None, f"the limit lies between two levels of the search ({estimate.method})"
    if n == 0:
        return None, f"the interval of {objective.metric} rests on no sample, so more of them say nothing"
    # The end that has to pass the limit: of a point beyond it the other one.
    towards = estimate.upper if limit > estimate.point else estimate.lower
    ends = Interval(estimate.lower, estimate.upper)
    if limit == estimate.point:
        return None, "the limit equals the measured value"
    if estimate.kind in OF_RUNS:
        runs = runs_to_decide(estimate.point, ends, limit, estimate.runs)
        return math.inf if runs is None else runs / estimate.runs, "the interval straddles the limit"
    crude = estimate.kind is EstimateKind.CRUDE
    times = times_to_decide(estimate.point, ends, limit, level=estimate.level, crude=crude)
    if towards is None:
        if estimate.n_required is None:
            return None, f"{n} samples do not bound {objective.metric} on the side of the limit"
        times = max(times, times_to_close(estimate.n_required, n))
    return times, "the interval straddles the limit"


def _judged(
    objective: Objective,
    estimate: Estimate | None,
    verdict: GateVerdict,
    reason: str,
    times: float | None = None,
) -> JudgedObjective:
    if estimate is None:
        estimate = Estimate.undefined(unit=objective.unit, method="none", level=_USUAL, n=0)
    return JudgedObjective(
        objective=objective,
        point=estimate.point,
        lower=estimate.lower,
        upper=estimate.upper,
        n=estimate.n,
        verdict=verdict,
        reason=reason,
        growth=times,
        too_high_by=estimate.too_high_by,
        too_low_by=estimate.too_low_by,
    )
