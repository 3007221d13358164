"""The amounts that parts of a test send at least and at most, before anything is known of the system.

How many requests a search or a timed level takes is decided by the system. So they are bounded by a number,
and by a number for each request per second that the system completes at most (its *capacity*: the highest
rate of a burst, of a timed closed loop or of a level that held). The bounds are those of a system that
answers every request, with replies as long as asked for. ``worst`` leaves that out: failed and short replies
prolong a warm-up, and a load that this machine spoiled is measured again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pytest_llmbench.arrivals.schedule import arrival_seed, schedule_ns
from pytest_llmbench.methodology.measuring.warmup import STEADY_PROBES, planned_warm_up
from pytest_llmbench.methodology.procedure import Bounds, Setting
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.stream import stream_of

SPREAD_SHARE, SPREAD_REQUESTS = 1.1, 63
"""Bound of a Poisson count with mean x: 1.1 x + 63 is five standard deviations above, whatever x is."""


def plan_bounds(plan: LoadPlan, *, least: int | None = None) -> Bounds:
    """The bounds of a load that is known beforehand. ``least``: the fewest requests, if it may end early or
    be left out."""
    certain = plan.looks is None and least is None
    seconds = _seconds(plan)
    return Bounds(
        plan.workload,
        plan.seed,
        plan.key,
        plan.requests if certain else (least or 0),
        plan.most_requests,
        least_s=(seconds or 0.0) if certain else 0.0,
        most_s=seconds or 0.0,
        open_ended=seconds is None,
        phase=plan.phase,
        variant=plan.variant,
        fresh=plan.fresh_state,
        first=plan.first,
    )


def _seconds(plan: LoadPlan) -> float | None:
    """Seconds from the start to the last arrival, or the nominal duration; None where the system decides."""
    if plan.duration_s is not None:
        return plan.duration_s
    if not isinstance(plan.load, OpenLoop) or not plan.requests:
        return None
    due_ns = schedule_ns(plan.load, plan.first + plan.requests, arrival_seed(plan.schedule_seed))
    return float(due_ns[-1] - (due_ns[plan.first - 1] if plan.first else 0)) / 1e9


def warm_up_bounds(
    setting: Setting,
    *,
    workload: Workload | None = None,
    concurrency: int | None = None,
    variant: str = "",
    fresh: bool = False,
) -> list[Bounds]:
    """The bounds of the loads of one warm-up, and of its probes."""
    policy = setting.warmup
    if not policy.wanted:
        return []
    told = setting if workload is None else replace(setting, workload=workload)
    load, probe = planned_warm_up(told, concurrency, variant)
    volumes = list(_volumes(setting))
    asked = (request.max_tokens for request in stream_of(load.workload, load.seed))
    warm = plan_bounds(load.with_(requests=_enough(volumes, asked, policy.output_tokens), variant=variant))
    probes = plan_bounds(probe.with_(requests=1 + policy.probes, variant=variant))
    fewest = 1 + min(STEADY_PROBES, policy.probes)
    return [replace(warm, worst=volumes[-1], fresh=fresh), replace(probes, least=fewest, fresh=fresh)]


def _volumes(setting: Setting) -> Iterator[int]:
    """The numbers of requests after which a warm-up checks whether that was enough."""
    policy, planned = setting.warmup, 0
    while planned == 0 or planned < policy.max_requests:
        planned += max(policy.requests if planned == 0 else policy.requests // 4, 1)
        yield planned


def _enough(volumes: Sequence[int], asked: Iterator[int], output_tokens: int) -> int:
    """The first volume whose requests ask for so many tokens, else the last. Draws no further requests than
    needed."""
    drawn = total = 0
    for volume in volumes:
        more = list(islice(asked, volume - drawn))
        drawn, total = drawn + len(more), total + sum(more)
        if drawn < volume:
            break
        if total >= output_tokens:
            return volume
    return volumes[-1]
