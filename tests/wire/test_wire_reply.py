"""The summary of a reply: first-token variants, token counts by source, outcomes in order of precedence."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.model.record import LENGTH_FINISH, Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.wire.chunk import Chunk, Usage, finish_reason
from pytest_llmbench.wire.reply import read_stream

NORMAL = ["stop", "length", "tool_calls", "function_call", "eos_token", "stop_sequence"]


def words(text: str) -> int:
    return len(text.split())


def stream(*said: dict[str, Any], one_read: bool = False) -> list[Chunk]:
    """Chunks a hundred nanoseconds apart, each in a read of its own."""
    numbered = enumerate({"choice": 0, **fields} for fields in said)
    return [Chunk(100 * (at + 1), 0 if one_read else at, **fields) for at, fields in numbered]


DONE = {"done": True, "choice": None}
STOP = {"finish_reason": "stop"}


def test_the_four_first_token_instants():
    summary = read_stream(
        stream(
            {}, {"reasoning": "hm"}, {"text": "\n"}, {"text": " "}, {"text": "Hi"}, {"text": "!"}, STOP, DONE
        )
    )
    assert summary.first_event_ns == 100
    assert summary.first_nonempty_ns == 200
    assert summary.first_reasoning_ns == 200
    assert summary.first_content_ns == 500
    assert summary.last_content_ns == 600
    assert summary.chunk_ns == [200, 300, 400, 500, 600]
    assert (summary.text, summary.reasoning) == ("\n Hi!", "hm")
    assert summary.outcome is Outcome.OK


def test_white_space_alone_is_no_content():
    summary = read_stream(stream({"text": " \n\u00a0"}, STOP, DONE))
    assert summary.first_nonempty_ns == 100
    assert summary.first_content_ns is None
    assert summary.outcome is Outcome.EMPTY


@pytest.mark.parametrize(
    "ahead",
    [
        "\u200b",
        "\u2060\ufeff",
        "\u00ad",
        "\u200e \u200f",
        "\u3164",
        "\u2800",
        "\ufe0f",
        "\x00",
        "\u2028",
        "\x7f",
    ],
)
def test_characters_that_show_nothing_are_no_content(ahead):
    summary = read_stream(stream({"text": ahead}, {"text": "Hi"}, STOP, DONE))
    assert (summary.first_nonempty_ns, summary.first_content_ns) == (100, 200)
    assert read_stream(stream({"text": ahead}, STOP, DONE)).outcome is Outcome.EMPTY


@pytest.mark.parametrize(
    "seen", ["a", "\u200bHi", "é", "🦀", "👩\u200d🔬", "\ufffd", "\ue000", "́", "한", "。"]
)
def test_whatever_a_reader_sees_is_content(seen):
    assert read_stream(stream({"text": seen}, STOP, DONE)).first_content_ns == 100


def test_chunks_of_one_read_are_counted_as_coalesced():
    said = [{"text": "a"}, {"text": "b"}, {"text": "c"}, STOP, DONE]
    assert read_stream(stream(*said, one_read=True)).coalesced_chunks == 2
    assert read_stream(stream(*said)).coalesced_chunks == 0


@pytest.mark.parametrize(
    ("usage", "reasoning", "unshown"),
    [
        (Usage(9, 10), "", 0),
        (Usage(9, 11), "", 1),
        (Usage(9, 40, reasoning_tokens=30), "", 0),
        (Usage(9, 40, reasoning_tokens=20), "", 10),
        (Usage(9, 40, reasoning_tokens=20), "hm", 28),
    ],
)
def test_tokens_beyond_the_bytes_of_the_text_are_not_shown(usage, reasoning, unshown):
    """Ten bytes came. What the server calls hidden reasoning is told."""
    thoughts = [{"reasoning": reasoning}] if reasoning else []
    said = [*thoughts, {"text": "one"}, {"text": " zw\u00f6lf"}, STOP, {"usage": usage, "choice": None}, DONE]
    assert read_stream(stream(*said)).unshown_tokens == unshown
    assert read_stream(stream(*said[:-2], DONE), count_text=lambda text: 99).unshown_tokens == 0


USAGE = {"usage": Usage(9, 3, 4), "choice": None}
TEXT = [{"text": "one two"}, {"text": " three"}]


@pytest.mark.parametrize(
    ("said", "count", "tokens", "source"),
    [
        ([*TEXT, STOP, USAGE, DONE], words, 3, TokenSource.SERVER_USAGE),
        ([*TEXT, USAGE, DONE], words, 3, TokenSource.SERVER_USAGE),
        ([*TEXT, STOP, {"usage": Usage(9, 3)}, DONE], words, 3, TokenSource.SERVER_USAGE),
        ([*TEXT, {**STOP, "usage": Usage(9, 3)}], words, 3, TokenSource.SERVER_USAGE),
        (
            [{"text": "a", "tokens_cumulative": 2, "usage": Usage(9, 2)}, DONE],
            words,
            2,
            TokenSource.CHUNK_USAGE,
        ),
        ([{"text": "a", "tokens": 5}, STOP, DONE], words, 5, TokenSource.CHUNK_USAGE),
        ([*TEXT, STOP, DONE], words, 3, TokenSource.REFERENCE_TOKENIZER),
        ([{"reasoning": "a b"}, *TEXT, STOP, DONE], words, 5, TokenSource.REFERENCE_TOKENIZER),
        ([*TEXT, STOP, DONE], None, 2, TokenSource.CHUNK_COUNT),
        ([STOP, DONE], words, None, TokenSource.NONE),
        ([STOP, {"usage": Usage(9, None), "choice": None}, DONE], None, None, TokenSource.NONE),
        ([STOP, {"usage": Usage(9, 0), "choice": None}, DONE], None, 0, TokenSource.SERVER_USAGE),
    ],
)
def test_where_the_token_count_comes_from(said, count, tokens, source):
    summary = read_stream(stream(*said), count_text=count)
    assert (summary.output_tokens, summary.token_source) == (tokens, source)


@pytest.mark.parametrize(
    ("limit", "finish", "tokens"),
    [
        (None, "length", 10),
        (9, "length", 9),
        (9, "stop", 9),
        (12, "length", 12),
        (12, "max_tokens", 12),
        (12, "stop", 10),
        (12, "model_context_window_exceeded", 10),
        (40, "length", 10),
    ],
)
def test_a_count_of_our_own_keeps_to_the_limit(limit, finish, tokens):
    """Ten words, six of them thoughts. A limit far above is not the one that the reply met."""
    said = [{"reasoning": "a b c d e f"}, {"text": "g h i j"}, {"finish_reason": finish}, DONE]
    summary = read_stream(stream(*said), count_text=words, limit=limit)
    assert (summary.output_tokens, sum(summary.chunk_tokens)) == (tokens, tokens)
    assert summary.reasoning_tokens == round(0.6 * tokens)
    chunks = read_stream(stream(*said), limit=1)
    assert (chunks.output_tokens, chunks.token_source) == (1, TokenSource.CHUNK_COUNT)


def test_reasoning_that_the_server_tells_is_no_part_of_what_is_counted_here():
    zeros = {"usage": Usage(0, 0, None, 2), "choice": None}
    summary = read_stream(stream(*TEXT, STOP, zeros, DONE), count_text=words)
    assert (summary.output_tokens, summary.reasoning_tokens) == (3, None)


def test_a_count_of_our_own_never_calls_chunks_exact():
    summary = read_stream(stream({"text": "one"}, {"text": " two"}, STOP, DONE), count_text=words)
    assert (summary.chunk_tokens, summary.attribution) == ([1, 1], "apportioned")


def test_a_count_says_which_tokenizer_made_it():
    said = [{"reasoning": "a b"}, {"text": "one"}, {"text": " two"}, STOP, DONE]
    summary = read_stream(stream(*said), count_text=words, counted_by=TokenSource.TOKENIZER_FILE)
    assert (summary.output_tokens, summary.token_source) == (4, TokenSource.TOKENIZER_FILE)
    assert (summary.reasoning_tokens, summary.reasoning_token_source) == (2, TokenSource.TOKENIZER_FILE)
    assert summary.attribution == "apportioned"
    told = read_stream(stream(*said, USAGE), count_text=words, counted_by=TokenSource.TOKENIZER_FILE)
    assert (told.output_tokens, told.token_source) == (3, TokenSource.SERVER_USAGE)


def test_chunks_taken_for_tokens_are_not_attributed():
    summary = read_stream(stream(*TEXT, STOP, DONE))
    assert (summary.chunk_tokens, summary.attribution, len(summary.chunk_ns)) == ([], "none", 2)


def test_input_and_cached_tokens():
    summary = read_stream(stream(*TEXT, STOP, USAGE, DONE))
    assert (summary.input_tokens, summary.cached_tokens) == (9, 4)


def test_reasoning_tokens_by_source():
    said = [{"reasoning": "a b"}, {"text": "c"}, STOP]
    told = {"usage": Usage(1, 9, None, 7), "choice": None}
    assert read_stream(stream(*said, told, DONE)).reasoning_tokens == 7
    exact = {"usage": Usage(1, 2), "choice": None}
    assert read_stream(stream(*said, exact, DONE)).reasoning_tokens == 1
    assert read_stream(stream(*said, DONE), count_text=words).reasoning_tokens == 2
    assert read_stream(stream(*said, DONE)).reasoning_tokens is None
    assert read_stream(stream({"text": "c"}, STOP, exact, DONE)).reasoning_tokens is None


def test_server_timings_keep_figures_only_and_the_last_of_each():
    first = {"text": "a", "server_timings": {"predicted_ms": 1, "prompt_ms": 5.5, "engine": "0"}}
    last = {**STOP, "server_timings": {"predicted_ms": 2, "cached": True, "x": float("nan"), "nested": {}}}
    assert read_stream(stream(first, last)).server_timings == {"predicted_ms": 2.0, "prompt_ms": 5.5}


HELLO = {"text": "Hello"}
ERROR = {"error": "boom", "choice": None}
BROKEN = {"problem": "an event that is not a JSON object: x"}


@pytest.mark.parametrize(
    ("said", "ended", "outcome", "error"),
    [
        ([HELLO, STOP, DONE], "eof", Outcome.OK, None),
        ([HELLO, STOP, DONE], "done", Outcome.OK, None),
        ([HELLO, STOP], "eof", Outcome.OK, None),
        ([{**HELLO, **STOP}], "eof", Outcome.OK, None),
        ([HELLO, STOP, DONE], "cut", Outcome.OK, None),
        ([HELLO, STOP, DONE], "timeout", Outcome.OK, None),
        ([HELLO, STOP], "cut", Outcome.DISCONNECTED, "connection was lost"),
        ([HELLO], "cut", Outcome.DISCONNECTED, "connection was lost"),
        ([], "cut", Outcome.DISCONNECTED, "connection was lost"),
        ([HELLO], "timeout", Outcome.TIMEOUT, "deadline"),
        ([HELLO], "cancelled", Outcome.CANCELLED, "stopped by the load generator"),
        ([HELLO], "eof", Outcome.TRUNCATED, "without a finish reason or an end marker"),
        ([HELLO, DONE], "eof", Outcome.TRUNCATED, "no finish reason"),
        ([HELLO, USAGE, DONE], "eof", Outcome.OK, None),  # the count says that the reply is whole
        ([HELLO, USAGE], "eof", Outcome.TRUNCATED, "without a finish reason or an end marker"),
        ([{**HELLO, **USAGE}, DONE], "eof", Outcome.TRUNCATED, "no finish reason"),  # a running count
        ([USAGE, HELLO, DONE], "eof", Outcome.TRUNCATED, "no finish reason"),
        ([{}], "eof", Outcome.TRUNCATED, "without a finish reason"),
        ([], "eof", Outcome.EMPTY, "no event at all"),
        ([DONE], "eof", Outcome.EMPTY, "no content"),
        ([STOP, DONE], "eof", Outcome.EMPTY, "no content"),
        ([{"text": " "}, STOP, DONE], "eof", Outcome.EMPTY, "no visible text (output tokens: 1)"),
        ([{"reasoning": "hm"}, STOP, DONE], "eof", Outcome.EMPTY, "reasoning but no visible content"),
        ([STOP, USAGE, DONE], "eof", Outcome.EMPTY, "no visible text (output tokens: 3)"),
        ([HELLO, {"finish_reason": "content_filter"}, DONE], "eof", Outcome.REFUSED, "content_filter"),
        ([HELLO, {"finish_reason": "abort"}, DONE], "eof", Outcome.IN_BAND_ERROR, "finish reason abort"),
        ([HELLO, ERROR, DONE], "eof", Outcome.IN_BAND_ERROR, "boom"),
        ([HELLO, STOP, ERROR, DONE], "eof", Outcome.IN_BAND_ERROR, "boom"),
        ([{**ERROR, "refused": True}, DONE], "eof", Outcome.REFUSED, "boom"),
        ([{**ERROR, "turned_away": True}, DONE], "eof", Outcome.RATE_LIMITED, "boom"),
        ([{}, {**ERROR, "turned_away": True}], "cut", Outcome.RATE_LIMITED, "boom"),
        ([HELLO, {**ERROR, "turned_away": True}, DONE], "eof", Outcome.IN_BAND_ERROR, "boom"),
        ([HELLO, ERROR], "cut", Outcome.IN_BAND_ERROR, "boom"),
        ([HELLO, BROKEN, STOP, DONE], "eof", Outcome.UNDECODABLE, "the stream holds an event"),
        ([BROKEN, ERROR], "eof", Outcome.IN_BAND_ERROR, "boom"),
    ],
)
def test_outcomes(said, ended, outcome, error):
    summary = read_stream(stream(*said), ended=ended)
    assert summary.outcome is outcome
    assert (summary.error is None) if error is None else (error in (summary.error or ""))


@pytest.mark.parametrize(
    ("told", "kept", "outcome"),
    [
        *((each, each, Outcome.OK) for each in NORMAL),
        ("MAX_TOKENS", "max_tokens", Outcome.OK),
        ("STOP", "stop", Outcome.OK),
        ("FinishReason.MAX_TOKENS", "max_tokens", Outcome.OK),
        ("FINISH_REASON_STOP", "stop", Outcome.OK),
        ("model_length", "model_length", Outcome.OK),
        ("eos", "eos", Outcome.OK),
        ("end_turn", "end_turn", Outcome.OK),
        ("ran dry", "ran dry", Outcome.OK),
        ("SAFETY", "safety", Outcome.REFUSED),
        ("RECITATION", "recitation", Outcome.REFUSED),
        ("insufficient_system_resource", "insufficient_system_resource", Outcome.IN_BAND_ERROR),
        ("MALFORMED_FUNCTION_CALL", "malformed_function_call", Outcome.IN_BAND_ERROR),
        ("engine_error", "engine_error", Outcome.IN_BAND_ERROR),
        ("cancelled", "cancelled", Outcome.IN_BAND_ERROR),
        ("null", None, Outcome.TRUNCATED),
        ("FINISH_REASON_UNSPECIFIED", None, Outcome.TRUNCATED),
    ],
)
def test_finish_reasons_in_any_words(told, kept, outcome):
    summary = read_stream(stream(HELLO, {"finish_reason": finish_reason(told)}, DONE))
    assert (summary.finish_reason, summary.outcome) == (kept, outcome)
    if kept in LENGTH_FINISH:
        assert (
            read_stream(stream(HELLO, {"finish_reason": kept}, DONE), count_text=words, limit=1).output_tokens
            == 1
        )


def test_what_was_measured_before_a_failure_is_kept():
    summary = read_stream(stream(HELLO, ERROR, DONE))
    assert (summary.first_content_ns, summary.chunk_ns, summary.finish_reason) == (100, [100], None)


def test_fills_a_record_and_leaves_the_rest_of_it():
    record = RequestRecord(4, "r-4", Phase.MEASURE, submitted_ns=50, http_status=200, requested_max_tokens=8)
    summary = read_stream(stream(*TEXT, STOP, USAGE, DONE), count_text=words)
    summary.fill(record)
    assert (record.index, record.submitted_ns, record.http_status, record.requested_max_tokens) == (
        4,
        50,
        200,
        8,
    )
    assert (record.first_event_ns, record.first_content_ns, record.last_content_ns) == (100, 100, 200)
    assert (record.chunk_ns, record.chunk_tokens) == ([100, 200], [2, 1])
    assert (record.output_tokens, record.token_source) == (3, TokenSource.SERVER_USAGE)
    assert (record.outcome, record.error, record.finish_reason) == (Outcome.OK, None, "stop")


def test_only_one_choice_is_asked_for_but_more_are_survived():
    said = [HELLO, {"text": "b", "choice": 1}, STOP, USAGE, {"finish_reason": "length", "choice": 1}, USAGE]
    assert read_stream(stream(*said)).output_tokens == 6
    assert read_stream(stream(HELLO, STOP, USAGE, USAGE)).output_tokens == 3
