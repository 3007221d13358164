"""The state in which the server met a load: what its prefix cache held, whether its model was loaded, how
long a context it has, how soon it took the requests, and whether it served others."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from pytest_llmbench.metrics.server_side import cached_input, cold_starts
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, Records

CACHED_WARNING_SHARE = 0.05
LONG_WAIT_NS, LONG_WAIT_OF_TTFT, LONG_WAITS_SHARE = 10_000_000, 0.1, 0.01
"""The time until a request has left that is no long one, in nanoseconds and as a share of its own TTFT; and
the largest share of the requests that may take longer without a warning: beyond it P99 is another one."""
MOST_OF_OTHERS = 0.05
"""The share of the requests that the server finished during the loads that may be others' without a warning:
the end of what was sent before falls into a load, too."""

_REFUSED = re.compile(
    # llama.cpp; OpenAI and gateways that have its code; Anthropic; TensorRT-LLM; TGI
    r"exceed_context_size|context_length_exceeded|prompt is too long|exceeds max(?:imum)? input length"
    r"|inputs.{0,40}must be <= \d+"
    # vLLM, the embedded engine; SGLang; others that say it in words
    r"|maximum context length|longer than the model's context"
    r"|exceeds? the.{0,30}context (?:size|length|window)",
    re.IGNORECASE,
)
"""Pattern of the error texts of engines for it, as of 2026."""
REMEDY = "use a workload with shorter prompts, or start the server with a longer context"


def is_beyond_context(error: str | None) -> bool:
    """Whether the error text of a request says that it was longer than the context."""
    return bool(error and _REFUSED.search(error))


def beyond_context(records: Records) -> Finding | None:
    """The finding on requests refused for their length; None where none was."""
    refused = records.has_outcome(Outcome.HTTP_ERROR) | records.has_outcome(Outcome.IN_BAND_ERROR)
    if not refused.any():
        return None
    found = sum(is_beyond_context(error) for error, bad in zip(records.error, refused, strict=True) if bad)
    if not found:
        return None
    return Finding.of("beyond_context", value=found, limit=0, requests=len(records))


def prefix_cache_hits(seen: Sequence[Observation]) -> Finding | None:
    """The finding on input tokens that came from the prefix cache; None where nothing tells. Not of turns:
    they are to find their history there."""
    found = cached_input(seen, of_turns=False)
    if found is None or not found.asked:
        return None
    ok = found.share <= CACHED_WARNING_SHARE
    return Finding.of(
        "prefix_cache_hits", ok, found.share, CACHED_WARNING_SHARE, by_page=not found.by_replies
    )


def others_served(seen: Sequence[Observation]) -> Finding | None:
    """The finding on requests of others that the server finished during the loads, by the counter of its
    metrics page; None where it does not count, or they were few. Not of replies without output: engines count
    each text of a request."""
    finished = sent = 0.0
    for run in seen:
        counted = None if run.engine is None else run.engine.grown("requests_finished")
        if counted is not None and (run.records.output_tokens != MISSING).any():
            finished, sent = finished + counted, sent + len(run.records)
    others = finished - sent
    if others <= MOST_OF_OTHERS * finished:
        return None
    share = others / finished
    return Finding.of(
        "others_served", value=share, limit=MOST_OF_OTHERS, finished=int(finished), sent=int(sent)
    )


def model_loaded(records: Records) -> Finding | None:
    """How many requests waited for the model to be loaded; None where the server does not tell."""
    told = records.model_load_ns != MISSING
    if not told.any():
        return None
    cold = int(cold_starts(records).sum())
    longest_ms = int(records.model_load_ns.max()) / 1e6
    told_of, most = int(told.sum()), Amount(longest_ms, "ms")
    return Finding.of("model_loaded", cold == 0, cold, 0, requests=told_of, longest=most)


def taken_late(records: Records) -> Finding | None:
    """The finding on requests that waited long until their last byte had left: TTFT and E2E, which begin
    there (B.1), lack it. A server that is busy lets new connections and TLS wait first. None where they were
    few."""
    sent = (records.dispatched_ns != MISSING) & (records.submitted_ns != MISSING)
    waits_ns = np.where(sent, records.submitted_ns - records.dispatched_ns, 0)
    known = sent & (records.first_content_ns != MISSING)
    ttft_ns = np.where(known, records.first_content_ns - records.submitted_ns, 0)
    long = waits_ns > np.maximum(LONG_WAIT_NS, LONG_WAIT_OF_TTFT * ttft_ns)
    count = int(long.sum())
    share = count / len(records) if len(records) else 0.0
    if share <= LONG_WAITS_SHARE:
        return None
    return Finding.of(
        "taken_late",
        value=share,
        limit=LONG_WAITS_SHARE,
        count=count,
        requests=len(records),
        median=Amount(float(np.median(waits_ns[long])) / 1e6, "ms"),
        most=Amount(float(waits_ns.max()) / 1e6, "ms"),
    )
