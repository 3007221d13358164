"""Records in files: what goes in comes out, in order, whatever it was cut into."""

from __future__ import annotations

import gc
import random
from contextlib import closing
from dataclasses import replace
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from same_records import same

from pytest_llmbench.columns import BlockFile, RecordLog, StoredRecords, merged
from pytest_llmbench.errors import StoreError
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import MISSING, CodedTexts, PackedTexts, Records


def rows(count: int, *, seed: int = 1, chunks: int = 5) -> list[RequestRecord]:
    """Requests in the order in which they end: some late, some failed, some never sent."""
    random_ = random.Random(seed)
    made = []
    for index in range(count):
        sent = 1000 * (index // 2)  # two at a time at one instant
        failed = random_.random() < 0.1
        streamed = 0 if failed else random_.randrange(chunks + 1)
        made.append(
            RequestRecord(
                index=index,
                request_id=f"ü-{index:x}",
                phase=Phase.MEASURE,
                scheduled_ns=sent,
                dispatched_ns=None if index % 17 == 3 else sent + 5,
                submitted_ns=None if index % 17 in (3, 4) else sent + 7,
                chunk_ns=[sent + 10 * k for k in range(streamed)],
                chunk_tokens=[1] * streamed if index % 3 else [],
                server_token_ns=list(range(index % 4)),
                finished_ns=sent + random_.choice([50, 3000, 90_000]),
                outcome=Outcome.TIMEOUT if failed else Outcome.OK,
                error="gave up" if failed else None,
                class_label=random_.choice(["short", "long"]),
            )
        )
    return sorted(made, key=lambda row: row.finished_ns or 0)


def logged(made: list[RequestRecord], batch: int, memory_bytes: int) -> Records:
    log = RecordLog(memory_bytes=memory_bytes)
    for first in range(0, len(made), batch):
        log.extend(Records.from_rows(made[first : first + batch]))
    found = log.records()
    log.close()
    return found


@pytest.mark.parametrize("memory_bytes", [1 << 30, 20_000, 0])
@pytest.mark.parametrize("batch", [1, 7, 100, 1000])
def test_order_and_content_do_not_depend_on_batches(batch: int, memory_bytes: int) -> None:
    made = rows(300)
    found = logged(made, batch, memory_bytes)
    assert isinstance(found, StoredRecords) == (memory_bytes < 1 << 30)
    same(found, Records.from_rows(made))


@pytest.mark.parametrize("chunks", [0, 1, 40])
def test_streams_of_any_length(chunks: int) -> None:
    made = rows(120, seed=2, chunks=chunks)
    same(logged(made, 11, 0), Records.from_rows(made))


def test_an_empty_log() -> None:
    same(RecordLog().records(), Records.from_rows(()))
    with closing(BlockFile()) as file:
        assert len(merged(file)) == 0


def test_parts_and_selections_of_stored_records_are_those_of_records() -> None:
    made = rows(300)
    stored, plain = logged(made, 50, 0), Records.from_rows(made)
    same(stored.part(20, 120), plain.part(20, 120))
    odd = np.arange(300) % 2 == 1
    same(stored.select(odd), plain.select(odd))
    same(stored.select(~odd & (np.arange(300) < 100)), plain.select(~odd & (np.arange(300) < 100)))
    same(stored.select(np.arange(300) >= 250), plain.select(np.arange(300) >= 250))
    same(Records.concatenate(list(stored.blocks(64))), plain)
    same(Records.concatenate([stored, plain]), Records.concatenate([plain, plain]))
    assert stored.counts() == plain.counts()
    with pytest.raises(ValueError, match="read-only"):
        stored.submitted_ns[0] = 1


def test_constant_columns_take_no_room() -> None:
    made = rows(1000)
    for row in made:
        row.http_status = 200
    stored = logged(made, 100, 0)
    assert stored.http_status.strides == (0,)
    assert stored.prefix_id.tolist() == [MISSING] * 1000


def test_a_file_goes_with_its_records() -> None:
    own = Path("/proc/self/fd")
    if not own.exists():
        pytest.skip("no /proc here")

    def open_files() -> int:
        return sum(fd.is_symlink() and "(deleted)" in str(fd.readlink()) for fd in own.iterdir())

    gc.collect()
    before = open_files()
    stored = logged(rows(100), 10, 0)
    column = stored.submitted_ns
    assert open_files() == before + 1
    del stored
    gc.collect()
    assert column[-1] > 0, "a column keeps the file"
    del column
    gc.collect()
    assert open_files() == before


def test_texts_are_sequences() -> None:
    coded = CodedTexts(np.array([1, 0, 1], dtype=np.int32), ["a", None])
    assert list(coded) == [None, "a", None]
    assert coded[1] == "a"
    assert list(coded[1:]) == ["a", None]
    assert (np.array(coded, dtype=object) == "a").tolist() == [False, True, False]
    packed = PackedTexts(np.array([0, 1, 1, 4]), np.frombuffer("aübc".encode(), dtype=np.uint8)[[0, 1, 2, 3]])
    assert list(packed) == ["a", "", "üb"]
    assert packed[-1] == "üb"
    assert list(packed[1:]) == ["", "üb"]
    assert list(packed[::2]) == ["a", "üb"]
    assert list(packed.take(np.array([2, 0]))) == ["üb", "a"]
    with pytest.raises(IndexError):
        packed[3]


def test_a_full_disk_says_where_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    monkeypatch.setattr(
        "pytest_llmbench.columns.tempfile.TemporaryFile", lambda **_: FileIO("/dev/full", "w")
    )
    log = RecordLog(memory_bytes=0)
    with pytest.raises(StoreError, match="No space left on device") as failure:
        log.extend(Records.from_rows(rows(10)))
    assert "TMPDIR" in str(failure.value)


def test_long_runs_are_joined_and_selected_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    made = rows(300)
    long, plain = logged(made, 50, 0), Records.from_rows(made)
    more = Records.from_rows(rows(40, seed=3))
    # Records are joined and selected by operators of theirs, which have no place for it.
    monkeypatch.setattr("pytest_llmbench.columns.BLOCK", 100)
    together = Records.concatenate([more, long, plain])
    assert isinstance(together, StoredRecords)
    same(together, Records.concatenate([more, plain, plain]))
    thirds = np.arange(300) % 3 > 0
    chosen = long.select(thirds)
    assert isinstance(chosen, StoredRecords)
    same(chosen, plain.select(thirds))
    same(long.select(np.zeros(300, dtype=bool)), plain.select(np.zeros(300, dtype=bool)))
    same(long.select(np.ones(300, dtype=bool)), plain)


@pytest.mark.parametrize("memory_bytes", [0, 10**9])
def test_one_number_in_all_batches_takes_no_memory(memory_bytes: int) -> None:
    """As where each chunk is one token; of batches that differ every number comes back."""
    ones = Records.from_rows(
        [row for row in rows(300, chunks=9) if len(row.chunk_tokens) == len(row.chunk_ns)]
    )
    view = np.broadcast_to(np.int64(1), len(ones.chunk_ns))
    for last in (view, 2 * view):
        log = RecordLog(memory_bytes=memory_bytes)
        log.extend(replace(ones, chunk_tokens=view))
        log.extend(replace(ones, chunk_tokens=last, submitted_ns=ones.submitted_ns + 10**9))
        tokens = log.records().chunk_tokens
        log.close()
        assert tokens.tolist() == [1] * len(view) + last.tolist()
        assert (tokens.strides == (0,)) is (last is view)
