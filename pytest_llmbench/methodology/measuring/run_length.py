"""Whether an open loop is long enough to tell a busy system from an overloaded one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_llmbench.methodology.measuring.offered import offered_rate
from pytest_llmbench.metrics.latency import waiting
from pytest_llmbench.metrics.overload import with_slots
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.stats.backlog import FEWEST
from pytest_llmbench.stats.batching import ENOUGH, FullLoad, load_at_full_slots
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
