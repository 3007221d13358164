"""Metrics that only the serving engine can report: parts of TTFT, and how full its batch was.

What the server does not say is undefined, with ``not measurable`` and the reason as the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.metrics.latency import by_blocks
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.facts import EndpointFact, Facts, TokenizerFact
from pytest_llmbench.model.numbers import number, percentage
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.record import LENGTH_FINISH, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.latencies import streamed_tokens
from pytest_llmbench.stats.runs import FloatArray

NOT_MEASURABLE = "not measurable"


@by_blocks
def queue_wait_ms(records: Records) -> FloatArray:
    """Time from acceptance to first scheduling in ms, as the server reports it (section 5.1.4.2)."""
    return _reported(records, records.queue_wait_ns)


def startup_time(facts: Facts) -> dict[str, Estimate]:
    """``startup_time``: how long a launched server took from its start until it was healthy, in s; empty for
    one that was there.

    It was asked every 0.1 s, so it may have been healthy by so much earlier.
    """
    took_s = facts.value(EndpointFact.STARTUP_S)
    if took_s is None:
        return {}
    found = Estimate.observed(took_s, 1, "observed", "s", exact=True)
    return {"startup_time": replace(found, too_high_by=min(took_s, 0.1))}


COLD_START_NS = 250_000_000
"""A request that waited longer than this for the model, in nanoseconds, is a cold start. Servers report some
milliseconds where the model is loaded already."""


def cold_starts(records: Records) -> BoolColumn:
    """Mask of the requests that waited for the server to load the model, as far as it reports that."""
    return np.asarray(records.model_load_ns > COLD_START_NS)


@by_blocks
def prefill_ms(records: Records) -> FloatArray:
    """Time from first scheduling to the first token in ms, as the server reports it (section 5.1.4.2)."""
    return _reported(records, records.prefill_ns)


@by_blocks
def outside_ms(records: Records) -> FloatArray:
    """Time from submission to the first output of any kind, without what the server reports of it (queue
    wait, prefill, loading of the model), in ms: network, HTTP, tokenisation, gateways. For requests with
    queue wait and prefill. Negative values become zero, see :func:`contradicted_by_ns`."""
    there = (records.queue_wait_ns != MISSING) & (records.prefill_ns != MISSING)
    beyond_ns = _reported_beyond_ns(records)[there & _came(records)]
    return np.asarray((-beyond_ns).clip(0) / 1e6, dtype=np.float64)


def contradicted_by_ns(records: Records) -> IntColumn:
    """Nanoseconds by which the parts that the server reports exceed the time to first output as measured
    here. One value for each successful request with output and a reported part; never above zero where both
    sides are right."""
    told = np.logical_or.reduce([column != MISSING for column in _reported_parts(records)])
    return np.asarray(_reported_beyond_ns(records)[told & _came(records)], dtype=np.int64)


def _reported_parts(records: Records) -> tuple[IntColumn, ...]:
    return records.queue_wait_ns, records.prefill_ns, records.model_load_ns


def _reported_beyond_ns(records: Records) -> IntColumn:
    """The sum of the reported parts less the time from submission to first output, in nanoseconds;
    meaningless where that time is not known."""
    parts_ns = np.sum([column.clip(0) for column in _reported_parts(records)], axis=0)
    return np.asarray(parts_ns - (records.first_nonempty_ns - records.submitted_ns), dtype=np.int64)


def _came(records: Records) -> BoolColumn:
    return np.asarray(records.ok & (records.first_nonempty_ns != MISSING) & (records.submitted_ns != MISSING))


BY_SERVER = [TOKEN_SOURCES.index(each) for each in (TokenSource.SERVER_USAGE, TokenSource.CHUNK_USAGE)]
"""Codes of the token count sources that are the server's own."""
MOST_UNSHOWN_SHARE = 0.05
"""The largest plausible share of output tokens without a byte of text: ends of sequence, tags of reasoning
and of calls are fewer."""
LEAST_READ_SHARE = 0.5
"""The smallest plausible ratio of the server's input token count to ours: no vocabulary of large models makes
half as many tokens of a text as another one."""


def by_server(records: Records) -> BoolColumn:
    """Mask of the successful requests whose output tokens the server counted."""
    return np.asarray(records.ok & np.isin(records.token_source, BY_SERVER) & (records.output_tokens > 0))


def unshown_share(records: Records) -> float:
    """Output tokens in excess of the bytes of text received / output tokens counted by the server. At least
    this share was received by nobody. 0 where the server counts none."""
    counted = by_server(records)
    total = int(records.output_tokens[counted].sum())
    return int(records.unshown_tokens[counted].clip(0).sum()) / total if total else 0.0


