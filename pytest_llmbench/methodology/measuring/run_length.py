"""Whether an open loop is long enough to tell a busy system from an overloaded one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_llmbench.methodology.measuring.offered import offered_rate
from pytest_llmbench.metrics.latency import waiting
from pytest_llmbench.metrics.overload import with_slots
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.stats.backlog import FEWEST
from pytest_llmbench.stats.queues.batching import ENOUGH, FullLoad, load_at_full_slots
from pytest_llmbench.stats.spectral import normal_quantile

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
    message = (
        f"{len(records)} requests span about {load.relaxation_times:.1f} relaxation times of the queue "
        f"(work for {load.utilisation:.0%} of {load.slots:.0f} slots)"
    )
    if longer > 1:
        message += ": too few to tell it from one that grows without end, so upper ends of means are open; "
        enough = math.ceil(min(longer, MOST_TIMES_LONGER) * len(records) / 100) * 100
        message += (
            f"about {enough} requests would do if it is as it seems, or lower the rate"
            if longer <= MOST_TIMES_LONGER
            else f"more than {enough} requests would be needed, or a lower rate"
        )
    return Finding(
        "run_length",
        ok=longer <= 1,
        voids=False,
        message=message,
        value=load.relaxation_times,
        # From about two on the upper end of the utilisation is less than 1.
        limit=normal_quantile(RUN_LEVEL) ** 2 / 2,
    )


def _busy(full: FullLoad) -> Finding:
    """The finding on an open loop of a server whose requests slow each other down."""
    busy = f"with {full.slots} requests under way the server is {full.load:.0%} busy at this rate"
    if full.load >= 1:
        message = f"{busy}: nothing tells how far its queue grows, so upper ends are open; lower the rate"
        return Finding("run_length", ok=False, voids=False, message=message, value=0.0, limit=ENOUGH)
    longer = ENOUGH / full.relaxation_times if full.relaxation_times else math.inf
    more = f"{'about' if longer <= MOST_TIMES_LONGER else 'more than'} "
    more += f"{math.ceil(min(longer, MOST_TIMES_LONGER) * full.requests / 100) * 100} requests"
    message = (
        f"{full.requests} requests span about {full.relaxation_times:.1f} relaxation times of the queue: "
        f"{busy}. Upper ends of percentiles beyond the median are open; {more} would do, or a lower rate"
    )
    value = full.relaxation_times
    return Finding("run_length", ok=False, voids=False, message=message, value=value, limit=ENOUGH)
