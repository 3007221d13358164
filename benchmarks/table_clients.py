"""The clients that ``bench_table.py`` compares. Each runs in a process of its own, on one core.

python benchmarks/table_clients.py KIND JSON      (as bench_table.py calls it)
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PRIORITY = "LLMBENCH_TABLE_PRIORITY"
_LIMIT_S = 120.0
_INPUT_TOKENS = 32
_SEED = 7
_WARM_UP_SEED = 6


@dataclass(frozen=True)
class Closed:
    """A closed loop against a port of this machine."""

    port: int
    in_flight: int
    requests: int
    tokens: int
    cpu: int


def native(built: Path, load: Closed) -> dict[str, float]:
    """The client in C."""
    arguments = [str(load.port), str(load.in_flight), str(load.requests)]
    seen = json.loads(_run([str(built / "client"), *arguments], load.cpu))
    return _row(seen["requests"], seen["chunks"], seen["wall_s"], seen["cpu_s"])


def ours(load: Closed, work: Path, cpus: Sequence[int] = (), beside: int | None = None) -> dict[str, float]:
    """The load generator as a test run uses it; the records stay in ``work``. ``cpus``: a worker on each;
    ``beside``: where the coordinator writes the records, else on the same core."""
    options = {**asdict(load), "work": str(work), "cpus": list(cpus), "beside": beside}
    return _child("closed", options, {load.cpu, *cpus, *(() if beside is None else (beside,))})


def ours_open(port: int, rate: float, seconds: float, cpu: int, work: Path, beside: int) -> dict[str, float]:
    """The same, in open loop."""
    options = {"port": port, "rate": rate, "seconds": seconds, "work": str(work)}
    return _child("open", {**options, "cpus": [cpu], "beside": beside}, {cpu, beside})


def naive(load: Closed) -> dict[str, float] | None:
    """The usual script: aiohttp, a session for each request, json of each line. ``None`` without aiohttp."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        print("aiohttp is not installed: no column for the usual script (pip install aiohttp)")
        return None
    return _child("naive", asdict(load), {load.cpu})


def _child(kind: str, options: dict[str, Any], cpus: set[int]) -> dict[str, float]:
    found: dict[str, float] = json.loads(
        _run([sys.executable, __file__, kind, json.dumps(options)], *cpus).splitlines()[-1]
    )
    return found


def first() -> list[str]:
    """What a command begins with that is to go before everything else on the machine, if it is."""
    return ["chrt", "-f", "1"] if os.environ.get(PRIORITY) else []


def _run(command: list[str], *cpus: int) -> str:
    on = [*first(), "taskset", "-c", ",".join(map(str, cpus))]
    done = subprocess.run([*on, *command], stdout=subprocess.PIPE, timeout=_LIMIT_S, check=True, text=True)
    return done.stdout


def _row(requests: int, chunks: int, wall_s: float, cpu_s: float) -> dict[str, float]:
    return {
        "req/s": requests / wall_s,
        "chunks/s": chunks / wall_s,
        "CPU us per request": cpu_s / requests * 1e6,
        "chunks per CPU second": chunks / cpu_s,
    }


def _measured(plan: Any, options: dict[str, Any]) -> dict[str, float]:
    """Runs a plan by the shipped path: a process of its own, records to a file."""
    port, cpus, beside = options["port"], options["cpus"], options["beside"]
    work, workers = Path(options["work"]), max(1, len(cpus))
    from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
    from pytest_llmbench.generator.workers.protocol import Address
    from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
    from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
    from pytest_llmbench.timing import MonotonicClock, anchor

    path = work / "records.jsonl"
    address = Address(f"http://127.0.0.1:{port}/v1")
    with (
        RecordsWriter(path, RecordsHeader(anchor(MonotonicClock()))) as writer,
        DistributedLoadGenerator(address, "openai-chat", workers=workers, model="m", cpus=cpus) as generator,
    ):
        in_flight = plan.load.concurrency if isinstance(plan.load, ClosedLoop) else 16
        warm_up = LoadPlan("warm-up", plan.workload, ClosedLoop(in_flight), 2 * in_flight, _WARM_UP_SEED)
        generator.run(warm_up)
        if os.environ.get(PRIORITY):  # the worker keeps it; what writes records must not hold it up
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        if beside is not None:
            os.sched_setaffinity(0, {beside})
        began = time.process_time()
        seen = generator.run(plan, writer.write)
        own_s = time.process_time() - began
    counts, check = seen.records.counts(), seen.selfcheck
    if counts["ok"] != counts["submitted"]:
        raise SystemExit(f"the server failed some requests, so there is nothing to compare: {counts}")
    chunks, requests = len(seen.records.chunk_ns), len(seen.records)
    cpu_s = (check.cpu_share or 0.0) * seen.duration_s * workers
    row = _row(requests, chunks, seen.duration_s, cpu_s)
    row["share of a core"] = check.cpu_share or 0.0
    row["coordinator us per request"] = own_s / requests * 1e6
    row["coalesced chunks"] = check.coalesced_chunks / chunks
    if check.send_lag_p50_ns is not None and check.send_lag_p99_ns is not None:
        row["send lag P50 ms"] = check.send_lag_p50_ns / 1e6
        row["send lag P99 ms"] = check.send_lag_p99_ns / 1e6
    print(f"stamps: {check.stamp_source}; loop: {check.event_loop}", file=sys.stderr)
    return row


def _closed(options: dict[str, Any]) -> dict[str, float]:
    from pytest_llmbench.model.plan import ClosedLoop, LoadPlan

    load = ClosedLoop(options["in_flight"])
    plan = LoadPlan("closed", _workload(options["tokens"]), load, options["requests"], _SEED)
    return _measured(plan, options)


def _open(options: dict[str, Any]) -> dict[str, float]:
    from pytest_llmbench.model.plan import LoadPlan, OpenLoop

    count = round(options["rate"] * options["seconds"])
    plan = LoadPlan("open", _workload(64), OpenLoop(options["rate"]), count, _SEED)
    return _measured(plan, options)


def _workload(tokens: int) -> Any:
    from pytest_llmbench.workloads.lengths import Fixed
    from pytest_llmbench.workloads.synthetic import SyntheticWorkload

    return SyntheticWorkload("table", Fixed(_INPUT_TOKENS), Fixed(tokens))


async def _naive(load: Closed) -> dict[str, float]:
    import aiohttp

    url = f"http://127.0.0.1:{load.port}/v1/chat/completions"
    body = {"model": "m", "messages": [{"role": "user", "content": "a" * 199}], "stream": True}
    left, stamps = load.requests, [0.0]

    async def one() -> None:
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            async for line in response.content:
                text = line.decode().strip()
                if not text.startswith("data: ") or text == "data: [DONE]":
                    continue
                choices = json.loads(text[6:])["choices"]
                if choices and choices[0]["delta"].get("content"):
                    stamps.append(time.perf_counter())

    async def slot() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await one()

    began, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(slot() for _ in range(load.in_flight)))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    return _row(load.requests, len(stamps) - 1, wall_s, cpu_s)


def main() -> None:
    kind, options = sys.argv[1], json.loads(sys.argv[2])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    row = (
        asyncio.run(_naive(Closed(**options)))
        if kind == "naive"
        else {"closed": _closed, "open": _open}[kind](options)
    )
    print(json.dumps(row))


if __name__ == "__main__":
    main()

__all__ = ["PRIORITY", "Closed", "first", "naive", "native", "ours", "ours_open"]
