"""Tokens to events to writes, without a server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.simulator.engine.faults import StreamOptions
from pytest_llmbench.simulator.engine.request import GenerationRequest
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.serving.asgi import Message
from pytest_llmbench.simulator.serving.event_stream import ReplyText, TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.openai_face import StreamedReply
from pytest_llmbench.simulator.serving.replies import ChunkedReply
from pytest_llmbench.simulator.serving.request_body import Endpoint

EACH_OPTION = st.builds(
    StreamOptions,
    role_chunk=st.sampled_from(["at_start", "at_first_token", "in_first_chunk", "never"]),
    first_chunk=st.sampled_from(["text", "empty"]),
    blank_every=st.integers(0, 4),
    tokens_per_chunk=st.integers(1, 5),
    usage=st.sampled_from(["asked", "separate", "finish", "every_chunk", "empty_delta", "never"]),
    done_marker=st.booleans(),
    line_end=st.sampled_from(["lf", "crlf", "cr"]),
    events_per_write=st.integers(1, 4),
    reasoning_place=st.sampled_from(["reasoning_content", "reasoning", "inline", "inline_split"]),
    token_times=st.booleans(),
)


def replied(
    options: StreamOptions, tokens: int, thoughts: int = 0, *, plain: bool = False
) -> tuple[bytes, GroundTruth]:
    """The body of a streamed reply, and its truth. The clock counts what has been sent, the headers first."""
    texts = TokenTexts(3, options.reasoning_place, options.first_chunk)
    texts.reason_first(thoughts)
    truth = GroundTruth("id", 0, prompt_tokens=5)
    writes: list[bytes] = []

    async def send(message: Message) -> None:
        writes.append(message.get("body", b"") or b"".join(value for _, value in message["headers"]))

    async def run() -> None:
        stream = StreamedReply(
            send,
            ReplyText(Endpoint.CHAT, "id", 1, "m", 3),
            options,
            GenerationRequest(max_tokens=tokens),
            texts,
            truth,
            options.chunk_tokens(EngineSequence("", 5, tokens)),
            lambda: len(writes),
            [],
            plain=plain,
        )
        await stream.begin()
        for _ in range(tokens):
            truth.note_token(1)
            await stream.token()
        await stream.finish("stop")

    asyncio.run(run())
    assert all(writes)
    assert (truth.output_tokens, truth.reasoning_tokens) == (tokens, thoughts)
    return b"".join(writes[1:]), truth


def reply(options: StreamOptions, tokens: int, thoughts: int = 0, *, plain: bool = False) -> bytes:
    return replied(options, tokens, thoughts, plain=plain)[0]


def joined(raw: bytes) -> dict[str, str]:
    """The text of each field over all events."""
    found: dict[str, str] = {}
    text = raw.decode().replace("\r\n", "\n").replace("\r", "\n")
    for event in text.split("\n\n"):
        if event.startswith("data: {"):
            for choice in json.loads(event[6:])["choices"]:
                for field, value in choice["delta"].items():
                    found[field] = found.get(field, "") + value
    return found


@settings(max_examples=150)
@given(options=EACH_OPTION, tokens=st.integers(1, 30), thoughts=st.integers(0, 30))
def test_no_combination_loses_or_adds_text(options: StreamOptions, tokens: int, thoughts: int) -> None:
    thoughts = min(thoughts, tokens)
    found = joined(reply(options, tokens, thoughts))
    found.pop("role", None)
    plain = joined(reply(StreamOptions(reasoning_place=options.reasoning_place), tokens, thoughts))
    plain.pop("role")
    assert {field: text for field, text in found.items() if text} == {f: t for f, t in plain.items() if t}


@pytest.mark.parametrize("tokens", [1, 2, 40])
@pytest.mark.parametrize("thoughts", [0, 1])
def test_the_quick_way_and_the_general_one_write_the_same_bytes(tokens: int, thoughts: int) -> None:
    assert reply(StreamOptions(), tokens, thoughts, plain=True) == reply(StreamOptions(), tokens, thoughts)


def test_chunks_never_mix_reasoning_and_content() -> None:
    raw = reply(StreamOptions(tokens_per_chunk=4), 12, thoughts=6)
    deltas: list[dict[str, Any]] = [
        json.loads(event[6:])["choices"][0]["delta"]
        for event in raw.decode().split("\n\n")
        if event.startswith("data: {") and '"choices":[]' not in event
    ]
    texts = [(field, text.count(" ")) for delta in deltas for field, text in delta.items() if text.strip()]
    fields, sizes = zip(*texts[1:], strict=True)
    assert fields == ("reasoning_content",) * 3 + ("content",) * 2
    assert sizes == (1, 4, 1, 4, 2)


def test_usage_on_a_chunk_counts_its_tokens_and_none_that_closed_it() -> None:
    raw = reply(StreamOptions(tokens_per_chunk=4, usage="every_chunk"), 8, thoughts=3)
    chunks = [json.loads(event[6:]) for event in raw.decode().split("\n\n") if event.startswith("data: {")]
    assert [each["usage"]["completion_tokens"] for each in chunks if "usage" in each] == [1, 3, 7, 8, 8]


@pytest.mark.parametrize(
    ("options", "instants"),
    [
        (StreamOptions(), (1, 4)),
        (StreamOptions(blank_every=3), (1, 5)),  # the last text comes with the finish reason
        (StreamOptions(events_per_write=100), (1, 1)),
    ],
)
def test_text_is_noted_as_it_is_written(options: StreamOptions, instants: tuple[int, int]) -> None:
    truth = replied(options, 3)[1]
    assert (truth.first_write_ns, truth.last_write_ns) == instants


class _Gathered(ChunkedReply):
    """Notes its chunks, each with the instant of which the clock has as many as there were chunks."""

    def __init__(self, sizes: Iterator[int] | None, thoughts: int) -> None:
        self.chunks: list[int] = []
        texts = TokenTexts(0, "reasoning_content", "whitespace")
        texts.reason_first(thoughts)
        truth = GroundTruth("id", 0, 5)
        super().__init__(texts, truth, sizes, lambda: 10 * (len(self.chunks) + 1))

    async def _send_texts(self, texts: list[str]) -> None:
        self.chunks.append(len(texts))

    async def finish(self, reason: str) -> bool:
        await self._chunk()
        return False


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("sizes", "chunks", "instants"),
    [
        ([1, 2, 2, 2, 2], [1, 2, 2, 1], (10, 30, 20, 40)),
        ([4] * 4, [3, 3], (10, 20, 10, 20)),
        ([1] * 7, [1] * 6, (10, 50, 30, 60)),
        (None, [6], (10, 10, 10, 10)),
    ],
)
async def test_a_chunk_is_of_thoughts_or_of_the_answer_unless_all_are_one(
    sizes: list[int] | None, chunks: list[int], instants: tuple[int, int, int, int]
) -> None:
    """The first token of the answer is white space, so not visible by itself."""
    reply = _Gathered(None if sizes is None else iter(sizes), thoughts=3)
    for _ in range(6):
        await reply.token()
    await reply.finish("stop")
    truth = reply.truth
    assert reply.chunks == chunks
    assert (truth.output_tokens, truth.reasoning_tokens) == (6, 3)
    noted = truth.first_write_ns, truth.first_visible_ns, truth.thinking_end_ns, truth.last_write_ns
    assert noted == instants
