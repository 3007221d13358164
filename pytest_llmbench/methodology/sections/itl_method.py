"""The method by which the tokens of a stream are timed, fixed before the levels run (sections 4.6.3 and
B.2.1, AMB-13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

from pytest_llmbench.methodology.measuring.levels import Seen, level_of
from pytest_llmbench.methodology.procedure import Procedure, Setting
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.methodology.search.search import SaturationRate
from pytest_llmbench.metrics import chunking
from pytest_llmbench.metrics.itl import (
    ASKED,
    MOST_MISFITS,
    TBC,
    ItlCounts,
    Option,
    choose_option,
    itl_samples,
    server_clock_holds,
    server_clock_misfit,
)
from pytest_llmbench.model.draft import FEWEST_TOKENS, MOST_EXCLUDED
from pytest_llmbench.model.facts import Facts, Origin, StreamingFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount, percentage
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import CHARACTERISATION
from pytest_llmbench.model.sentences import Note

CHARACTERISED_REQUESTS, CHARACTERISED_CONCURRENCY = 20, 2
"""Requests and concurrency of the characterisation run, for when no search has shown the stream yet."""
MOST_COALESCED = 0.1
FEWEST_ELIGIBLE = 0.2
"""Least assumed share of replies that reach 50 tokens: no more than five times the requests are sent for
their sake."""

HANDLING = {
    "direct": "the gap between chunks, which hold one token; what else a chunk holds arrives with it (gap 0)",
    "A": "the gap between chunks, whatever they hold: Time Between Chunks, not ITL",
    "B": "all tokens of a chunk arrive with it: its gap, then gaps of 0; ITL variance comes out too small",
    "C": "the server's own instant of every token, free of network effects",
}


@dataclass(frozen=True, slots=True)
class Method:
    """The chosen option, and the properties of the streams by which it was chosen."""

    option: Option
    reason: str
    """Why, in words."""
    source: str = ASKED
    """The level whose streams chose it; :data:`ASKED`: the author did."""
    eligible_share: float = 1.0
    """The share of the replies that reach 50 tokens."""
    gaps_per_request: float = FEWEST_TOKENS - 1
    """Mean number of gaps per request; where none was seen, that of the shortest eligible reply: levels must
    not grow for nothing."""


def fixed_method(
    asked: str | None, setting: Setting, capacity: SaturationRate
) -> Procedure[tuple[Method, tuple[Seen, ...]]]:
    """Fix the method; returns it, and the runs of the level that was needed to find it, if one was."""
    # Shared runs may have been kept without their streams.
    with_streams = (each for each in capacity.levels if len(each.records.chunk_ns) and each.records.ok.any())
    shown = next(with_streams, None)
    if shown is not None:
        return _method(asked, shown), ()
    sequence = capacity.sequence.next_part(setting, "characterisation")
    plan = partial(
        sequence.closed_loop,
        setting,
        "characterisation",
        CHARACTERISED_CONCURRENCY,
        duration_s=None,
        at_least=CHARACTERISED_REQUESTS,
    )
    attempts = yield from attempted(
        plan,
        lambda run: level_of(sequence.sent(run), seed=setting.seed, role=CHARACTERISATION),
        setting.remeasure,
        needed=True,
    )
    return _method(asked, attempts.level), attempts.runs


def _method(asked: str | None, seen: Seen) -> Method:
    chosen: Option
    if asked is None:
        chosen = choose_option(seen.records)
        share = chunking.single_token_share(seen.records)
        shown = "unknown" if share is None else percentage(share)
        reason = f"chosen by AMB-13 from {seen.level.label!r}: single-token chunks {shown}"
    else:
        chosen = next(option for option in get_args(Option) if option == asked)
        reason = "asked for by the marker"
    samples = itl_samples(seen.records, chosen).counts
    every = samples.eligible + samples.excluded
    return Method(
        chosen,
        reason,
        source=ASKED if asked is not None else seen.level.label,
        eligible_share=max(samples.eligible / every, FEWEST_ELIGIBLE) if every else 1.0,
        gaps_per_request=samples.gaps / samples.eligible if samples.gaps else FEWEST_TOKENS - 1,
    )


def method_facts(method: Method, runs: Sequence[Seen]) -> Facts:
    """The facts ``streaming.*``: option, what chose it, reason, the chunk-size distribution, and whether the
    server gives instants."""
    sizes = chunking.tokens_per_chunk([run.records for run in runs])
    values: dict[str, Any] = {
        StreamingFact.ITL_OPTION: method.option,
        StreamingFact.ITL_OPTION_FROM: method.source,
        StreamingFact.ITL_OPTION_REASON: method.reason,
        StreamingFact.CHUNK_HANDLING: f"ITL: {HANDLING[method.option]}. TTFT and TPOT use the first and the "
        "last content chunk and the server's token total, so several tokens in a chunk do not enter them",
        StreamingFact.SERVER_TIMESTAMPS_AVAILABLE: any(server_instants(run.records) for run in runs),
        StreamingFact.CHUNK_SIZES: None
        if sizes is None
        else {
            "chunks": sizes.chunks, "mean": sizes.mean, "p50": sizes.p50, "p99": sizes.p99, "max": sizes.max
        },
    }  # fmt: skip
    return Facts.of(Origin.MEASURED, values)


def server_instants(records: Records) -> bool:
    return len(records.server_token_ns) > 0 and server_clock_holds(records)


def method_notes(method: Method, runs: Sequence[Seen]) -> tuple[Note, ...]:
    handling = HANDLING[method.option]
    notes = [Note.of("itl_method", option=method.option, reason=method.reason, handling=handling)]
    if method.option == "A":
        notes.append(Note.of("figures_between_chunks", figure=TBC))
    if method.option == "direct":
        shares = [chunking.single_token_share(run.records) for run in runs]
        several = [1 - share for share in shares if share is not None and share < 1]
        if several:
            notes.append(Note.of("several_tokens", share=Amount(max(several), "ratio")))
    if method.source != ASKED:
        notes += [
            Note.of("other_method", level=run.level.label, option=other)
            for run in runs
            if run.records.ok.any() and (other := choose_option(run.records)) != method.option
        ]
    return tuple(notes)


def findings(method: Method, levels: Sequence[tuple[str, Records, ItlCounts]]) -> tuple[Finding, ...]:
    """The validity findings of the test, each for the level where it looks worst."""
    if not levels:
        return ()
    empty = [label for label, _, samples in levels if samples.eligible and not samples.gaps]
    causes = {"C": "itl_samples.no_instants", "B": "itl_samples.no_counts"}
    case = causes.get(method.option, "itl_samples.one_chunk") if empty else "itl_samples"
    excluded = [(samples.excluded_share, label) for label, _, samples in levels]
    fewest = [int(records.requested_max_tokens.min()) for _, records, _ in levels if len(records)]
    with_c = method.option == "C"  # which times no chunks
    coalesced = [] if with_c else [(chunking.coalesced_share(each), label) for label, each, _ in levels]
    found = [
        Finding.of(case, not empty, levels=tuple(empty), option=method.option),
        _worst("itl_short_replies", excluded, MOST_EXCLUDED),
        Finding.of("itl_requested_tokens", min(fewest) >= FEWEST_TOKENS, min(fewest), FEWEST_TOKENS)
        if fewest and min(fewest) >= 0
        else None,
        _server_clock(method, levels),
        _worst("coalesced_chunks", coalesced, MOST_COALESCED) if not with_c else None,
    ]
    return tuple(finding for finding in found if finding is not None)


def _server_clock(method: Method, levels: Sequence[tuple[str, Records, ItlCounts]]) -> Finding | None:
    shares = [(share, label) for label, records, _ in levels if (share := server_clock_misfit(records))]
    worst, label = max(shares, default=(0.0, ""))
    if worst <= MOST_MISFITS:
        return None
    taken, most = method.option == "C", MOST_MISFITS
    option = None if taken else method.option
    return Finding.of("server_clock", value=worst, limit=most, voids=taken, level=label, option=option)


def _worst(case: str, shares: Sequence[tuple[float | None, str]], most: float) -> Finding | None:
    known = [(share, label) for share, label in shares if share is not None]
    if not known:
        return None
    worst, label = max(known)
    return Finding.of(case, worst <= most, worst, most, level=label)
