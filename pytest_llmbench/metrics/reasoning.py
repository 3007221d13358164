"""Metrics of reasoning models: when reasoning ends, what it costs, what the server did about it.

Instants of a request: submission, first output of any kind, **end of thinking**, first visible content. The
end of thinking is that of the reasoning before the first visible content: its last chunk, or the chunk that
completes the closing tag. Thoughts that come later (between tool calls, say) belong to the output phase. A
reply that did not reason, or that spoke first, has no end of thinking and is in no TTOT.

Only requests that ended ``ok`` enter, but for what the server reports of any request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_llmbench.metrics.chunking import single_token_share
from pytest_llmbench.metrics.definitions import is_metric
from pytest_llmbench.metrics.itl import ItlSamples, Option, itl_samples
from pytest_llmbench.metrics.latency import by_blocks
from pytest_llmbench.metrics.ratios import ratio_of_sums, share_estimate
from pytest_llmbench.model.draft import SINGLE_TOKEN_SHARE
from pytest_llmbench.model.estimate import LEVEL, Estimate, EstimateKind, Reason
from pytest_llmbench.model.observation import THINKING_ENDED, EngineReadings
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import IN_RAGGED, MISSING, TOKEN_SOURCES, BoolColumn, Records
from pytest_llmbench.stats.ratios import exact_share_interval, share_of
from pytest_llmbench.stats.runs import FloatArray

NOT_REPORTED = "the server does not report it"
MOST_REASONS = 8
"""The most reasons that are reported one by one, by frequency; a server may use as many words as replies."""
NATURAL_END_REASONS = ("converged",)
"""Reasons that mean that the model ended its reasoning itself, where the SUT file names no others."""


def reasoned(records: Records) -> BoolColumn:
    """For each request, whether its reply held reasoning, streamed or only counted by the server."""
    return np.asarray((records.first_reasoning_ns != MISSING) | (records.reasoning_tokens > 0))


@by_blocks
def think_tokens(records: Records) -> FloatArray:
    """Reasoning tokens of the replies that reasoned, where they were counted."""
    counted = records.ok & reasoned(records) & (records.reasoning_tokens != MISSING)
    return np.asarray(records.reasoning_tokens[counted], dtype=np.float64)


def think_share(runs: Sequence[Records], *, seed: int) -> Estimate:
    """Reasoning tokens / output tokens, summed over requests. Undefined where reasoning was not counted: a
    share of what was counted would be too small. Likewise where no reply showed any reasoning and the server
    counted none: it may be hidden."""
    uncounted = sum(
        int((block.ok & reasoned(block) & (block.reasoning_tokens == MISSING)).sum())
        for run in runs
        for block in run.blocks()
    )
    if uncounted:
        method = f"the reasoning of {uncounted} replies was not counted"
        return Estimate.undefined(unit="ratio", method=method, reason=Reason.NOT_MEASURABLE)
    if not any(bool((run.ok & (reasoned(run) | (run.reasoning_tokens != MISSING))).any()) for run in runs):
        method = "no reply held reasoning, and the server counts none"
        return Estimate.undefined(unit="ratio", method=method, reason=Reason.NOT_MEASURABLE)
    tops, bottoms = [], []
    for run in runs:
        known = run.ok & (run.output_tokens > 0)
        tops.append(run.reasoning_tokens[known].clip(0).astype(np.float64))
        bottoms.append(run.output_tokens[known].astype(np.float64))
    return ratio_of_sums(tops, bottoms, unit="ratio", seed=seed)


def output_itl_samples(records: Records, option: Option) -> ItlSamples:
    """The gaps from the first visible content on: those of the phase that a user reads, whatever it
    contains."""
    return itl_samples(records, option, min_output_tokens=1, part=output_phase)


def output_itl_option(runs: Sequence[Records]) -> Option:
    """``direct`` where more than 90 % of the chunks of every run hold one token, else ``A``: Time Between
    Chunks. The server's own instants (option C) do not say which tokens are thoughts."""
    shares = [single_token_share(run) for run in runs]
    single = all(share is not None and share > SINGLE_TOKEN_SHARE for share in shares)
    return "direct" if shares and single else "A"


