"""What one more request costs the coordinator of many workers, without any cluster: on paper, made of parts.

    python benchmarks/bench_coordinator.py [REQUESTS] [TOKENS]

Two workers' shares are made up, spooled, read, made columns, shifted onto another clock and merged, as
``--llm-workers ray`` has it done. Times are CPU times of this process.
"""

from __future__ import annotations

import json
import pickle
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_llmbench.columns import RecordLog, together
from pytest_llmbench.extras.ray.clocks import ClockLine, ClockOffset, shifted_record, shifted_records
from pytest_llmbench.generator.records.spool import SpoolReader, SpoolWriter
from pytest_llmbench.generator.workers.sharding import Deal
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

BATCH = 20_000
spooling: list[float] = []


def record(index: int, tokens: int) -> RequestRecord:
    at_ns = 10_000_000_000 + index * 100_000
    chance = random.Random(index)
    chunks = tuple(
        at_ns + 20_000_000 + 10_000_000 * place + chance.randrange(1_000_000) for place in range(tokens)
    )
    return RequestRecord(
        request_id=f"0123456789ab-{index}",
        index=index,
        phase=Phase.MEASURE,
        outcome=Outcome.OK,
        token_source=TokenSource.SERVER_USAGE,
        scheduled_ns=at_ns,
        dispatched_ns=at_ns + 5_000,
        submitted_ns=at_ns + 60_000,
        first_byte_ns=chunks[0] - 1000,
        first_event_ns=chunks[0],
        first_nonempty_ns=chunks[0],
        first_content_ns=chunks[0],
        chunk_ns=chunks,
        last_content_ns=chunks[-1],
        finished_ns=chunks[-1] + 100_000,
        input_tokens=200,
        output_tokens=tokens,
        finish_reason="length",
        http_status=200,
    )


def cpu_s(what: Callable[[], Any]) -> tuple[float, Any]:
    began = time.process_time()
    made = what()
    return time.process_time() - began, made


def spooled(path: Path, first: int, count: int, tokens: int) -> None:
    """The time of making records up is not the spool's."""
    writer = SpoolWriter(path)
    for start in range(0, count, BATCH):
        made = [record(first + 2 * number, tokens) for number in range(start, min(start + BATCH, count))]
        spooling.append(cpu_s(lambda made=made: [writer.write(each) for each in made])[0])
    writer.close()


def written(path: Path, count: int, tokens: int) -> None:
    records = [record(index, tokens) for index in range(count)]
    began = time.process_time()
    with RecordsWriter(path, RecordsHeader(ClockAnchor(0, 0))) as writer:
        for each in records:
            writer.write(each)
    print(
        f"{'line of the records file':36} {(time.process_time() - began) / count * 1e6:8.1f} µs per request"
    )


def read_all(path: Path) -> int:
    return sum(len(batch) for batch in SpoolReader(path).batches())


def columns_of(path: Path) -> Records:
    log = RecordLog()
    for columns in SpoolReader(path).columns():
        log.extend(Records.from_columns(columns))
    return log.records()


def main(requests: int, tokens: int) -> None:
    line = ClockLine(ClockOffset(-5_000_000, 300_000, 0, 8), ClockOffset(-5_000_100, 300_000, 10**9, 8))
    share = requests // 2
    each: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        spool = directory / "spool"
        spooled(spool, 0, share, tokens)
        each["spool, written by a worker"] = sum(spooling) / share
        sizes = {"spool": spool.stat().st_size / share}
        each["spool, read for on_record"] = cpu_s(lambda: read_all(spool))[0] / share
        each["spool, read into columns"] = cpu_s(lambda: columns_of(spool))[0] / share
        written(directory / "lines", 5000, tokens)
        few = [record(index, tokens) for index in range(2000)]
        each["one record shifted (on its node)"] = (
            cpu_s(lambda: [shifted_record(one, line) for one in few])[0] / 2000
        )
        parts = []
        for number in (0, 1):
            part = Records.from_rows(record(number + 2 * place, tokens) for place in range(share))
            took, _ = cpu_s(lambda part=part: shifted_records(part, line))
            each["columns, shifted"] = took / share
            parts.append(part)
        took, whole = cpu_s(lambda: together(parts))
        assert len(whole) == 2 * share
        each["two shares merged"] = took / len(whole)
    few_requests = min(2000, requests)
    plan = LoadPlan("measure", SYNTHETIC_UNIFORM, OpenLoop(1000.0), few_requests, 1)
    blocks = Deal(plan, 2, as_text=True).blocks()
    took, told = cpu_s(lambda: [pickle.dumps(block, pickle.HIGHEST_PROTOCOL) for _, block in blocks])
    each["drawn, dealt and packed"] = took / few_requests
    sizes["plan"] = sum(map(len, told)) / few_requests
    print(json.dumps({"requests": requests, "tokens": tokens}))
    for what, seconds in each.items():
        print(f"{what:36} {seconds * 1e6:8.1f} µs per request")
    for what, size in sizes.items():
        print(f"{what:36} {size:8.0f} bytes per request")


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:]]
    main(given[0] if given else 100_000, given[1] if len(given) > 1 else 64)

__all__ = ["main"]
