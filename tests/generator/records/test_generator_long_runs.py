"""Memory of long runs: rows that go to a spool, workers' columns that are merged a block at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from same_records import same

from pytest_llmbench.columns import RecordLog, StoredRecords, together
from pytest_llmbench.generator.records.spool import RowLog, SpoolReader, SpoolWriter
from pytest_llmbench.generator.workers.distributed import peak_in_flight
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records


def rows(count: int, first: int = 0, step: int = 1) -> list[RequestRecord]:
    made = [
        RequestRecord(
            index=index,
            request_id=f"r-{index}",
            phase=Phase.MEASURE,
            scheduled_ns=1000 * index,
            dispatched_ns=1000 * index + 1,
            submitted_ns=1000 * index + 2,
            chunk_ns=[1000 * index + 100, 1000 * index + 200],
            chunk_tokens=[1, 1],
            finished_ns=1000 * index + 300 + 7000 * (index % 5),
            outcome=Outcome.OK,
        )
        for index in range(first, count, step)
    ]
    return sorted(made, key=lambda row: row.finished_ns or 0)


@pytest.mark.parametrize("memory_bytes", [1 << 30, 30_000])
def test_rows_beyond_the_room_go_to_a_spool_and_come_back(memory_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = rows(300)
    log = RowLog(memory_bytes=memory_bytes)
    for row in made:
        log.append(row)
    assert len(log) == 300
    assert log.last_finished_ns == max(row.finished_ns or 0 for row in made)
    held = len(log._recent)
    assert held == 300 if memory_bytes > 1 << 20 else 10 < held < 30
    same(log.records(), Records.from_rows(made))
    log.close()
    assert not list(tmp_path.glob("*.spool"))


def test_rows_that_somebody_else_keeps_are_only_counted():
    made = rows(300)
    log = RowLog(keeps=False)
    for row in made:
        log.append(row)
    assert (len(log), len(log.records())) == (300, 0)
    assert log.last_finished_ns == max(row.finished_ns or 0 for row in made)


def test_a_spool_is_read_in_batches(tmp_path):
    made = rows(200)
    writer = SpoolWriter(tmp_path / "spool")
    for row in made:
        writer.write(row)
    writer.close()
    few = list(SpoolReader(tmp_path / "spool").batches(50))
    assert len(few) > 10, "what was packed together is read all the same where it is longer than a batch"
    assert [row for batch in few for row in batch] == made
    batches = list(SpoolReader(tmp_path / "spool").batches(4000))
    assert 2 < len(batches) < 12
    assert [row for batch in batches for row in batch] == made


class Label(str):
    """A text of a class of its own."""


def test_a_spool_takes_values_of_other_classes_and_gives_each_record_its_own_timings(tmp_path):
    made = [replace(row, class_label=Label("code"), server_timings={}) for row in rows(40)]
    made[3].server_timings["queue_ms"] = 1.5
    writer = SpoolWriter(tmp_path / "spool")
    for row in made:
        writer.write(row)
    writer.close()
    found = SpoolReader(tmp_path / "spool").read()
    assert found == made
    found[20].server_timings["queue_ms"] = 2.0
    assert found[21].server_timings == {}


@pytest.mark.parametrize("shift", [0, 1])
def test_columns_of_a_spool_are_those_of_its_rows(shift, tmp_path):
    made = rows(100)
    made += [
        RequestRecord(200 - shift, "never", Phase.WARMUP, scheduled_ns=50_500 * shift or None, error="late"),
        replace(made[5], index=300, chunk_tokens=(), reasoning_token_source=TokenSource.SERVER_USAGE),
    ]
    writer = SpoolWriter(tmp_path / "spool")
    for row in made:
        writer.write(row)
    writer.close()
    (columns,) = SpoolReader(tmp_path / "spool").columns()
    log = RecordLog()
    log.extend(Records.from_columns(columns))
    found = log.records()
    same(found, Records.from_rows(made))
    assert found.index.tolist().index(200 - shift) == (52 if shift else 0)
    assert found.chunk_tokens.tolist().count(-1) == 2


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1000])
def test_columns_of_workers_are_merged_in_order(memory_bytes):
    parts = [Records.from_rows(rows(500, worker, 3)) for worker in range(3)]
    found = together(parts, memory_bytes=memory_bytes, block_rows=40)
    assert isinstance(found, StoredRecords) == (memory_bytes == 1000)
    same(found, Records.from_rows(rows(500)))


@pytest.mark.parametrize("seed", range(5))
def test_the_peak_in_flight_is_that_of_all_requests(seed):
    random = np.random.default_rng(seed)
    starts = np.sort(random.integers(0, 3000, size=400))
    ends = starts + random.integers(0, 400, size=400)
    records = Records.from_rows(
        RequestRecord(
            index,
            f"{index}",
            Phase.MEASURE,
            dispatched_ns=int(start),
            submitted_ns=int(start),
            finished_ns=int(end),
        )
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    )
    instants = np.unique(starts)
    direct = max(int(((starts <= at) & (ends > at)).sum()) for at in instants)
    assert peak_in_flight(records) == direct
    assert peak_in_flight(records, 30) == direct
    assert peak_in_flight(Records.from_rows(())) == 0
