"""Goodput: how many requests meet all limits at once, and at which rate.

A request is good when it ended ``ok`` and kept each of its limits; one that failed, or whose latency was not
observed, is not. The share of good requests is the SLO attainment rate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.metrics.latency import backlog_among
from pytest_llmbench.metrics.ratios import share_estimate
from pytest_llmbench.metrics.throughput import Window, output_token_throughput, request_throughput
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Quantity
from pytest_llmbench.model.records import MISSING, BoolColumn, Records
from pytest_llmbench.stats import proportion
from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.interim.samples import Ends, scores, waited_of_scores
from pytest_llmbench.stats.runs import FloatArray

Limits = Sequence[tuple[Quantity, float]]


def good(records: Records, limits_ms: Limits) -> BoolColumn:
    """For each request, whether it meets every limit."""
    return np.asarray(scores(limits_ms, Ends.of_records(records)) <= 1.0)


def goodput_share(runs: Sequence[Records], limits_ms: Limits, *, level: float = 0.95) -> Estimate:
    """Good requests / all requests but those that their users were to cut. Clopper and Pearson's interval at
    the effective number of requests.

    How much requests depend on each other is read from how close they came to their limits, so that a run
    without a single miss is not taken for so many independent successes.
    """
    judged = [run.select(run.judged) for run in runs]
    every = [scores(limits_ms, Ends.of_records(records)) for records in judged if len(records)]
    waited = waited_of_scores(limits_ms, backlog_among(runs, [records.submitted_ns for records in judged]))
    return share_within(every, "no requests", level=level, waited=waited)


def share_within(
    every: Sequence[FloatArray], without: str, *, level: float = 0.95, waited: Backlog | None = None
) -> Estimate:
    """The share of scores, one vector per run, that are at most 1; see :func:`goodput_share`. ``without``:
    what is missing if there are no scores. ``waited``: the wait for a slot, in the unit of the scores."""
    n = sum(map(len, every))
    if n == 0:
        return Estimate.undefined(unit="ratio", method=without, level=level)
    top = max(1.0, *(float(np.max(run[np.isfinite(run)], initial=0.0)) for run in every))
    finite = [np.where(np.isfinite(run), run, 2.0 * top) for run in every]
    found = proportion.share_within(finite, level=level, backlog=waited)
    return share_estimate(found, level, without)


_UNITS = {"goodput_share": "ratio", "goodput": "req/s", "output_token_goodput": "tok/s"}


def uncounted(runs: Sequence[Records], limits_ms: Limits) -> bool:
    """Whether TPOT is limited, and of a run no successful reply has a count of its tokens: who is good is not
    known then."""
    limited = any(quantity == "tpot" for quantity, _ in limits_ms)
    return limited and any(run.ok.any() and (run.output_tokens[run.ok] == MISSING).all() for run in runs)


def unknown(unit: str) -> Estimate:
    """What is good by a TPOT that is not known."""
    why = "a limit on TPOT, and of a run no count of output tokens that can be"
    return Estimate.undefined(unit=unit, method=why, reason=Reason.NOT_MEASURABLE)


def goodput(seen: Sequence[Observation], limits_ms: Limits, *, seed: int) -> dict[str, Estimate]:
    """``goodput_share``, ``goodput`` (good requests per second), ``output_token_goodput`` (their tokens)."""
    runs = [run.records for run in seen]
    if uncounted(runs, limits_ms):
        return {name: unknown(unit) for name, unit in _UNITS.items()}
    windows = [Window.of_load(run, run.records.select(good(run.records, limits_ms))) for run in seen]
    requests = request_throughput(windows, seed=seed)
    tokens = output_token_throughput(windows, seed=seed)
    return {
        "goodput_share": goodput_share(runs, limits_ms),
        "goodput": replace(requests, method=f"{requests.method}, good requests"),
        "output_token_goodput": replace(tokens, method=f"{tokens.method}, good requests"),
    }
