"""Every peculiarity of a stream, end to end: what our own generator makes of it, and what it did before."""

from __future__ import annotations

from typing import Any

import pytest
from served_load import TOKENS, chunks, load, raw_chat, serve_and_load
from three_attempts import three_attempts

from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource
from pytest_llmbench.model.request import CHUNK_TOKEN_FIELDS
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine


def deltas(raw: bytes) -> list[Any]:
    return [choice["delta"] for chunk in chunks(raw) for choice in chunk["choices"]]


def content_chunks(raw: bytes) -> int:
    return sum(1 for delta in deltas(raw) if delta.get("content"))


QUIRKS = [
    "role_chunk=at_start",
    "role_chunk=in_first_chunk",
    "role_chunk=never",
    "first_chunk=empty",
    "first_chunk=whitespace",
    "blank_every=3",
    "tokens_per_chunk=3",
    "speculative_tokens=4",
    "usage=separate",
    "usage=finish",
    "usage=every_chunk",
    "usage=empty_delta",
    "usage=never",
    "done_marker=false",
    "line_end=crlf",
    "line_end=cr",
    "comment_ms=1",
    "events_per_write=3",
    "events_per_write=100",
    "writes_per_event=4",
    "lead_reasoning_tokens=3",
    "lead_reasoning_tokens=3&reasoning_place=reasoning",
    "lead_reasoning_tokens=4&reasoning_place=inline",
    "token_times=true",
    "trace=true",
    "role_chunk=at_start&usage=every_chunk&line_end=crlf&blank_every=2&events_per_write=2&comment_ms=2",
]


@pytest.mark.parametrize(
    "quirks",
    # The last has several at once; the slow ones are read alike by the parsers' own tests.
    [pytest.param(each, marks=() if n % 4 == 0 else pytest.mark.slow) for n, each in enumerate(QUIRKS[::-1])],
)
def test_no_peculiarity_spoils_a_reply(quirks: str) -> None:
    with EmbeddedEngine.start(f"fast?{quirks}") as engine:
        seen = load(engine, 3)
        truths = engine.ground_truth()
    assert seen.outcomes == [Outcome.OK] * 3, [row.error for row in seen.rows]
    assert [row.output_tokens for row in seen.rows] == [TOKENS] * 3
    assert [truth.output_tokens for truth in truths] == [TOKENS] * 3
    for row, truth in zip(seen.rows, truths, strict=True):
        assert truth.first_visible_ns is not None
        assert row.first_content_ns is not None
        assert truth.first_visible_ns <= row.first_content_ns
        assert row.finish_reason == "length"


def only(scenario: str, **options: Any) -> RequestRecord:
    return serve_and_load(scenario, **options).only


def with_truth(scenario: str) -> tuple[RequestRecord, GroundTruth]:
    with EmbeddedEngine.start(scenario) as engine:
        return load(engine).only, engine.ground_truth()[-1]


def times_of(row: RequestRecord) -> tuple[int, int, int, int]:
    """(first byte, first event, first chunk with anything, first visible text)."""
    stamps = (row.first_byte_ns, row.first_event_ns, row.first_nonempty_ns, row.first_content_ns)
    assert all(stamp is not None for stamp in stamps)
    return stamps  # type: ignore[return-value]


# A prefill of some 30 ms and steps of 20 ms: two instants for whoever reads in time.
SLOW = "fast?step_base_us=20000&prefill_us_per_token=3000"
STEP_NS = 20_000_000


@three_attempts
def test_a_role_chunk_before_the_prefill_is_no_first_token() -> None:
    row, truth = with_truth("fast?prefill_us_per_token=300000&role_chunk=at_start&trace=true")
    _, event, nonempty, content = times_of(row)
    assert truth.write_ns[0] < truth.first_token_ns <= truth.first_visible_ns
    assert event < nonempty == content


def test_a_role_chunk_with_the_first_token_comes_no_earlier() -> None:
    _, truth = with_truth(f"{SLOW}&trace=true")
    assert truth.first_token_ns <= truth.write_ns[0]


@pytest.mark.parametrize(
    ("option", "first"),
    [
        ("never", {"content"}),
        ("in_first_chunk", {"role", "content"}),
        ("at_first_token", {"role", "content"}),
        ("at_start", {"role", "content"}),
    ],
)
def test_where_the_role_is(option: str, first: set[str]) -> None:
    with EmbeddedEngine.start(f"fast?role_chunk={option}") as engine:
        found = deltas(raw_chat(engine))
    assert set(found[0]) == first
    assert sum("role" in delta for delta in found) == (option != "never")
    assert (found[0]["content"] != "") == (option in ("never", "in_first_chunk"))


@three_attempts
def test_whitespace_first_is_nonempty_but_no_content() -> None:
    row = only(f"{SLOW}&first_chunk=whitespace")
    _, _, nonempty, content = times_of(row)
    assert content - nonempty >= STEP_NS / 2
    assert len(row.chunk_ns) == TOKENS


