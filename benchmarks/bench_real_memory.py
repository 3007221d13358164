"""What a long real load takes: memory of the coordinator and of its measuring process, by number of requests.

    python benchmarks/bench_real_memory.py 100000 400000
    python benchmarks/bench_real_memory.py --open 100000 400000

Each size runs in a process of its own, by the shipped path: requests drawn and dealt, a worker on one core
and the C server of ``native/`` on the other, every column, records to a file. A closed loop of 64; with
``--open`` a Poisson process. Anonymous memory is what the system cannot take back (RssAnon; columns of long
runs lie in files that are mapped); it is looked at every 20 ms, until all is gathered.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from table_servers import KnownServer, compiled

from pytest_llmbench.generator.loop_thread import Progress
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import OnRecord
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter
from pytest_llmbench.timing import MonotonicClock, anchor
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

TOKENS = 4
WORKLOAD = SyntheticWorkload("short", Fixed(16), Fixed(TOKENS))
IN_FLIGHT = 64
RATE = 2000.0


class Watch:
    """Peaks of anonymous memory in MiB, of this process and one more, and in which phase they were."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self._pids = {"coordinator": "self", "worker": str(worker)}
        self.phase = "dealing"
        self.peaks: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            for who, pid in self._pids.items():
                key = f"{who}, {self.phase}"
                self.peaks[key] = max(self.peaks.get(key, 0.0), memory_of(pid, "RssAnon:"))


def memory_of(pid: str, name: str) -> float:
    """In MiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.split(name)[1].split()[0]) / 1024


def run(requests: int, as_open: bool) -> dict[str, Any]:
    """One size, in this process."""
    watches: list[Watch] = []

    def running(_: Progress) -> None:
        for watch in watches:
            watch.phase = "load"

    with tempfile.TemporaryDirectory(prefix="llmbench-real-") as name:
        work = Path(name)
        header = RecordsHeader(anchor(MonotonicClock()))
        with (
            KnownServer(compiled(work), work, TOKENS, cpu=0) as server,
            RecordsWriter(work / "records.jsonl", header) as writer,
            DistributedLoadGenerator(
                Address(f"http://127.0.0.1:{server.port}/v1"),
                "openai-chat",
                workers=1,
                model="m",
                on_progress=running,
                cpus=[1],
            ) as generator,
        ):
            generator.run(LoadPlan("warm-up", WORKLOAD, ClosedLoop(IN_FLIGHT), 2 * IN_FLIGHT, seed=6))
            watches.append(Watch(worker_pid()))
            load = OpenLoop(RATE) if as_open else ClosedLoop(IN_FLIGHT)
            plan = LoadPlan("measure", WORKLOAD, load, requests, seed=7)
            return measured(generator, plan, writer.write, watches[0])


def measured(
    generator: DistributedLoadGenerator, plan: LoadPlan, keep: OnRecord, watch: Watch
) -> dict[str, Any]:
    pids = ("self", str(watch.worker))
    idle = [memory_of(pid, "RssAnon:") for pid in pids]
    began_ns = time.monotonic_ns()
    seen = generator.run(plan, keep)
    ended_ns = time.monotonic_ns()
    watch.end()
    if seen.records.counts()["ok"] != plan.requests:
        raise SystemExit(f"the server failed some requests: {seen.records.counts()}")
    return {
        "idle": idle,
        "peaks": watch.peaks,
        "worker_resident": memory_of(pids[1], "VmHWM:"),
        "dealt_s": (seen.started_ns - began_ns) / 1e9,
        "load_s": seen.duration_s,
        "after_s": (ended_ns - seen.ended_ns) / 1e9,
    }


def worker_pid() -> int:
    (worker,) = (
        child.pid for child in psutil.Process().children() if "workers.process" in " ".join(child.cmdline())
    )
    return worker


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("requests", nargs="*", type=int, default=[100_000, 400_000])
    parser.add_argument("--open", action="store_true", help=f"an open loop of {RATE:g} requests per second")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(run(asked.requests[0], asked.open)))
        return
    for requests in asked.requests:
        command = [sys.executable, __file__, "--here", str(requests), *(["--open"] if asked.open else [])]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        print(
            f"{requests:>10,} requests: dealt in {told['dealt_s']:.1f} s, sent in {told['load_s']:.1f} s, "
            f"gathered in {told['after_s']:.1f} s; idle: coordinator {told['idle'][0]:.0f} MiB, worker "
            f"{told['idle'][1]:.0f} MiB; worker's peak in all {told['worker_resident']:.0f} MiB"
        )
        for what, peak in told["peaks"].items():
            print(f"{'':>20} {what:24} {peak:6.0f} MiB")


if __name__ == "__main__":
    main()