def output_phase(records: Records) -> Records:
    """The records with their chunks from the first visible content on; without chunks where there is none."""
    counts = np.diff(records.chunk_offsets)
    owner = np.repeat(np.arange(len(records)), counts)
    first_ns = records.first_content_ns[owner]
    keep = (first_ns != MISSING) & (records.chunk_ns >= first_ns)
    kept = np.bincount(owner[keep], minlength=len(records))
    return Records(
        **{name: getattr(records, name) for name in _NOT_RAGGED},
        chunk_offsets=np.concatenate(([0], np.cumsum(kept))).astype(np.int64),
        chunk_ns=records.chunk_ns[keep],
        chunk_tokens=records.chunk_tokens[keep],
        server_token_offsets=np.zeros(len(records) + 1, dtype=np.int64),
        server_token_ns=np.empty(0, dtype=np.int64),
    )


_NOT_RAGGED = tuple(name for name in Records.__dataclass_fields__ if name not in IN_RAGGED)


@dataclass(frozen=True, slots=True)
class ReplyKinds:
    """Numbers of requests by kind, for notes on what a figure covers and leaves out."""

    ok: int
    reasoned: int
    """Number of ``ok`` requests with reasoning."""
    hidden: int
    """Number of requests with reasoning that the server counted but did not stream."""
    spoke_first: int
    """Number of requests with streamed reasoning for which no end of thinking before the first visible
    content is known."""
    merged: int
    """Number of requests in which one chunk or read brought the last reasoning and the first visible content,
    so that TTOT counts from the output before it."""
    interleaved: int
    """Number of requests with reasoning after the first visible content."""
    uncounted: int
    """Number of requests whose reasoning tokens nobody counted."""
    never_spoke: int
    """Number of failed requests whose reply held reasoning and no visible content."""
    sources: tuple[tuple[str, int], ...]
    """Sources of the counts of reasoning tokens, each with its number of replies."""


def reply_kinds(runs: Sequence[Records]) -> ReplyKinds:
    counts: Counter[str] = Counter()
    sources: Counter[str] = Counter()
    for run in runs:
        for block in run.blocks():
            _count_kinds(block, counts, sources)
    kinds = ("ok", "reasoned", "hidden", "spoke_first", "merged", "interleaved", "uncounted", "never_spoke")
    return ReplyKinds(**{kind: counts[kind] for kind in kinds}, sources=tuple(sorted(sources.items())))


def _count_kinds(block: Records, counts: Counter[str], sources: Counter[str]) -> None:
    thought = block.ok & reasoned(block)
    streamed = thought & (block.first_reasoning_ns != MISSING)
    counted = thought & (block.reasoning_tokens != MISSING)
    last, visible = block.last_reasoning_ns, block.first_content_ns
    masks = {
        "ok": block.ok,
        "reasoned": thought,
        "hidden": thought & ~streamed,
        "spoke_first": streamed & (block.thinking_end_ns == MISSING),
        "merged": streamed & (block.thinking_end_ns != MISSING) & (last == visible),
        "interleaved": streamed & (last > visible),
        "uncounted": thought & ~counted,
        "never_spoke": block.has_outcome(Outcome.EMPTY) & reasoned(block),
    }
    counts.update({kind: int(mask.sum()) for kind, mask in masks.items()})
    for source, count in enumerate(np.bincount(block.reasoning_token_source[counted])):
        if count:
            sources[str(TOKEN_SOURCES[source])] += int(count)


def end_reasons(runs: Sequence[Records], engines: Sequence[EngineReadings | None] = ()) -> Counter[str]:
    """How often reasoning ended for each reason, in the server's words.

    By the counter of its metrics page where every run has it (which counts the requests of others too), else
    of every request that the server says it of.
    """
    counted = _counted_end_reasons(engines)
    if counted:
        return counted
    return Counter(reason for run in runs for reason in run.thinking_end_reason if reason is not None)


def _counted_end_reasons(engines: Sequence[EngineReadings | None]) -> Counter[str]:
    found = Counter[str]()
    for engine in engines:
        grown = None if engine is None else engine.grown_by_label(THINKING_ENDED)
        if grown is None:
            return Counter()
        found.update({reason: round(count) for reason, count in grown.items()})
    return +found