@three_attempts
def test_an_empty_first_chunk_is_a_token_but_no_content() -> None:
    row = only(f"{SLOW}&first_chunk=empty")
    _, _, nonempty, content = times_of(row)
    assert content - nonempty >= STEP_NS / 2
    assert (len(row.chunk_ns), row.attribution) == (TOKENS, "exact")


def test_empty_chunks_in_mid_stream_hold_text_back_and_lose_none() -> None:
    with EmbeddedEngine.start("fast?blank_every=3") as engine:
        found = [delta["content"] for delta in deltas(raw_chat(engine)) if "role" not in delta and delta]
    assert [text == "" for text in found] == [False, False, True, False, False, True, False, False]
    assert found[3].count(" ") == 2


def test_the_last_token_held_back_comes_with_the_finish_chunk() -> None:
    with EmbeddedEngine.start("fast?blank_every=8") as engine:
        found = deltas(raw_chat(engine))
        row = load(engine).only
    assert found[-2]["content"] == ""
    assert found[-1]["content"].startswith(" ")
    assert (row.outcome, row.output_tokens) == (Outcome.OK, TOKENS)


@pytest.mark.parametrize(("size", "sizes"), [(1, [1] * 8), (3, [1, 3, 3, 1]), (7, [1, 7]), (50, [1, 7])])
def test_tokens_per_chunk(size: int, sizes: list[int]) -> None:
    row = only(f"fast?tokens_per_chunk={size}&usage=every_chunk")
    assert (list(row.chunk_tokens), row.attribution) == (sizes, "exact")


def test_bursts_of_speculative_decoding() -> None:
    seen = serve_and_load("fast?speculative_tokens=3&acceptance=0.6&usage=every_chunk&seed=5", 12)
    sizes = [tokens for row in seen.rows for tokens in row.chunk_tokens]
    assert all(row.chunk_tokens[0] == 1 and sum(row.chunk_tokens) == TOKENS for row in seen.rows)
    assert set(sizes) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("option", "source", "attribution"),
    [
        ("separate", TokenSource.SERVER_USAGE, "exact"),
        ("finish", TokenSource.SERVER_USAGE, "exact"),
        ("every_chunk", TokenSource.SERVER_USAGE, "exact"),
        ("empty_delta", TokenSource.SERVER_USAGE, "exact"),
        ("never", TokenSource.REFERENCE_TOKENIZER, "apportioned"),
    ],
)
def test_where_the_token_counts_are(option: str, source: TokenSource, attribution: str) -> None:
    row = only(f"fast?usage={option}")
    assert (row.output_tokens, row.token_source) == (TOKENS, source)
    if option != "never":
        assert (row.input_tokens, row.attribution) == (3, attribution)


