"""The KV cache: what its prefixes save (section 5.7.4, AMB-18), and what happens where its memory runs out.

Over the requests that ended ``ok``: both figures need the server's count of cached tokens. A count missing
for a part of the requests is no count: the figure is then undefined, and its method says ``not measurable``
and why.

What the cache takes off TTFT, by the number of the turn, is told from two loads with the same turns.

Failures that mention memory; preemptions as the server reports them per request (section 5.8.4): undefined
where it says nothing; the method is then ``not measurable`` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.metrics.differences import change
from pytest_llmbench.metrics.ratios import ratio_of_sums, share_estimate
from pytest_llmbench.metrics.server_side import tells_cached
from pytest_llmbench.metrics.session_figures import latencies
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import TurnClass
from pytest_llmbench.stats.ratios import share_of
from pytest_llmbench.stats.runs import events


def cache_hit_rate(runs: Sequence[Records], *, seed: int) -> Estimate:
    """Σ min(cached, shared prefix) / Σ shared prefix, over requests that begin with a shared prefix."""
    sharing = [run.select(run.ok & (run.shared_prefix_tokens > 0)) for run in runs]
    reason, n = _not_measurable(sharing, "share a prefix"), sum(map(len, sharing))
    if reason is not None:
        return Estimate.undefined(unit="ratio", method=reason, n=n, reason=Reason.NOT_MEASURABLE)
    hits = [np.minimum(run.cached_tokens, run.shared_prefix_tokens).astype(np.float64) for run in sharing]
    asked = [run.shared_prefix_tokens.astype(np.float64) for run in sharing]
    return ratio_of_sums(hits, asked, unit="ratio", seed=seed)


def cached_input_share(runs: Sequence[Records], *, seed: int) -> Estimate:
    """Σ cached tokens / Σ input tokens, over all parts of the prompts."""
    successful = [run.select(run.ok) for run in runs]
    n = sum(map(len, successful))
    reason = _not_measurable(successful, "succeeded")
    uncounted = sum(int((run.input_tokens <= 0).sum()) for run in successful)
    if reason is None and uncounted:
        reason = f"{uncounted} of {n} successful requests have no input token count"
    if reason is not None:
        return Estimate.undefined(unit="ratio", method=reason, n=n, reason=Reason.NOT_MEASURABLE)
    cached = [run.cached_tokens.astype(np.float64) for run in successful]
    tokens = [run.input_tokens.astype(np.float64) for run in successful]
    return ratio_of_sums(cached, tokens, unit="ratio", seed=seed)


def with_zeros(records: Records) -> Records:
    """The records with 0 for missing counts of cached tokens, if some reply has a count. Servers such as vLLM
    report cached tokens only where there are any. If no reply has a count, nothing is known and nothing is
    changed."""
    return zeros_of(records) if tells_cached(records) else records


def zeros_of(records: Records) -> Records:
    """The records with 0 for missing counts of cached tokens; other replies of the same server have shown
    that it counts."""
    silent = records.ok & (records.cached_tokens == MISSING)
    return replace(records, cached_tokens=np.where(silent, 0, records.cached_tokens))


def _not_measurable(runs: Sequence[Records], which: str) -> str | None:
    n = sum(map(len, runs))
    if n == 0:
        return f"no requests that {which}"
    missing = sum(int((run.cached_tokens == MISSING).sum()) for run in runs)
    if missing == n:
        return "the server gives no cached token counts"
    if missing:
        return f"{missing} of {n} requests that {which} have no cached token count"
    return None


_REDUCED = ("p50", "p95", "p99")


def ttft_reductions(
    without: Records, with_cache: Records, classes: Iterable[TurnClass]
) -> dict[str, Estimate]:
    """``ttft_reduction`` of all turns and ``turn_ttft_reduction[c]``: 1 - TTFT with the cache / TTFT without,
    at P50, P95 and P99, from records of the same turns.

    The unit is the session, in both; that they are the same sessions makes the intervals wider than they need
    be, never narrower.
    """
    found: dict[str, Estimate] = {}
    for each in (None, *classes):
        name = "ttft_reduction" if each is None else f"turn_ttft_reduction[{each}]"
        family = "ttft" if each is None else f"turn_ttft[{each}]"
        before, after = (latencies([arm], "ttft", each) for arm in (without, with_cache))
        for statistic in _REDUCED:
            pair = before[f"{family}.{statistic}"], after[f"{family}.{statistic}"]
            found[f"{name}.{statistic}"] = change(*pair, "reduction")
    return found


OUT_OF_MEMORY = re.compile(
    r"out[ _-]?of[ _-]?(?:device[ _-]|gpu[ _-]|host[ _-])?memory|\boom\b", re.IGNORECASE
)
OUT_OF_MEMORY_RULE = "a failed request whose error text says `out of memory` or `OOM`, in any spelling"


def out_of_memory_errors(records: Records) -> int:
    """Number of failed requests whose error text mentions memory that ran out. A connection that was merely
    lost is not one of them (it counts as failed), and neither is what the generator itself gave up."""
    given_up = records.has_outcome(Outcome.TIMEOUT) | records.has_outcome(Outcome.CANCELLED)
    failed = records.failed & ~given_up
    return sum(
        bool(error and OUT_OF_MEMORY.search(error))
        for error, bad in zip(records.error, failed, strict=True)
        if bad
    )


def timeouts(records: Records) -> int:
    """Number of requests that the generator gave up by a deadline of its own; how they would have ended is
    not known."""
    return int(records.has_outcome(Outcome.TIMEOUT).sum())


_SILENT = "the server gives no preemption counts per request"


def preemption_rate(runs: Sequence[Records]) -> Estimate:
    """Requests preempted at least once / requests with a preemption count, of whatever outcome.

    Where requests without a count remain (they failed before the server could tell), the method says so.
    """
    known = [run.select(run.preemptions != MISSING) for run in runs]
    counted, submitted = sum(map(len, known)), sum(map(len, runs))
    if counted == 0:
        return Estimate.undefined(unit="ratio", method=_SILENT, n=submitted, reason=Reason.NOT_MEASURABLE)
    some = "" if counted == submitted else f", over {counted} of {submitted} requests with a count"
    return share_estimate(share_of(events([run.preemptions > 0 for run in known])), "no samples", some)


def preemption_recovery_rate(runs: Sequence[Records]) -> Estimate:
    """Preempted requests that ended ``ok`` / preempted requests, without those that their users were to cut.

    Not measurable if an unsuccessful request lacks its count: servers report at the end of a response, and
    those that never ended would go missing from the denominator only.
    """
    known = [run.select(run.judged & (run.preemptions != MISSING)) for run in runs]
    n = sum(map(len, known))
    if n == 0:
        return Estimate.undefined(unit="ratio", method=_SILENT, reason=Reason.NOT_MEASURABLE)
    silent = sum(int((run.failed & (run.preemptions == MISSING)).sum()) for run in runs)
    if silent:
        reason = f"{silent} unsuccessful requests have no preemption count"
        return Estimate.undefined(unit="ratio", method=reason, n=n, reason=Reason.NOT_MEASURABLE)
    preempted = [run.select(run.preemptions > 0) for run in known]
    if not any(map(len, preempted)):
        return Estimate.undefined(unit="ratio", method="no request was preempted")
    return share_estimate(share_of(events([run.ok for run in preempted])), "no samples")


def preemption_loss(runs: Sequence[Records], *, seed: int) -> Estimate:
    """Σ discarded tokens / Σ preemptions: mean tokens discarded per preemption."""
    known = [run.select((run.preemptions != MISSING) & (run.preempted_tokens != MISSING)) for run in runs]
    if not any(map(len, known)):
        reason = "the server does not say how many tokens a preemption discards"
        return Estimate.undefined(
            unit="tokens", method=reason, n=sum(map(len, runs)), reason=Reason.NOT_MEASURABLE
        )
    preempted = [run.select(run.preemptions > 0) for run in known]
    if not any(map(len, preempted)):
        return Estimate.undefined(unit="tokens", method="no request was preempted")
    tokens = [run.preempted_tokens.astype(np.float64) for run in preempted]
    counts = [run.preemptions.astype(np.float64) for run in preempted]
    return ratio_of_sums(tokens, counts, unit="tokens", seed=seed)