def budget_force_rate(
    runs: Sequence[Records],
    natural: Collection[str] = NATURAL_END_REASONS,
    *,
    engines: Sequence[EngineReadings | None] = (),
) -> dict[str, Estimate]:
    """``budget_force_rate``, and for each reason that is not ``natural`` ``budget_force_rate[reason]``:
    replies whose reasoning the server ended for it / replies of which it says why their reasoning ended.

    Replies that reasoned and of which it does not say so may have been forced, or not: the interval reaches
    from none of them to all of them. Undefined where it says it of none. A counter of the metrics page has no
    order, so its replies are taken as independent.
    """
    told = end_reasons(runs, engines)
    counted = bool(_counted_end_reasons(engines))
    forced = [reason for reason, _ in told.most_common() if reason not in natural]
    if not told:
        nothing = Estimate.undefined(unit="ratio", method=NOT_REPORTED, reason=Reason.NOT_MEASURABLE)
        return {"budget_force_rate": nothing}

    def share(reasons: Collection[str]) -> Estimate:
        if counted:
            return _counted_share(runs, told, reasons)
        return _forced_share(runs, frozenset(reasons))

    found = {"budget_force_rate": share(forced)}
    for reason in forced[:MOST_REASONS]:
        found[_of_reason(reason)] = share([reason])
    return found


def _of_reason(reason: str) -> str:
    """The metric of one reason. The server's word is changed where it would make another metric, or none."""
    word = reason.replace("[", "(").replace("]", ")").replace("\n", " ")
    name = f"budget_force_rate[{word}]"
    return name if is_metric(name) else f"budget_force_rate[reason {word}]"


def _forced_share(runs: Sequence[Records], reasons: frozenset[str]) -> Estimate:
    series: list[list[FloatArray]] = [[], [], []]
    for run in runs:
        thought = (run.ok & reasoned(run)).tolist()
        every = [
            (reason in reasons, reason is None)
            for reason, asked in zip(run.thinking_end_reason, thought, strict=True)
            if reason is not None or asked
        ]
        series[0].append(np.array([forced for forced, unknown in every if not unknown], dtype=np.float64))
        series[1].append(np.array([forced for forced, _ in every], dtype=np.float64))
        series[2].append(np.array([forced or unknown for forced, unknown in every], dtype=np.float64))
    told, least, most = (share_estimate(share_of(each), NOT_REPORTED) for each in series)
    if least.n == told.n:
        return told
    method = f"{told.method}; of {least.n - told.n} more the server does not say it"
    lower = None if least.lower is None or told.point is None else min(least.lower, told.point)
    return replace(told, lower=lower, upper=most.upper, method=method)


def _counted_share(runs: Sequence[Records], told: Counter[str], reasons: Collection[str]) -> Estimate:
    n, forced = told.total(), sum(told[reason] for reason in reasons)
    unknown = max(0, sum(int((run.ok & reasoned(run)).sum()) for run in runs) - n)
    tail, method = (1 - LEVEL) / 2, "counter of the engine's metrics page, its replies taken as independent"
    lower, upper = exact_share_interval(forced, n, tail=tail)
    if unknown:
        lower, _ = exact_share_interval(forced, n + unknown, tail=tail)
        _, upper = exact_share_interval(forced + unknown, n + unknown, tail=tail)
        method += f"; of {unknown} more it does not say it"
    return Estimate(forced / n, lower, upper, LEVEL, n, method, "ratio")


def critical_evictions(runs: Sequence[Records], engines: Sequence[EngineReadings | None]) -> Estimate:
    """Evictions of requests in their output phase, counted by the server during the measured load.

    By the counter of its metrics page where every run has it (which counts the requests of others too), else
    the sum over the requests. Of requests that were accepted and do not say it, it is a lower bound; where no
    request says it, it is undefined: never zero.
    """
    n = sum(len(run) for run in runs)
    grown = [None if engine is None else engine.grown("critical_evictions") for engine in engines]
    if grown and all(count is not None for count in grown):
        total = float(sum(count for count in grown if count is not None))
        return Estimate.observed(total, n, "counter of the engine's metrics page", "count", exact=True)
    counts = [run.critical_evictions[run.critical_evictions != MISSING] for run in runs]
    told = sum(map(len, counts))
    if not told:
        return Estimate.undefined(unit="count", method=NOT_REPORTED, reason=Reason.NOT_MEASURABLE)
    accepted = sum(
        int(((run.http_status == 200) & (run.critical_evictions == MISSING)).sum()) for run in runs
    )
    total = float(sum(int(each.sum()) for each in counts))
    method = f"sum over {told} requests that tell it"
    found = Estimate.observed(total, told, method, "count", exact=True)
    if not accepted:
        return found
    method += f"; {accepted} accepted ones do not"
    return replace(found, upper=None, kind=EstimateKind.BOUND, method=method)
