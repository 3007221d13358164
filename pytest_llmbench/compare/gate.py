"""The gate: each objective decided on the whole confidence interval of its metric (DESIGN §2.5).

pass when the interval lies on the good side of the limit, fail when it lies on the bad side, inconclusive
when it straddles the limit or is open towards it. An undefined metric is inconclusive, never a pass.

The interval is that of the sample; what the measuring machine may have put it off by is counted on top.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_llmbench.model.estimate import LOWER_BOUND, Estimate, IntervalKind
from pytest_llmbench.model.judgement import Gate, GateVerdict, JudgedObjective, Overload
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import judged_name
from pytest_llmbench.stats.deciding import MOST, times_to_close, times_to_decide
from pytest_llmbench.stats.runs import Interval

_MOST_SAMPLES_WORTH_NAMING = 10_000_000
_USUAL = 0.95
_SEARCHED = "bracket"
"""Beginning of the method's name of an interval between two levels, which more samples do not narrow."""


def gate(
    objectives: Sequence[Objective], metrics: Mapping[str, Estimate], overload: Overload | None = None
) -> Gate:
    """Judge the objectives, each on the interval made for that where there is one, else on that of the
    metric. In an overloaded system fails what no longer run would keep."""
    return Gate(tuple(judge(objective, _estimate(objective, metrics), overload) for objective in objectives))


def _estimate(objective: Objective, metrics: Mapping[str, Estimate]) -> Estimate | None:
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
    good_end, bad_end = _ends(objective, estimate)
    # good_end is the end of the interval that has to reach the limit for a pass.
    if good_end is not None and objective.holds(good_end):
        return _judged(
            objective, estimate, GateVerdict.PASS, f"the whole interval is on the good side{_level(estimate)}"
        )
    if bad_end is not None and not objective.holds(bad_end):
        return _judged(
            objective, estimate, GateVerdict.FAIL, f"the whole interval is beyond the limit{_level(estimate)}"
        )
    if LOWER_BOUND in estimate.method and not objective.is_ceiling and estimate.lower is not None:
        known = estimate.lower if estimate.point is None else estimate.point
        reason = f"how much more it is than {known:g} {estimate.unit} is not known: that is {LOWER_BOUND}"
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, reason)
    if estimate.point is None:
        return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, _undefined(objective, estimate.n))
    times, reason = _what_would_decide(objective, estimate)
    return _judged(objective, estimate, GateVerdict.INCONCLUSIVE, reason + _level(estimate), times)


def _doubt(objective: Objective, estimate: Estimate) -> str | None:
    """Why an interval that decides is doubtful: the measuring machine may have put it where it is; None: it
    is not."""
    high, low = estimate.too_high_by, estimate.too_low_by
    worse, better = (low, high) if objective.is_ceiling else (-high, -low)
    good_end, bad_end = _ends(objective, estimate)
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
    way = "low" if by > 0 else "high"
    return (
        f"the limit seems {seems}, but the machine that measured may have made the figure up to "
        f"{abs(by):.3g} {estimate.unit} too {way}: free its CPU and measure again"
    )


def _level(estimate: Estimate) -> str:
    """The words that name the level of an interval with a level of its own, such as one of many looks; else
    empty."""
    if math.isclose(estimate.level, _USUAL):
        return ""
    return f" (at the level of this look, {100 * estimate.level:.6g} %)"


def _ends(objective: Objective, estimate: Estimate) -> tuple[float | None, float | None]:
    """The interval's ends as (unfavourable, favourable): a ceiling is kept when the upper end is under it."""
    if objective.is_ceiling:
        return estimate.upper, estimate.lower
    return estimate.lower, estimate.upper


def _undefined(objective: Objective, n: int) -> str:
    return f"{objective.metric} is undefined: " + (
        "there is no sample" if n == 0 else f"not computed from {n}"
    )


def _what_would_decide(objective: Objective, estimate: Estimate) -> tuple[float | None, str]:
    """Factor by which there would have to be more samples to decide, and the reason in words."""
    assert estimate.point is not None
    n, limit = estimate.n, objective.limit
    if estimate.method.startswith(_SEARCHED):
        return None, f"the limit lies between two levels of the search ({estimate.method})"
    if n == 0:
        return None, f"the interval of {objective.metric} rests on no sample, so more of them say nothing"
    # The end that has to pass the limit: of a point beyond it the other one.
    towards = estimate.upper if limit > estimate.point else estimate.lower
    if limit == estimate.point:
        towards, _ = _ends(objective, estimate)
    times = times_to_decide(estimate.point, _of_the_sample(estimate), limit, level=estimate.level)
    if towards is None:
        if estimate.n_required is None:
            return None, f"the interval is open: {n} samples do not bound {objective.metric}"
        needed = max(estimate.n_required, n + 1)
        times = max(times, times_to_close(needed, n))
        more = f"at least {needed} are needed, about {further(times, n)} more"
        return times, f"{n} samples cannot bound {objective.metric}: {more}"
    if limit == estimate.point or further(times, n) >= _MOST_SAMPLES_WORTH_NAMING:
        return None, "the limit lies so close to the measured value that no reasonable sample decides it"
    more = f"about {further(times, n)} more samples would decide it"
    if times >= MOST:
        more += ", or say how many do"
    return times, f"the interval straddles the limit: {more}"


def further(times: float, n: int) -> int:
    """Number of further samples, or requests, beyond the ``n`` that there are."""
    return math.ceil(round((times - 1.0) * n, 6))


def _of_the_sample(estimate: Estimate) -> Interval:
    """The interval without an upper end that is only a bound, unless there is no other."""
    only_bound = estimate.kind is IntervalKind.CRUDE and estimate.lower is not None
    return Interval(estimate.lower, None if only_bound else estimate.upper)


def _judged(
    objective: Objective,
    estimate: Estimate | None,
    verdict: GateVerdict,
    reason: str,
    times: float | None = None,
) -> JudgedObjective:
    """Make the judged objective. One sample is taken for one request; whoever knows how many requests there
    were says it better (advice)."""
    n = 0 if estimate is None else estimate.n
    return JudgedObjective(
        objective=objective,
        point=None if estimate is None else estimate.point,
        lower=None if estimate is None else estimate.lower,
        upper=None if estimate is None else estimate.upper,
        n=n,
        verdict=verdict,
        reason=reason,
        requests_needed=None if times is None else further(times, n),
        growth=times,
        too_high_by=0.0 if estimate is None else estimate.too_high_by,
        too_low_by=0.0 if estimate is None else estimate.too_low_by,
    )
