"""The values that looks judge, request by request: latencies in ms, and the used share of the limits.

NaN: the request is no sample of the quantity. Infinity: it was given up on, or did not end well and counts as
slower than any limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pytest_llmbench.model.plan import Quantity, Watched
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.latencies import SPANS, Ends, latency_ms, streamed_tokens
from pytest_llmbench.stats.runs import FloatArray


def values(watched: Watched, ends: Ends) -> FloatArray:
    """One value for each request. For a share it is a score: 1 or less where the request counts as good."""
    return np.where(ends.judged, _values(watched, ends), np.nan)


def _values(watched: Watched, ends: Ends) -> FloatArray:
    if watched.quantity == "ok":
        return np.where(ends.ok, 0.0, np.inf)
    if watched.quantity == "good":
        return scores(watched.limits_ms, ends)
    found = latency_ms(watched.quantity, ends)
    over = ~ends.ok if watched.failures_over_limit else ends.given_up
    if watched.quantity == "tpot" and not watched.failures_over_limit:  # of a reply that had not begun
        over = over & (ends.first_nonempty_ns != MISSING)
    found = np.where(over, np.inf, found)
    # Of a request that failed early only what was asked for is known, so its bucket may not be.
    inside = ends.input_tokens >= watched.least_tokens
    if watched.below_tokens is not None:
        inside &= ends.input_tokens < watched.below_tokens
    elif watched.least_tokens == 0:
        return found
    return np.where(inside & (ends.input_tokens != MISSING), found, np.nan)


def scores(limits_ms: Sequence[tuple[Quantity, float]], ends: Ends) -> FloatArray:
    """The largest share of its limits that each request used; infinity for one that did not end well and
    where a limited latency was not observed; NaN for one that its user was to cut. TPOT is no limit for a
    reply of fewer than two tokens."""
    worst = np.zeros(len(ends.index))
    for quantity, limit in limits_ms:
        used = latency_ms(quantity, ends) / limit
        short = (quantity == "tpot") & (ends.output_tokens != MISSING) & (streamed_tokens(ends) < 2)
        worst = np.maximum(worst, np.where(np.isnan(used), np.where(short, 0.0, np.inf), used))
    return np.where(ends.judged, np.where(ends.ok, worst, np.inf), np.nan)


def waited(watched: Watched, backlog: Backlog | None) -> Backlog | None:
    """The waits, given in ms, in the unit of the watched values; ``None`` where they are not part of
    these."""
    if watched.quantity == "good":
        return waited_of_scores(watched.limits_ms, backlog)
    return backlog if watched.quantity in SPANS else None


def waited_of_scores(limits_ms: Sequence[tuple[Quantity, float]], backlog: Backlog | None) -> Backlog | None:
    """The waits in the unit of scores: shares of the tightest limit on a latency that contains a wait."""
    limits = [limit for quantity, limit in limits_ms if quantity in SPANS]
    return backlog.scaled(1 / min(limits)) if backlog is not None and limits else None
