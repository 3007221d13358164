"""How long until the measuring process sends its first request, and how much memory does it take?

    python benchmarks/bench_start.py [--repetitions 7] [--rate 100] [--seconds 10]

Against the bundled known-delay server, from the call of ``run`` with no process started, until the first
request leaves: interpreter, imports, greeting, requests drawn and encoded, connections opened, the common
start 20 ms ahead. Then the same process is given a load of ``--rate`` for ``--seconds``, and its peak
resident memory is read from the system (VmHWM), with the tokenizer that it loads after its first plan.
The first repetition also warms the disk cache; median and range are of the others. Let nothing else run.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import psutil

from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.simulator.known_delay import MODEL, KnownDelayServer, Script
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

WORKLOAD = SyntheticWorkload("start", Fixed(512), Fixed(64))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    options = parser.parse_args()
    reference_tokenizer()  # a session has drawn before: that of its own process is there
    starts, memory = [], []
    with KnownDelayServer() as server:
        url = server.url(Script(ttft_us=20_000, itl_us=5_000, tokens=64))
        for number in range(options.repetitions + 1):
            start_ms, peak_mib = one(url, options.rate, options.seconds)
            told = f"start to first request {start_ms:6.0f} ms, peak memory {peak_mib:5.1f} MiB"
            print(f"{'warm-up' if number == 0 else f'run {number}':8s} {told}", flush=True)
            if number:
                starts.append(start_ms)
                memory.append(peak_mib)
            server.truth()
    print(f"start to first request: {spread(starts)} ms (target 500)")
    print(f"peak memory at {options.rate:g} req/s: {spread(memory)} MiB (target 100)")


def one(url: str, rate: float, seconds: float) -> tuple[float, float]:
    with DistributedLoadGenerator(
        Address(url), "openai-chat", workers=1, model=MODEL, count_text=True, counts_early=False
    ) as generator:
        began_ns = time.monotonic_ns()
        seen = generator.run(LoadPlan("first", WORKLOAD, OpenLoop(rate, "uniform"), 2, seed=1))
        start_ms = (int(seen.records.dispatched_ns.min()) - began_ns) / 1e6
        generator.run(LoadPlan("load", WORKLOAD, OpenLoop(rate), round(rate * seconds), seed=1, first=2))
        workers = [p.pid for p in psutil.Process().children() if "workers.process" in " ".join(p.cmdline())]
        return start_ms, sum(map(peak_mib, workers))


def peak_mib(pid: int) -> float:
    """The most resident memory that a process has had."""
    for line in Path(f"/proc/{pid}/status").read_text("ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return psutil.Process(pid).memory_info().rss / 1024**2  # no such line here: as it is now


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


if __name__ == "__main__":
    main()
