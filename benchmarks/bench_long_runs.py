"""What a long run takes: memory and time of a procedure in virtual time, from plan to result.

    python benchmarks/bench_long_runs.py 100000 1000000 10000000
    python benchmarks/bench_long_runs.py --records 1000000
    python benchmarks/bench_long_runs.py --test itl 300000

Each size runs in a process of its own, through the same ``drive`` and the same procedure as a session: that
of TTFT with replies of 2 to 4 tokens, or that of ITL with replies of 64.
``--records`` also writes the records file and reads it back. Two figures of memory: the most that the process
had to itself (anonymous), and the most that was resident in all, which counts what it had looked at of the
files that columns lie in; the system takes that back when it needs it. Both are without what an idle process
of the same imports has, which stands in the first line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.methodology.sections import itl, ttft
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter, read_runs
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SHORT = SyntheticWorkload("short-replies", Uniform(4, 12), Uniform(2, 4))
RATE = 2000.0
STREAMED = SyntheticWorkload("streamed-replies", Uniform(4, 12), Fixed(64))
STREAMED_RATE = 200.0


class Memory:
    """Peaks of this process in MiB, looked at every 20 ms (Linux)."""

    def __init__(self) -> None:
        self.anonymous = self.resident = 0.0
        threading.Thread(target=self._watch, daemon=True).start()

    def look(self) -> None:
        self.anonymous = max(self.anonymous, self.of_now("RssAnon:"))
        self.resident = max(self.resident, self.of_now("VmRSS:"))

    def _watch(self) -> None:
        while True:
            self.look()
            time.sleep(0.02)

    @staticmethod
    def of_now(name: str) -> float:
        """In MiB."""
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.split(name)[1].split()[0]) / 1024


def procedure_of(test: str, requests: int) -> Any:
    """The procedure of one load, and the metric to show of it."""
    if test == "itl":
        setting = Setting(workload=STREAMED, seed=7, facts=Facts(), warmup=WarmupPolicy())
        level = {"capacity_rps": STREAMED_RATE, "levels_percent": (100.0,), "requests": requests}
        return itl.TEST.procedure(itl.Parameters(workload=STREAMED, **level), setting), "itl.p99"
    setting = Setting(workload=SHORT, seed=7, facts=Facts(), warmup=WarmupPolicy())
    parameters = ttft.Parameters(workload=SHORT, rate=RATE, requests=requests, runs=1)
    return ttft.TEST.procedure(parameters, setting), "ttft.p99"


def run(requests: int, records: bool, test: str = "ttft") -> dict[str, Any]:
    """One size, in this process."""
    memory = Memory()
    memory.look()
    idle = memory.anonymous, memory.resident
    procedure, shown = procedure_of(test, requests)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "records.jsonl"
        began = time.perf_counter()
        ended: list[tuple[float, float]] = []

        def measured(execute: Any) -> Any:
            def once(plan: Any) -> Any:
                seen = execute(plan)
                ended.append((time.perf_counter(), memory.anonymous))
                return seen

            return once

        if records:
            with RecordsWriter(path, RecordsHeader(ClockAnchor(0, 0))) as writer:
                engine = ReplayEngine(parse_scenario("fast"))
                keep = partial(engine.run, on_record=lambda row: writer.write(row, str(row.phase)))
                result = drive(procedure, measured(keep))
        else:
            engine = ReplayEngine(parse_scenario("fast"))
            result = drive(procedure, measured(engine.run))
        done = time.perf_counter()
        found = {
            "requests": requests,
            "idle": idle,
            "measured_s": ended[-1][0] - began,
            "analysed_s": done - ended[-1][0],
            "measuring_anonymous": ended[-1][1] - idle[0],
            # Not ru_maxrss: that of a child begins with what its parent had.
            "max_rss": Memory.of_now("VmHWM:"),
            "anonymous": memory.anonymous - idle[0],
            "resident": memory.resident - idle[1],
            "p99_ms": result.metrics[shown].point,
            "samples": result.metrics[shown].n,
        }
        if records:
            memory.anonymous = 0.0
            seen = result.observations[-1].records
            del result, engine
            (again,) = (run.records for run in read_runs(path).runs if run.label == "measure")
            found |= {
                "file_mib": path.stat().st_size / 2**20,
                "read_s": time.perf_counter() - done,
                "read_anonymous": memory.anonymous - idle[0],
                "same": bool((again.first_content_ns == seen.first_content_ns).all()),
            }
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("requests", nargs="*", type=int, default=[100_000, 1_000_000])
    parser.add_argument("--records", action="store_true", help="write the records file and read it back")
    parser.add_argument("--test", choices=("ttft", "itl"), default="ttft", help="whose procedure")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.here:
        print(json.dumps(run(asked.requests[0], asked.records, asked.test)))
        return
    for place, requests in enumerate(asked.requests):
        command = [
            sys.executable,
            __file__,
            "--here",
            str(requests),
            *("--test", asked.test),
            *(["--records"] if asked.records else []),
        ]
        told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        if place == 0:
            print(f"idle: {told['idle'][0]:.0f} MiB anonymous, {told['idle'][1]:.0f} MiB resident")
        print(
            f"{requests:>12,} requests: replayed in {told['measured_s']:.1f} s, "
            f"analysed in {told['analysed_s']:.1f} s; anonymous {told['measuring_anonymous']:.0f} MiB while "
            f"measuring, {told['anonymous']:.0f} MiB in all; resident {told['resident']:.0f} MiB; "
            f"{asked.test.upper()} P99 {told['p99_ms']:.3f} ms of {told['samples']:,}"
        )
        if asked.records:
            print(
                f"{'':>12}  records file of {told['file_mib']:.0f} MiB read back in {told['read_s']:.1f} s "
                f"with {told['read_anonymous']:.0f} MiB; the same: {told['same']}"
            )


if __name__ == "__main__":
    main()
