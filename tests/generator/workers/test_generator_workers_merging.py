"""Records, self-checks and spools of several workers, put together."""

from __future__ import annotations

import os
import random
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from same_records import same

from pytest_llmbench.columns import together
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.generator.workers.coordinator import WorkerShare
from pytest_llmbench.generator.workers.distributed import merged_selfcheck, peak_in_flight
from pytest_llmbench.generator.workers.protocol import (
    Address,
    Hello,
    Ping,
    Setup,
    own_version,
    refuse_other_version,
)
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records


def row(index: int, submitted_ns: int | None, chunks: int = 0, **changes: object) -> RequestRecord:
    made = RequestRecord(
        index,
        f"r-{index}",
        Phase.MEASURE,
        scheduled_ns=index,
        dispatched_ns=submitted_ns,
        submitted_ns=submitted_ns,
        finished_ns=None if submitted_ns is None else submitted_ns + 50,
        chunk_ns=[1000 * index + chunk for chunk in range(chunks)],
        chunk_tokens=[1] * chunks,
        server_token_ns=[index] * (chunks // 2),
        outcome=Outcome.OK,
        error=None if index % 3 else f"fault \udcff {index}",
    )
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def same_types(one: Records, other: Records) -> None:
    same(one, other)
    for column in fields(Records):
        assert type(getattr(one, column.name)) is type(getattr(other, column.name)), column.name


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_merged_columns_are_those_of_all_rows_together(workers):
    chance = random.Random(3)
    rows = [row(index, chance.randrange(60) or None, chunks=index % 4) for index in range(80)]
    parts = [Records.from_rows(rows[own::workers]) for own in range(workers)]
    same_types(together(parts), Records.from_rows(rows))


def test_parts_without_requests_merge():
    empty = Records.from_rows(())
    same_types(together([empty, empty]), empty)
    same_types(together([empty, Records.from_rows([row(4, 7, 2)])]), Records.from_rows([row(4, 7, 2)]))


@pytest.mark.parametrize("memory_bytes", [1 << 30, 1000])
def test_a_part_keeps_what_its_worker_spooled_up_to_the_cut(memory_bytes, tmp_path, monkeypatch):
    monkeypatch.setattr("pytest_llmbench.generator.workers.coordinator.COLUMN_BATCH_BYTES", 3000)
    monkeypatch.setattr("pytest_llmbench.columns.MEMORY_BYTES", memory_bytes)
    member: Any = SimpleNamespace(setup=Setup(Address("http://127.0.0.1:9/v1"), "x", "m", directory=tmp_path))
    rows = [row(index, 1000 - index, chunks=index % 4) for index in range(90)]
    part = WorkerShare(member, 1)
    spool = SpoolWriter(member.setup.spool, flush_s=60)
    seen: list[RequestRecord] = []
    for at, each in enumerate(rows):
        spool.write(each)
        if at % 20 == 0:
            spool.flush()
            part.keep()
            seen += part.spooled()
    spool.close()
    whole = member.setup.spool.read_bytes()
    member.setup.spool.write_bytes(whole[:-1])
    part.end()
    seen += part.spooled()
    assert 0 < len(part.records) < 90
    assert seen == rows[: len(seen)]
    same(part.records, Records.from_rows(seen))


def test_a_spool_gives_each_record_once_and_leaves_out_what_is_not_there_whole(tmp_path):
    path = tmp_path / "spool"
    reader = SpoolReader(path)
    assert reader.read() == []
    writer = SpoolWriter(path, flush_s=0.005)
    rows = [row(index, 10 * index, chunks=3, server_timings={"queue_ms": 1.5}) for index in range(20)]
    for each in rows[:10]:
        writer.write(each)
    seen: list[RequestRecord] = []
    while len(seen) < 10:
        seen += reader.read()
    for each in rows[10:]:
        writer.write(each)
    writer.close()
    writer.close()
    seen += reader.read()
    assert seen == rows
    counts = []
    for size in range(path.stat().st_size, -1, -1):  # every cut
        os.truncate(path, size)
        kept = SpoolReader(path).read()
        assert kept == rows[: len(kept)]
        counts.append(len(kept))
    assert counts == sorted(counts, reverse=True)
    assert (counts[0], counts[-1]) == (20, 0)
    assert 10 <= counts[1] < 20


def test_a_disk_that_fails_is_told_to_the_generator():
    writer = SpoolWriter(Path("/dev/full"), flush_s=0.001)
    writer.write(row(1, 1))
    writer.close()
    with pytest.raises(OSError, match="No space left"):
        writer.write(row(1, 1))
    at_the_end = SpoolWriter(Path("/dev/full"), flush_s=60)
    at_the_end.write(row(1, 1))
    with pytest.raises(OSError, match="No space left"):
        at_the_end.flush()
    at_the_end.close()


def test_the_self_check_is_that_of_the_worst_worker_and_counts_are_sums():
    calm = SelfCheck(
        send_lag_p50_ns=10,
        send_lag_p99_ns=100,
        send_lag_first_tenth_p50_ns=500,
        send_lag_last_tenth_p50_ns=500,
        loop_lag_p99_ns=None,
        cpu_share=0.2,
        reads=5,
        connections_opened=1,
        gc_collections=2,
        peak_in_flight=9,
        event_loop="uvloop",
    )
    behind = SelfCheck(
        send_lag_p50_ns=4,
        send_lag_p99_ns=900,
        send_lag_first_tenth_p50_ns=1,
        send_lag_last_tenth_p50_ns=400,
        loop_lag_p99_ns=7,
        cpu_share=0.9,
        reads=6,
        connections_opened=2,
        peak_in_flight=8,
        event_loop="asyncio",
    )
    both = merged_selfcheck([calm, behind], Records.from_rows([row(0, 1), row(1, 2), row(2, 51)]))
    assert (both.send_lag_p50_ns, both.send_lag_p99_ns, both.send_lag_max_ns) == (10, 900, None)
    # The trend of one worker, not a mixture in which it disappears.
    assert (both.send_lag_first_tenth_p50_ns, both.send_lag_last_tenth_p50_ns) == (1, 400)
    assert (both.loop_lag_p99_ns, both.cpu_share) == (7, 0.9)
    assert (both.reads, both.connections_opened, both.gc_collections) == (11, 3, 2)
    assert both.peak_in_flight == 2
    assert both.event_loop == "uvloop; asyncio"


def test_peak_in_flight_takes_an_end_before_the_dispatch_that_replaces_it():
    assert peak_in_flight(Records.from_rows(())) == 0
    assert peak_in_flight(Records.from_rows([row(0, 0), row(1, 50), row(2, 100)])) == 1
    assert peak_in_flight(Records.from_rows([row(0, 0), row(1, 49), row(2, None)])) == 2
    many = Records.from_rows([row(index, index) for index in range(200)])
    assert peak_in_flight(many) == 50
    assert np.all(many.finished_ns - many.dispatched_ns == 50)


def test_a_silent_worker_is_asked_and_only_one_that_does_not_answer_is_killed(tmp_path, monkeypatch):
    now_s, said, killed = [100.0], [], []
    monkeypatch.setattr("pytest_llmbench.generator.workers.coordinator.time.monotonic", lambda: now_s[0])
    member: Any = SimpleNamespace(
        setup=Setup(Address("http://127.0.0.1:9/v1"), "openai-chat", "m", directory=tmp_path),
        line=SimpleNamespace(send=said.append),
        kill_unresponsive=lambda: killed.append(now_s[0]),
    )
    part = WorkerShare(member, 2)
    for now_s[0] in (104.0, 106.0, 150.0, 165.0):
        part.look_after()
    assert said == [Ping()]  # at 106
    part.answered()
    for now_s[0] in (169.0, 171.0, 230.0):
        part.look_after()
    assert said == [Ping(), Ping()]
    assert killed == []
    now_s[0] = 232.0
    part.look_after()
    assert killed == [232.0]


def test_a_worker_of_another_version_is_refused():
    refuse_other_version(Hello(own_version()), "worker 1")
    with pytest.raises(SuiteError, match=r"worker 2: the worker is of version 0\.0\.1, this process of"):
        refuse_other_version(Hello("0.0.1"), "worker 2")
    with pytest.raises(SuiteError, match="of version unknown"):
        refuse_other_version("hello", "worker 1")
