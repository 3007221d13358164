"""Which replies arrived all at once."""

from __future__ import annotations

from metric_rows import row

from pytest_llmbench.metrics.chunking import buffering
from pytest_llmbench.model.records import Records


def _reply(first_ms: float, gap_ms: float, index: int = 0, chunks: int = 9) -> object:
    return row(index, chunks=[first_ms + gap_ms * place for place in range(chunks)])


def _share(*replies: object) -> float:
    return buffering(Records.from_rows(replies)).share  # type: ignore[arg-type]


def test_a_stream_is_none() -> None:
    assert _share(_reply(100, 10)) == 0.0


def test_held_back_beside_streams() -> None:
    """After a second all at once, where streams take 10 ms a chunk."""
    assert _share(_reply(100, 10), _reply(1000, 0.5, 1)) == 0.5
    assert _share(_reply(100, 10), _reply(100, 10, 1), _reply(1000, 0, 2)) == 1 / 3


def test_a_long_wait_before_a_true_stream() -> None:
    """A minute in a queue makes any stream short beside it; its pace is that of the others."""
    assert _share(_reply(100, 10), _reply(60_000, 10, 1)) == 0.0


def test_where_no_reply_is_a_stream_the_pace_decides() -> None:
    assert _share(_reply(60_000, 10), _reply(60_000, 8, 1)) == 0.0  # long prompts, short answers
    assert _share(_reply(1000, 0), _reply(1000, 0.2, 1)) == 1.0


def test_several_runs_count_as_one() -> None:
    """The pace of the streams of one run tells what was held back in another."""
    runs = [[_reply(100, 10), _reply(100, 12, 1)], [_reply(1000, 0.5)], []]
    several = buffering([Records.from_rows(run) for run in runs])  # type: ignore[arg-type]
    assert several == (3, 1, 11.0 * 1e6)
    assert buffering([]) == (0, 0, None)


def test_short_replies_say_nothing() -> None:
    assert buffering(Records.from_rows([_reply(1000, 0, chunks=7)])) == (0, 0, None)  # type: ignore[list-item]
