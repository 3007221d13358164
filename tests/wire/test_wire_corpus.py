"""Whole replies through decoder, dialect and summary, under every way to cut them into reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from wire_corpus import INSTANTS, REPLIES, Reply
from wire_corpus_apis import API_REPLIES
from wire_corpus_counts import COUNTS_REPLIES

from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import increments
from pytest_llmbench.wire.reply import STREAM_END, StreamSummary, read_stream
from pytest_llmbench.wire.stream import chunks_of, events_of

EACH = pytest.mark.parametrize(
    "reply", [*REPLIES, *API_REPLIES, *COUNTS_REPLIES], ids=lambda reply: reply.name
)

FEW = pytest.mark.parametrize(
    "reply", [*REPLIES, *API_REPLIES, *COUNTS_REPLIES[::6]], ids=lambda reply: reply.name
)


def summarise(reply: Reply, pieces: Sequence[bytes]) -> StreamSummary:
    """The stamp of a piece is its number."""
    reads = ((piece, number) for number, piece in enumerate(pieces))
    return read_stream(list(chunks_of(reads, dialect(reply.dialect))), ended="eof")


def without_stamps(summary: StreamSummary) -> StreamSummary:
    gone = dict.fromkeys(INSTANTS)
    return replace(summary, **gone, chunk_ns=[0] * len(summary.chunk_ns), coalesced_chunks=0)


@EACH
def test_known_answers(reply):
    summary = summarise(reply, [reply.body])
    seen = {name: getattr(summary, name) for name in reply.summary}
    assert seen == reply.summary


@EACH
def test_content_chunks_and_their_instants(reply):
    """One read per event: every instant is then the number of an event."""
    events = list(events_of([(reply.body, 0)], protocol=dialect(reply.dialect).protocol))
    chunks = list(chunks_of([(reply.body, 0)], dialect(reply.dialect)))
    for number, chunk in enumerate(chunks):
        chunk.stamp_ns = chunk.read_index = number
    summary = read_stream(chunks)
    assert len(chunks) - len(events) == (1 if chunks[-1].finish_reason == STREAM_END else 0)
    assert [chunks[at].reasoning + chunks[at].text for at in summary.chunk_ns] == reply.texts
    assert summary.first_event_ns == 0
    assert summary.first_nonempty_ns == summary.chunk_ns[0]
    assert summary.last_content_ns == summary.chunk_ns[-1]
    visible = [at for at in summary.chunk_ns if chunks[at].text.strip()]
    assert summary.first_content_ns == (visible[0] if visible else None)
    assert summary.coalesced_chunks == 0


@FEW
def test_cut_at_every_byte(reply):
    bytewise = summarise(reply, [reply.body[at : at + 1] for at in range(len(reply.body))])
    whole = without_stamps(summarise(reply, [reply.body]))
    assert without_stamps(bytewise) == whole
    assert bytewise.coalesced_chunks == 0
    for place in range(len(reply.body) + 1):
        halves = summarise(reply, [reply.body[:place], reply.body[place:]])
        assert without_stamps(halves) == whole
        assert halves.chunk_ns == [int(at >= place) for at in bytewise.chunk_ns]
        reads = len(set(halves.chunk_ns))
        assert halves.coalesced_chunks == len(halves.chunk_ns) - reads


@EACH
def test_the_fast_path_equals_decoding_each_event(reply):
    reads = [(reply.body, 5)]
    spoken = dialect(reply.dialect)
    single = [spoken.decode(event) for event in events_of(reads, protocol=spoken.protocol)]
    if spoken.accumulates:
        single = list(increments(single))
    assert [chunk for chunk in chunks_of(reads, spoken) if chunk.finish_reason != STREAM_END] == single
