"""Statistics of a load that is looked at while it runs: looks, their boundaries, their verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_llmbench.model.plan import LoadPlan
    from pytest_llmbench.stats.interim.looks import LookTaker


def look_taker(plan: LoadPlan, slots: int | None = None) -> LookTaker | None:
    """The look taker of a plan that may end early, imported for it; None for any other plan.

    ``slots``: the most that the engine has at work; None where it does not say.
    """
    if plan.looks is None:
        return None
    from pytest_llmbench.stats.interim.looks import LookTaker

    # A share that was dealt to a worker is numbered from 0, its requests as in the whole sequence.
    first = plan.first or plan.workload.requests(1, plan.seed)[0].index
    # The first wave of a closed loop is no part of its steady state.
    wave = plan.load.requests_in_flight or 0
    most = max(plan.most_requests - wave, 0)
    return LookTaker(plan.looks, first=first + wave, most=most, load=plan.load, slots=slots)