def test_usage_that_was_asked_for_on_every_chunk(fast: EmbeddedEngine) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    found = chunks(raw_chat(fast, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in found if "usage" in chunk]
    assert counts == [*range(1, TOKENS + 1), TOKENS, TOKENS]
    assert found[-1]["choices"] == []


@pytest.mark.parametrize(("asked", "attribution"), [("none", "apportioned"), ("usage", "exact")])
def test_chunks_of_several_tokens_whose_counts_are_asked_for(asked: str, attribution: str) -> None:
    with EmbeddedEngine.start("fast?speculative_tokens=3&acceptance=0.6&seed=5") as engine:
        seen = load(engine, 12, extra_body=CHUNK_TOKEN_FIELDS[asked])
    several = [row for row in seen.rows if len(row.chunk_tokens) < TOKENS]
    assert len(several) >= 6
    assert {row.attribution for row in several} == {attribution}
    assert {sum(row.chunk_tokens) for row in seen.rows} == {TOKENS}


def test_an_empty_delta_with_usage() -> None:
    with EmbeddedEngine.start("fast?usage=empty_delta") as engine:
        last = chunks(raw_chat(engine))[-1]
    assert last["choices"] == [{"delta": {}}]
    assert last["usage"]["completion_tokens"] == TOKENS


def test_without_an_end_marker() -> None:
    with EmbeddedEngine.start("fast?done_marker=false") as engine:
        raw = raw_chat(engine)
    assert b"[DONE]" not in raw
    assert chunks(raw)[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(("option", "end"), [("crlf", b"\r\n"), ("cr", b"\r")])
def test_line_ends(option: str, end: bytes) -> None:
    with EmbeddedEngine.start(f"fast?line_end={option}") as engine:
        raw = raw_chat(engine)
    assert raw.endswith(b"data: [DONE]" + end + end)
    assert raw.count(b"\n") == raw.count(b"\r\n")
    assert content_chunks(raw) == TOKENS


@three_attempts
def test_comments_come_before_the_first_token_and_are_no_event() -> None:
    with EmbeddedEngine.start("fast?step_base_us=60000&comment_ms=5") as engine:
        raw = raw_chat(engine)
        row = load(engine).only
    assert raw.startswith(b": keep-alive\n\n")
    assert raw.count(b": keep-alive\n\n") >= 5
    byte, event, _, _ = times_of(row)
    assert event - byte >= STEP_NS
    assert len(row.chunk_ns) == TOKENS


@three_attempts
def test_several_events_in_one_write_arrive_together() -> None:
    row = only(f"{SLOW}&events_per_write=4&role_chunk=never")
    assert row.coalesced_chunks == 6
    assert len(set(row.chunk_ns)) == 2


def test_one_event_over_several_writes() -> None:
    with EmbeddedEngine.start("fast?writes_per_event=5&trace=true") as engine:
        row = load(engine).only
        (truth,) = engine.ground_truth()
    assert len(row.chunk_ns) == TOKENS
    assert truth.write_ns is not None
    events = 1 + TOKENS + 1 + 1 + 1  # role, content, finish, usage, end marker
    assert len(truth.write_ns) in range(5 * (events - 1), 5 * events + 1)
    assert truth.write_ns == sorted(truth.write_ns)


@pytest.mark.parametrize("place", ["reasoning_content", "reasoning"])
@three_attempts
def test_reasoning_in_a_field_of_its_own(place: str) -> None:
    with EmbeddedEngine.start(f"{SLOW}&lead_reasoning_tokens=3&reasoning_place={place}") as engine:
        found = deltas(raw_chat(engine))
        row = load(engine).only
        truth = engine.ground_truth()[-1]
    assert [list(delta) for delta in found[1:5]] == [[place]] * 3 + [["content"]]
    assert (truth.reasoning_tokens, row.reasoning_tokens, row.output_tokens) == (3, 3, TOKENS)
    assert row.first_reasoning_ns is not None
    assert row.first_content_ns is not None
    assert row.first_content_ns - row.first_reasoning_ns >= 2 * STEP_NS
    assert truth.first_visible_ns is not None
    assert truth.first_write_ns is not None
    assert truth.first_visible_ns - truth.first_write_ns >= 2 * STEP_NS


@pytest.mark.parametrize(
    ("place", "tokens", "thoughts"),
    [
        ("inline", 4, ["<think>", " wave", " from", "</think>"]),
        ("inline", 1, ["<think></think>"]),
        ("inline_split", 7, ["<th", "ink", ">", " wave", "</th", "ink", ">"]),
    ],
)
def test_reasoning_inline(place: str, tokens: int, thoughts: list[str]) -> None:
    scenario = f"fast?lead_reasoning_tokens={tokens}&reasoning_place={place}"
    with EmbeddedEngine.start(scenario) as engine:
        found = [delta["content"] for delta in deltas(raw_chat(engine))[1:-1]]
    assert found[:tokens] == thoughts
    assert len(found) == TOKENS


@pytest.mark.parametrize(("place", "tokens"), [("reasoning_content", 4), ("inline", 4), ("inline_split", 7)])
@three_attempts
def test_the_end_of_thinking_is_that_of_the_ground_truth(place: str, tokens: int) -> None:
    """Wherever reasoning goes; the tags of inline reasoning are its first and last tokens."""
    scenario = f"{SLOW}&think_mean_tokens={tokens}&think_spread=0&reasoning_place={place}"
    with EmbeddedEngine.start(scenario) as engine:
        row = load(engine).only
        (truth,) = engine.ground_truth()
    assert truth.thinking_end_ns is not None
    assert truth.first_visible_ns is not None
    assert row.thinking_end_ns is not None
    assert row.first_content_ns is not None
    assert row.thinking_end_ns == row.chunk_ns[tokens - 1], "the last thought, or its closing tag complete"
    assert row.first_content_ns == row.chunk_ns[tokens]
    assert row.thinking_end_ns >= truth.thinking_end_ns
    assert row.first_content_ns >= truth.first_visible_ns > row.thinking_end_ns
    assert (row.thinking_end_reason, truth.think_reason) == ("converged", "converged")
    assert row.critical_evictions is None, "a scheduler that knows no phases tells none"


def test_token_times_are_those_of_the_ground_truth() -> None:
    with EmbeddedEngine.start("fast?token_times=true&trace=true&tokens_per_chunk=3") as engine:
        found = chunks(raw_chat(engine))
        (truth,) = engine.ground_truth()
    times = [chunk["metrics"]["token_ns"] for chunk in found if "metrics" in chunk]
    assert [len(each) for each in times] == [1, 3, 3, 1]
    assert [at for each in times for at in each] == truth.token_ns


def test_ground_truth_of_a_traced_request() -> None:
    with EmbeddedEngine.start("fast?trace=true") as engine:
        load(engine)
        (truth,) = engine.ground_truth()
    assert truth.token_ns is not None
    assert truth.queued_ns is not None
    assert truth.admitted_ns is not None
    assert len(truth.token_ns) == TOKENS
    assert truth.token_ns[0] == truth.first_token_ns
    assert truth.token_ns[-1] == truth.last_token_ns
    instants = [truth.received_ns, truth.queued_ns, truth.admitted_ns, *truth.token_ns]
    assert instants == sorted(instants)


def test_seen_is_what_was_asked(fast: EmbeddedEngine) -> None:
    seen = load(fast, 5)
    assert [len(row.chunk_ns) for row in seen.rows] == [TOKENS] * 5
