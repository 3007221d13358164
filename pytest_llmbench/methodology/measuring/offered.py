"""Checks whether the load was offered at all, or the generator fell short (section 4.2, AMB-28).

An open loop is defined by its schedule. Where the sends fell behind it, the run says nothing about the system
at that load: neither that it holds nor that it is saturated. Such a level is measured again
(``remeasured.py``), and stands in the report under its role with ``NOT_OFFERED``; what it saw is not
judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from pytest_llmbench.metrics.latency import FEWEST_FOR_GROWTH, growth_limit_ns, lag_limit_ns, waiting
from pytest_llmbench.metrics.overload import with_slots
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import BEHIND_SCHEDULE, Observation
from pytest_llmbench.model.records import MISSING, IntColumn
from pytest_llmbench.model.result import NOT_OFFERED, Level
from pytest_llmbench.stats import batching
from pytest_llmbench.stats.backlog import FEWEST
from pytest_llmbench.stats.batching import ENOUGH, FullLoad, load_at_full_slots
from pytest_llmbench.stats.spectral import normal_quantile


def send_lag(run: Observation) -> Finding | None:
    lag = run.selfcheck.send_lag_p99_ns
    rate = _scheduled_rate(run)
    if rate is None or lag is None:
        return None
    limit = lag_limit_ns(rate, run.host_limits.send_lag_ns) / 1e6
    return Finding.of("send_lag", lag / 1e6 <= limit, lag / 1e6, limit)


def _scheduled_rate(run: Observation) -> float | None:
    """The rate at which requests were due at fixed instants, per second; None where none were. Turns of
    sessions are due when earlier ones end, and so are requests under a cap, at the rate that results."""
    load = run.plan.load
    if not load.of_sessions and load.most_in_flight is None:
        return load.request_rate
    return batching.rate_of(run.records.scheduled_ns[run.records.scheduled_ns != MISSING])


def offered_rate(run: Observation) -> float | None:
    """The rate of an open loop, per second: that which was asked for, of a trace that of the part that was
    sent. None for a load that waits for replies."""
    return batching.offered_rate(run.plan.load, run.records.scheduled_ns)


def growing_lag(run: Observation) -> Finding | None:
    first, last = run.selfcheck.send_lag_first_tenth_p50_ns, run.selfcheck.send_lag_last_tenth_p50_ns
    rate = _scheduled_rate(run)
    if first is None or last is None or rate is None:
        return None
    limit_ms = growth_limit_ns(first, rate, run.host_limits.send_lag_ns) / 1e6
    return Finding.of(
        "send_lag_growth",
        last / 1e6 <= limit_ms,
        last / 1e6,
        limit_ms,
        voids=len(run.records) >= FEWEST_FOR_GROWTH,
        first=Amount(first / 1e6, "ms"),
    )


def achieved_rate(run: Observation) -> Finding | None:
    """The finding on the achieved rate: that of the sends, over the time that the schedule gave them. None
    without a schedule."""
    share, limit = _share_of_rate(run, run.records.submitted_ns), run.host_limits.rate_share
    return None if share is None else Finding.of("achieved_rate", share >= limit, share, limit)


def _share_of_rate(run: Observation, instants_ns: IntColumn) -> float | None:
    """The rate of these instants of the requests, as a share of the scheduled rate."""
    both = (instants_ns != MISSING) & (run.records.scheduled_ns != MISSING)
    if run.plan.load.requests_in_flight is not None or int(both.sum()) < 2:
        return None
    planned, took = np.ptp(run.records.scheduled_ns[both]), np.ptp(instants_ns[both])
    return float(planned / took) if took > 0 else 1.0


SCHEDULE_CHECKS = (send_lag, growing_lag, achieved_rate)


def shortfalls(run: Observation) -> tuple[str, ...]:
    """How the sends fell behind the schedule, in words; empty where they kept it, and in a closed loop."""
    found = (check(run) for check in SCHEDULE_CHECKS)
    late = [finding.message for finding in found if finding is not None and finding.voids and not finding.ok]
    return (*late, *([run.interrupted or ""] if gave_up(run) else []))


def gave_up(run: Observation) -> bool:
    """Whether the generator ended the load because its schedule was out of reach."""
    return run.interrupted is not None and BEHIND_SCHEDULE in run.interrupted


def begun_late(run: Observation) -> bool:
    """Whether it was this machine that fell behind. A request whose send began in time and whose last byte
    left late waited for the server to take it."""
    if run.interrupted is not None:
        return gave_up(run)
    begun = (send_lag(run), growing_lag(run))
    if any(finding is not None and finding.voids and not finding.ok for finding in begun):
        return True
    share = _share_of_rate(run, run.records.dispatched_ns)
    return share is not None and share < run.host_limits.rate_share


def is_offered(level: Level) -> bool:
    return not level.role.endswith(NOT_OFFERED)


def set_aside(levels: Iterable[Level]) -> tuple[int, ...]:
    """Indices of the observations of levels that were not offered."""
    return tuple(
        level.observation for level in levels if level.observation is not None and not is_offered(level)
    )


RUN_LEVEL, FEWEST_WAITED, MOST_TIMES_LONGER = 0.95, 5, 16


def shortest_run(counted: Sequence[Observation]) -> Finding | None:
    """The finding about the run that spans the fewest relaxation times."""
    found = [finding for finding in map(_run_length, counted) if finding is not None]
    return min(found, key=lambda finding: finding.value or 0.0, default=None)


def _run_length(run: Observation) -> Finding | None:
    """The finding on whether an open loop spans enough relaxation times of its queue to tell it from that of
    an overloaded system; None where that is not known, or hardly a request waited for others."""
    records = run.records
    rate = offered_rate(run)
    if rate is None:
        return None
    full = load_at_full_slots(*with_slots(run), rate)
    if full is not None and full.requests >= FEWEST and full.relaxation_times < ENOUGH:
        return _busy(full)
    samples, waited = waiting("latency", [records])
    if waited is None or waited.load is None or np.count_nonzero(waited.waits[0]) < FEWEST_WAITED:
        return None
    if not waited.may_lengthen(samples):
        samples, before = waiting("ttft", [records])
        if before is None or not before.may_lengthen(samples):
            return None
    load, longer = waited.load, waited.load.longer(RUN_LEVEL)
    return Finding.of(
        "run_length",
        longer <= 1,
        load.relaxation_times,
        # From about two on the upper end of the utilisation is less than 1.
        normal_quantile(RUN_LEVEL) ** 2 / 2,
        requests=len(records),
        busy=Amount(load.utilisation, "ratio"),
        slots=Amount(load.slots, "count"),
        enough=_enough(longer, len(records)),
        beyond=longer > MOST_TIMES_LONGER,
    )


def _enough(longer: float, requests: int) -> int:
    """The requests of a load so many times as long, in hundreds; at most of the longest that is advised."""
    return math.ceil(min(longer, MOST_TIMES_LONGER) * requests / 100) * 100


def _busy(full: FullLoad) -> Finding:
    """The finding on an open loop of a server whose requests slow each other down."""
    busy: dict[str, Any] = {"slots": full.slots, "busy": Amount(full.load, "ratio")}
    if full.load >= 1:
        return Finding.of("run_length.overloaded", value=0.0, limit=ENOUGH, **busy)
    longer = ENOUGH / full.relaxation_times if full.relaxation_times else math.inf
    return Finding.of(
        "run_length.slowed",
        value=full.relaxation_times,
        limit=ENOUGH,
        requests=full.requests,
        enough=_enough(longer, full.requests),
        beyond=longer > MOST_TIMES_LONGER,
        **busy,
    )
