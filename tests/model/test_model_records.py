"""Records: rows to columns and back, nothing observed is MISSING, never zero."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import MISSING, JoinedRecords, Records


def rows() -> list[RequestRecord]:
    return [
        RequestRecord(
            1, "b", Phase.MEASURE, submitted_ns=20, chunk_ns=[30, 40], chunk_tokens=[1, 2], outcome=Outcome.OK
        ),
        RequestRecord(
            0, "a", Phase.WARMUP, submitted_ns=10, chunk_ns=[11], outcome=Outcome.TIMEOUT, error="late"
        ),
        RequestRecord(
            2, "c", Phase.MEASURE, scheduled_ns=15, input_tokens=0, token_source=TokenSource.SERVER_USAGE
        ),
    ]


def test_order_is_that_of_submission() -> None:
    records = Records.from_rows(rows())
    assert list(records.request_id) == ["a", "c", "b"]
    assert records.input_tokens.tolist() == [MISSING, 0, MISSING]
    assert records.chunk_ns.tolist() == [11, 30, 40]
    assert records.chunk_tokens.tolist() == [MISSING, 1, 2]
    assert records.chunk_offsets.tolist() == [0, 1, 1, 3]


def test_counts_name_every_outcome() -> None:
    counts = Records.from_rows(rows()).counts()
    assert counts["submitted"] == 3
    assert (counts["ok"], counts["timeout"], counts["cancelled"], counts["http_error"]) == (1, 1, 1, 0)


def test_select_keeps_chunks_together() -> None:
    records = Records.from_rows(rows())
    chosen = records.select(records.ok)
    assert list(chosen.request_id) == ["b"]
    assert chosen.chunk_ns.tolist() == [30, 40]
    assert chosen.chunk_offsets.tolist() == [0, 2]
    assert chosen.error == [None]


def test_concatenate_is_one_after_another() -> None:
    records = Records.from_rows(rows())
    twice = Records.concatenate([records, records])
    assert len(twice) == 6
    assert twice.chunk_offsets.tolist() == [0, 1, 1, 3, 4, 4, 6]
    assert list(twice.request_id) == ["a", "c", "b"] * 2
    assert len(Records.concatenate([])) == 0


def alike(some: Records, others: Records) -> bool:
    return all(
        list(getattr(some, column.name)) == list(getattr(others, column.name)) for column in fields(Records)
    )


def test_what_is_joined_on_demand_is_what_is_joined_at_once() -> None:
    records = Records.from_rows(rows())
    parts = [records, records.part(0, 0), records.part(0, 1), records]
    joined, at_once = JoinedRecords(parts), Records.concatenate(parts)
    assert alike(joined, at_once)
    assert len(joined) == len(at_once) == 7
    assert joined.counts() == at_once.counts()
    assert alike(joined.without_streams(), at_once.without_streams())
    for mask in (at_once.ok, ~at_once.ok, np.zeros(7, dtype=bool)):
        assert alike(joined.select(mask), at_once.select(mask))
    for first in range(8):
        for last in range(first, 8):
            assert alike(joined.part(first, last), at_once.part(first, last))
    assert alike(Records.concatenate(list(joined.blocks(2))), at_once)
    assert alike(Records.concatenate([joined, joined]), Records.concatenate([at_once, at_once]))
    assert [len(block) for block in JoinedRecords([records.part(0, 0)] * 2).blocks()] == [0]


def test_a_look_at_a_joined_column_joins_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    joined = JoinedRecords([Records.from_rows(rows())] * 2)
    assert joined.submitted_ns.tolist() == [10, MISSING, 20] * 2
    assert not joined.submitted_ns.flags.writeable
    monkeypatch.delattr(JoinedRecords, "__getattr__")
    assert [column.name for column in fields(Records) if hasattr(joined, column.name)] == ["submitted_ns"]
    monkeypatch.undo()
    with pytest.raises(AttributeError):
        joined.no_such_column  # noqa: B018 - it is asked for


def test_columns_are_read_only() -> None:
    records = Records.from_rows(rows())
    with pytest.raises(ValueError, match="read-only"):
        records.submitted_ns[0] = 5
    assert isinstance(records.submitted_ns, np.ndarray)
