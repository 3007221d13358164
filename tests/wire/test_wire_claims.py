"""What a server says of itself is taken as far as its request can give it, and costs no memory beyond."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_events import DONE, chat, sse

from pytest_llmbench.metrics import chunking, itl, latency, throughput
from pytest_llmbench.metrics.balance import tokens_in_flight
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.wire.reply import read_stream
from pytest_llmbench.wire.stream import chunks_of
from pytest_llmbench.wire.usage import is_modest, refuse_impossible

ASKED, SENT_BYTES = 64, 2_000
ABSURD = [2**63 - 1, 2**63, 10**12, 30_000_000, 10**30, 1e300, 1e18, 10**4000]


def _record(events: list[Any], chunks: int = 12) -> tuple[RequestRecord, int]:
    """Of a reply of so many words, with these events at its end."""
    words = [chat({"content": f"word {n} "}) for n in range(chunks)]
    body = sse(*words, chat({}, "stop"), *events, DONE)
    read = read_stream(list(chunks_of([(body, 5_000_000)], OpenAIChat())))
    record = RequestRecord(0, "r0", Phase.MEASURE, scheduled_ns=0, dispatched_ns=0, submitted_ns=1_000_000)
    read.fill(record)
    record.requested_input_tokens, record.requested_max_tokens = 100, ASKED
    record.finished_ns = 9_000_000
    return record, len(body)


def _bounded(events: list[Any]) -> RequestRecord:
    """As the reader of replies does it; what it does not look at closely is within the bounds indeed."""
    record, received = _record(events)
    modest, before = is_modest(record), replace(record)
    refuse_impossible(record, SENT_BYTES, received)
    assert not modest or record == before
    return record


def _usage(**counts: Any) -> dict[str, Any]:
    return {"choices": [], "usage": counts}


def test_an_honest_reply_is_left_alone():
    record = _bounded([_usage(prompt_tokens=100, completion_tokens=12)])
    assert (record.outcome, record.output_tokens, record.input_tokens) == (Outcome.OK, 12, 100)
    assert record.error is None
    hidden = _bounded(
        [_usage(prompt_tokens=90, completion_tokens=4 * ASKED)]
    )  # reasoning that is not streamed
    assert (hidden.outcome, hidden.output_tokens) == (Outcome.OK, 4 * ASKED)


@pytest.mark.parametrize("value", ABSURD, ids=str)
def test_output_tokens_that_no_reply_holds(value):
    record = _bounded([_usage(prompt_tokens=100, completion_tokens=value)])
    assert record.outcome is Outcome.UNDECODABLE
    assert (record.output_tokens, record.token_source) == (None, TokenSource.NONE)
    assert list(record.chunk_tokens) == []
    assert record.error is not None
    assert record.error.endswith("output tokens where 12 chunks came")
    assert len(record.error) < 100


@pytest.mark.parametrize("field", ["prompt_tokens", "cached", "reasoning"])
@pytest.mark.parametrize("value", [2**63 - 1, 10**30, 10**12], ids=str)
def test_counts_of_other_kinds(field, value):
    """A part that is larger than its whole is dropped before it can be anything worse."""
    counts: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 12}
    if field == "cached":
        counts["prompt_tokens_details"] = {"cached_tokens": value}
    elif field == "reasoning":
        counts["completion_tokens_details"] = {"reasoning_tokens": value}
    else:
        counts[field] = value
    record = _bounded([_usage(**counts)])
    whole = field == "prompt_tokens"
    assert record.outcome is (Outcome.UNDECODABLE if whole else Outcome.OK)
    assert (record.contradiction is None) == whole
    kept = (record.input_tokens, record.cached_tokens, record.reasoning_tokens)
    assert all(count is None or count <= 100 for count in kept)


def test_times_longer_than_the_request():
    record = _bounded([{"choices": [], "timings": {"queue_ms": 1e12, "prompt_ms": 3.0, "preemptions": 1e9}}])
    assert record.outcome is Outcome.UNDECODABLE
    assert record.error is not None
    assert "a queue wait of 1000000000 s in a request of 0.009 s" in record.error
    assert (record.queue_wait_ns, record.prefill_ns, record.preemptions) == (None, 3_000_000, None)


@pytest.mark.parametrize(("drafted", "accepted"), [(3, 4), (10**9, 5)])
def test_drafts_that_cannot_be(drafted, accepted):
    record = _bounded([{"choices": [], "timings": {"draft_n": drafted, "draft_n_accepted": accepted}}])
    assert record.outcome is Outcome.UNDECODABLE
    assert f"{accepted} accepted of" in (record.error or "")
    assert (record.draft_tokens, record.accepted_draft_tokens) == (None, None)


def test_a_loading_of_the_model_longer_than_the_request():
    record = _bounded([{"choices": [], "timings": {"load_duration": 10**18}}])
    assert record.outcome is Outcome.UNDECODABLE
    assert "a loading of the model of 1000000000 s in a request of 0.009 s" in (record.error or "")
    assert record.model_load_ns is None


def test_what_failed_anyway_keeps_its_outcome():
    record, received = _record([_usage(completion_tokens=10**30)])
    record.outcome, record.error = Outcome.TIMEOUT, "a deadline ran out"
    refuse_impossible(record, SENT_BYTES, received)
    assert record.outcome is Outcome.TIMEOUT
    assert record.error == "a deadline ran out; the server claims 1.00e30 output tokens where 12 chunks came"


@pytest.mark.parametrize("reason", ["\ud800", "\x1b[2Jgone", "x" * 1_000_000, {"a": ["\u0000"]}, 7, "a\nb"])
def test_a_finish_reason_is_a_short_printable_line(reason):
    line = json.dumps(chat({}, "stop")).replace('"stop"', json.dumps(reason))
    read = read_stream(list(chunks_of([(sse(chat({"content": "a"}), line, DONE), 1)], OpenAIChat())))
    assert read.finish_reason
    assert read.finish_reason.isprintable()
    assert len(read.finish_reason) <= 80
    assert read.outcome is Outcome.OK  # any word that tells of no failure is an end
    read.finish_reason.encode()


def test_names_of_figures_are_short_and_few():
    timings = {f"\ud800{n}{'n' * 500}": n for n in range(10_000)}
    line = json.dumps(chat({"content": "a"}, "stop", timings=timings))
    read = read_stream(list(chunks_of([(sse(line), 1)], OpenAIChat())))
    assert 0 < len(read.server_timings) <= 64
    assert all(name.isprintable() and len(name) <= 80 for name in read.server_timings)


OPTIONS: tuple[itl.Option, ...] = ("direct", "A", "B", "C")


def _longest_gap(records: Records, option: itl.Option) -> float | None:
    samples = itl.itl_samples(records, option, min_output_tokens=1)
    return itl.itl_distribution(samples)["itl.p99"].point


NUMBERS = st.one_of(
    st.integers(-(10**40), 10**40),
    st.integers(0, 300),
    st.floats(),
    st.just(True),
    st.none(),
    st.text(max_size=5),
)
COUNTS = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": NUMBERS,
        "completion_tokens": NUMBERS,
        "reasoning_tokens": NUMBERS,
        "prompt_tokens_details": st.fixed_dictionaries({"cached_tokens": NUMBERS}),
    },
)
TIMINGS = st.fixed_dictionaries(
    {},
    optional=dict.fromkeys(("queue_ms", "prompt_ms", "preemptions", "preempted_tokens", "cache_n"), NUMBERS)
    | {"predicted_n": NUMBERS, "token_times_ns": st.lists(NUMBERS, max_size=3)},
)


@given(st.lists(st.tuples(COUNTS, TIMINGS), min_size=1, max_size=4), st.booleans())
def test_no_number_of_a_server_breaks_what_is_made_of_it(replies, per_chunk):
    """Through decoding, columns and every figure; nothing overflows, and nothing is larger than it can be."""
    rows = []
    for counts, timings in replies:
        said = {"usage": counts, "timings": timings}
        events = [chat({"content": " more"}, **said)] if per_chunk else [{"choices": [], **said}]
        rows.append(_bounded(events))
    records = Records.from_rows(rows)
    most = max(4 * ASKED, 10_000)
    assert int(records.output_tokens.max()) <= most
    assert int(records.chunk_tokens.max(initial=0)) <= most
    assert int(records.input_tokens.max()) <= SENT_BYTES + 100_000
    window = Window(records, 0, 10_000_000)
    for figure in (
        throughput.output_token_throughput([window], seed=1).point,
        throughput.input_token_throughput([window], seed=1).point,
        tokens_in_flight(window).point,
        chunking.reasoning_share(records),
        *(_longest_gap(records, option) for option in OPTIONS),
    ):
        assert figure is None or math.isfinite(figure)
    sizes = chunking.tokens_per_chunk(records)
    assert sizes is None or sizes.max <= most
    for family in latency.FAMILIES.values():
        assert np.isfinite(family(records)).all()
    assert (records.queue_wait_ns <= 2_000_000_000).all()
    assert int(records.preemptions.max()) <= 1_000_000