MOST_BEYOND_LIMIT = 0.01
"""The largest share of replies with more output tokens than were asked for with which counts are taken."""
_END_TOKENS = 1
"""Some servers count the end of a sequence beside what they were asked for."""


def beyond_limit_share(records: Records) -> float:
    """Replies with more output tokens, hidden reasoning apart, than their ``max_tokens`` / replies that the
    server counts. 0 where there are none."""
    known = by_server(records) & (records.requested_max_tokens > 0)
    beyond = known & (streamed_tokens(records) > records.requested_max_tokens + _END_TOKENS)
    return int(beyond.sum()) / max(int(known.sum()), 1)


MOST_TOKENS_OF_A_FILE = 2.0
"""The largest such factor with which counts by a file are taken. Vocabularies of language models are below
1.7, of characters 2.3 and more, of bytes 3.4 and more."""
_BY_FILE = TOKEN_SOURCES.index(TokenSource.TOKENIZER_FILE)


class Miscount(NamedTuple):
    """A run whose counts of output tokens cannot be."""

    run: Observation
    amount: float
    kind: Literal["beyond_limit_share", "unshown_share", "tokens_per_reference"]

    @property
    def why(self) -> str:
        """What cannot be, in words."""
        if self.kind == "beyond_limit_share":
            return f"{percentage(self.amount)} of the replies count more output tokens than max_tokens"
        if self.kind == "unshown_share":
            return f"{percentage(self.amount)} at least of the output tokens that are counted have no text"
        return (
            f"the tokenizer's file, which counted, makes {number(self.amount)} times the tokens of "
            "cl100k_base, as no vocabulary of a language model does"
        )


def miscount(seen: Iterable[Observation], facts: Facts) -> Miscount | None:
    """The first run with more output tokens than were asked for, than text came, or than any vocabulary makes
    of a text; None where all counts can be. Behind an end that is ignored, as was asked for, tokens have no
    text. ``facts``: of the tokenizer."""
    per_reference = facts.value(TokenizerFact.TOKENS_PER_REFERENCE, 0.0)
    known = TokenizerFact.TOKENS_PER_REFERENCE.admits(per_reference)
    for run in seen:
        beyond, unshown = beyond_limit_share(run.records), unshown_share(run.records)
        if beyond > MOST_BEYOND_LIMIT:
            return Miscount(run, beyond, "beyond_limit_share")
        if unshown > MOST_UNSHOWN_SHARE and not run.plan.ignore_eos:
            return Miscount(run, unshown, "unshown_share")
        if known and per_reference > MOST_TOKENS_OF_A_FILE and (run.records.token_source == _BY_FILE).any():
            return Miscount(run, per_reference, "tokens_per_reference")
    return None


def read_share(records: Records) -> float | None:
    """Input tokens counted by the server / those requested, over prompts with nothing in common: some servers
    do not count what they have in a cache. None where the server counts none."""
    alone = (records.session == MISSING) & (records.shared_prefix_tokens <= 0)
    known = by_server(records) & alone & (records.input_tokens > 0) & (records.requested_input_tokens > 0)
    if not known.any():
        return None
    return float(records.input_tokens[known].sum() / records.requested_input_tokens[known].sum())


MOST_CUT_SHORT = 0.01
"""The largest share of a run's replies that may end at a limit below the requested one."""
_LIMIT_TOLERANCE, _FEWEST_TOKENS_SHORT = 0.02, 2


def cut_short(records: Records) -> BoolColumn:
    """Mask of the replies that ended by length with fewer tokens than requested, by the server's own count:
    at a limit of its own."""
    asked, got = records.requested_max_tokens, records.output_tokens
    short = got < asked - np.maximum(_FEWEST_TOKENS_SHORT, _LIMIT_TOLERANCE * asked)
    found: BoolColumn = by_server(records) & (asked != MISSING) & short
    reasons = records.finish_reason
    found[found] = [reasons[int(at)] in LENGTH_FINISH for at in np.flatnonzero(found)]
    return found


PARTS_OF_TTFT: Mapping[str, Callable[[Records], FloatArray]] = MappingProxyType(
    {"ttft_queue_wait": queue_wait_ms, "ttft_prefill": prefill_ms, "ttft_outside": outside_ms}
)


_ON_THE_PAGE = MappingProxyType({"ttft_queue_wait": "queue_wait", "ttft_prefill": "prefill"})
FROM_PAGE = "mean over the requests on the engine's metrics page"
"""Method text of a mean that only the counters of that page give: Σ seconds / Σ requests, without
percentiles."""


