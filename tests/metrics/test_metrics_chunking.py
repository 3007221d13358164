from __future__ import annotations

import pytest
from metric_rows import row

from pytest_llmbench.metrics import chunking
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records


def records(*rows: object) -> Records:
    return Records.from_rows(rows)  # type: ignore[arg-type]


def test_single_token_share_is_of_attributed_chunks() -> None:
    seen = records(
        row(0, chunks=(1.0, 2.0, 3.0, 4.0), chunk_tokens=(1, 1, 2, 1)),
        row(1, chunks=(1.0, 2.0), chunk_tokens=()),
        row(2, chunks=(1.0,), chunk_tokens=(5,), outcome=Outcome.TRUNCATED),
    )
    assert chunking.single_token_share(seen) == 0.75


def test_tokens_per_chunk() -> None:
    seen = records(row(0, chunks=(1.0, 2.0, 3.0, 4.0), chunk_tokens=(1, 1, 2, 4)))
    found = chunking.tokens_per_chunk(seen)
    assert found is not None
    assert (found.chunks, found.mean, found.p50, found.max) == (4, 2.0, 1.5, 4)
    assert found.p99 == pytest.approx(3.94)


def test_coalesced_share() -> None:
    seen = records(
        row(0, coalesced_chunks=1),
        row(1, coalesced_chunks=0),
        row(2, coalesced_chunks=3, outcome=Outcome.TIMEOUT),
    )
    assert chunking.coalesced_share(seen) == pytest.approx(1 / 6)


def test_gathered_share_leaves_out_what_was_read_late() -> None:
    seen = records(
        row(0, coalesced_chunks=2),
        row(1, coalesced_chunks=2, unresolved_chunks=1),
        row(2, coalesced_chunks=3, outcome=Outcome.TIMEOUT),
    )
    assert chunking.gathered_share(seen) == pytest.approx(3 / 6)
    assert chunking.gathered_share(records()) is None


def test_output_before_content_is_noticed() -> None:
    seen = records(
        row(0),
        row(1, first_nonempty=50.0),
        row(2, first_reasoning=50.0),
        row(3, first_reasoning=105.0),
        row(4, first_nonempty=50.0, outcome=Outcome.CANCELLED),
        row(5, first_nonempty=50.0, first_content=None),
    )
    assert chunking.noncontent_first_share(seen) == 0.5
    assert chunking.noncontent_first_share(records(row(0))) == 0.0


def test_stated_reasoning_share() -> None:
    seen = records(row(0, tokens=100, reasoning_tokens=60), row(1, tokens=100, reasoning_tokens=0))
    assert chunking.reasoning_share(seen) == pytest.approx(0.3)


def test_streamed_reasoning_is_counted_from_its_chunks() -> None:
    thinking = row(
        0,
        chunks=(10.0, 20.0, 30.0, 40.0),
        chunk_tokens=(2, 4, 3, 1),
        tokens=20,
        first_reasoning=10.0,
        first_content=30.0,
    )
    assert chunking.reasoning_share(records(thinking)) == pytest.approx(0.6)
    assert chunking.reasoning_share(records(thinking, row(1, tokens=20))) == pytest.approx(0.3)
    thinking.chunk_tokens = ()
    assert chunking.reasoning_share(records(thinking)) == pytest.approx(0.5)


def test_requests_without_a_count_have_no_reasoning_share() -> None:
    uncounted = row(0)
    uncounted.output_tokens = None
    assert chunking.reasoning_share(records(uncounted)) is None


def test_nothing_to_count_is_none() -> None:
    failed = records(row(0, outcome=Outcome.HTTP_ERROR, chunks=()))
    for seen in (records(), failed):
        assert chunking.single_token_share(seen) is None
        assert chunking.tokens_per_chunk(seen) is None
        assert chunking.coalesced_share(seen) is None
        assert chunking.noncontent_first_share(seen) is None
        assert chunking.reasoning_share(seen) is None


STEADY = [100.0 + 10 * number for number in range(15)]
AHEAD = [3.0, *STEADY[1:]]


def test_a_first_piece_that_was_sent_ahead() -> None:
    """Known: a token at 3 ms and the others from 110 ms on, every 10 ms."""
    found = chunking.early_pause(records(row(0, chunks=AHEAD), row(1, chunks=STEADY), row(2, chunks=AHEAD)))
    assert found == (3, 2, 1, 107e6, 10e6)
    assert found.share == pytest.approx(2 / 3)


def test_a_preamble_of_several_pieces() -> None:
    preamble = [1.0, 2.0, 3.0, *STEADY]
    found = chunking.early_pause(records(*(row(number, chunks=preamble) for number in range(4))))
    assert found == (4, 4, 3, 97e6, 10e6)


def test_pauses_at_other_places_are_those_of_a_busy_server() -> None:
    paused = [[*STEADY[:at], *(each + 200 for each in STEADY[at:])] for at in range(1, 9)]
    found = chunking.early_pause(records(*(row(at, chunks=each) for at, each in enumerate(paused))))
    assert (found.replies, found.paused) == (8, 1)


def test_what_comes_before_the_first_content_is_no_first_piece() -> None:
    """Reasoning, or a space, and then an answer as steady as any."""
    thought = row(0, chunks=AHEAD, first_content=STEADY[1])
    spoken = row(1, chunks=[3.0, *AHEAD], first_content=3.0)
    assert chunking.early_pause(records(thought)) == (1, 0, 0, 0.0, 0.0)
    assert chunking.early_pause(records(thought, spoken)).paused == 1


def test_short_replies_and_failures_say_nothing_of_a_pause() -> None:
    short, failed = row(0, chunks=AHEAD[:11]), row(1, chunks=AHEAD, outcome=Outcome.TIMEOUT)
    assert chunking.early_pause(records(short, failed)) == (0, 0, 0, 0.0, 0.0)
    assert chunking.early_pause(records(short)).share == chunking.early_pause([]).share == 0.0


def test_a_reply_held_back_behind_its_first_piece() -> None:
    held = records(row(0, chunks=[3.0] + [200.0] * 12))
    assert chunking.early_pause([held, records(row(1, chunks=STEADY))]) == (2, 1, 1, 197e6, 0.0)