def mean_parts_of_ttft(seen: Sequence[EngineReadings | None]) -> dict[str, Estimate]:
    """``ttft_queue_wait.mean`` and ``ttft_prefill.mean`` of the runs together, in ms, if the engine's page
    counts them. The page counts every request of the engine during a run, whoever sent it."""
    found = {}
    for family, name in _ON_THE_PAGE.items():
        grown = [
            (readings.grown(f"{name}_s"), readings.grown(f"{name}_count"))
            for readings in seen
            if readings is not None
        ]
        known = [(seconds, count) for seconds, count in grown if seconds is not None and count is not None]
        requests = sum(count for _, count in known)
        if requests > 0 and len(known) == len(seen):
            mean_ms = 1e3 * sum(seconds for seconds, _ in known) / requests
            found[f"{family}.mean"] = Estimate.observed(mean_ms, round(requests), FROM_PAGE, "ms")
    return found


def batch_utilisation(seen: Sequence[tuple[EngineReadings | None, Window]]) -> Estimate:
    """Mean batch size / largest batch the engine forms, over samples inside the windows (section 5.2.4.2)."""
    largest = {readings.max_num_seqs for readings, _ in seen if readings is not None} - {None}
    samples = [running for readings, window in seen if (running := _running(readings, window)) is not None]
    if len(samples) < len(seen) or not samples:
        return _unknown("the engine does not serve the size of its batch")
    if len(largest) != 1:
        return _unknown("the engine does not say how large its batch may be")
    most = float(next(iter(largest)) or 0)
    if most <= 0:
        return _unknown("the engine does not say how large its batch may be")
    shares = [running / most for running in samples]
    return distribution("batch", shares, unit="ratio")["batch.mean"]


def _running(readings: EngineReadings | None, window: Window) -> FloatArray | None:
    read = None if readings is None else readings.gauge("running", window.start_ns, window.end_ns)
    return None if read is None or not len(read[1]) else read[1]


def _unknown(why: str) -> Estimate:
    return Estimate.undefined(unit="ratio", method=why, reason=Reason.NOT_MEASURABLE)


def _reported(records: Records, column: IntColumn) -> FloatArray:
    return np.asarray(column[records.ok & (column != MISSING)] / 1e6, dtype=np.float64)


class CachedInput(NamedTuple):
    """Input tokens of some loads, and those of them that came from a prefix cache."""

    cached: float
    asked: float
    by_replies: bool
    """Whether the replies tell it. Else it is from the counters of the metrics page, which count whatever the
    engine did during the loads."""

    @property
    def share(self) -> float:
        """The cached share of the input; 0 where there was none."""
        return self.cached / self.asked if self.asked else 0.0


def cached_input(seen: Sequence[Observation], *, of_turns: bool = True) -> CachedInput | None:
    """What came from a prefix cache, by the replies that ended ``ok``, else by the metrics page; None where
    neither tells.

    A reply without a count of cached tokens had none, if another has one. Where all say 0 and the page counts
    hits, the page is believed: gateways write a 0 that no engine told them. ``of_turns``: turns of sessions
    count too, which are to find their history in the cache.
    """
    loads = [run for run in seen if of_turns or not run.plan.load.of_sessions]
    replies, page = _cached_by_replies(loads, of_turns=of_turns), _cached_by_page(loads)
    if replies is None or (not replies.cached and page is not None and page.cached):
        return page
    return replies


def _cached_by_replies(loads: Sequence[Observation], *, of_turns: bool) -> CachedInput | None:
    if not any(tells_cached(run.records) for run in loads):
        return None
    cached = asked = 0.0
    for records in (run.records for run in loads):
        known = records.ok & (records.input_tokens > 0)
        known &= of_turns | (records.session == MISSING)
        cached += float(np.maximum(records.cached_tokens[known], 0).sum())
        asked += float(records.input_tokens[known].sum())
    return CachedInput(cached, asked, by_replies=True) if asked else None


def _cached_by_page(loads: Sequence[Observation]) -> CachedInput | None:
    cached = asked = 0.0
    for engine in (run.engine for run in loads):
        hits = None if engine is None else engine.grown("prefix_hits_tokens")
        queries = None if engine is None else engine.grown("prefix_queries_tokens")
        if hits is None or queries is None:
            return None
        cached, asked = cached + hits, asked + queries
    return CachedInput(cached, asked, by_replies=False) if loads else None


def tells_cached(records: Records) -> bool:
    """Whether some reply has a count of cached tokens."""
    return bool(np.any(records.cached_tokens[records.ok] != MISSING))
