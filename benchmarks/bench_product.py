"""What a user runs, as a whole: real ``pytest`` beside a client in C and the usual script.

    python benchmarks/bench_product.py [--quick] [--rounds 3] [--only NAME ...] [--python PATH]

Needs Linux, two cores and a C compiler (``cc``); aiohttp for the usual script's column. The server of
``benchmarks/native`` has the first core. ``pytest`` with all its processes has the second one, or both; the
others have the second. They take turns, and each figure is the median of the rounds with the least and the
greatest beside it. The workload is the default one.

CPU is that of all processes from start to exit, reports and imports included; *further* is the CPU of each
request beyond the first quarter, from a shorter session of the same kind. Memory is the greatest sum of the
proportional set sizes of the tree. ``--python`` takes another environment, to hold an older version against
this one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from bench_table import Row, host, spread
from table_clients import Closed, naive, native
from table_servers import KnownServer, compiled

from pytest_llmbench.store.record_line import encoded_line, row_reader, whole_line
from pytest_llmbench.store.records_file import records_lines

SERVER_CPU, CLIENT_CPU = 0, 1
ONE, TWO = (CLIENT_CPU,), (SERVER_CPU, CLIENT_CPU)
_LIMIT_S = 300.0
SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=60_000, {load}, requests={requests})
def test_load(): ...
"""


@dataclass(frozen=True)
class Session:
    """One test in a session of pytest against the server of known delays."""

    load: str
    requests: int
    tokens: int
    cpus: tuple[int, ...]
    ttft_us: int = 0
    itl_us: int = 0
    flags: tuple[str, ...] = ()

    def run(self, python: str, built: Path, work: Path, requests: int) -> Row:
        delays = {"ttft_us": self.ttft_us, "itl_us": self.itl_us}
        with KnownServer(built, work, self.tokens, cpu=SERVER_CPU, **delays) as server:
            row, records = self._pytest(python, work, server.port, requests)
        if self.ttft_us:
            row |= server.errors(records)
        return row

    def _pytest(self, python: str, work: Path, port: int, requests: int) -> tuple[Row, Path]:
        with tempfile.TemporaryDirectory(dir=work) as name:
            suite = Path(name) / "test_load.py"
            suite.write_text(SUITE.format(load=self.load, requests=requests), "utf-8")
            command = pytest_command(python, port)
            before, began_ns = _children_s(), time.monotonic_ns()
            process = subprocess.Popen(
                ["taskset", "-c", ",".join(map(str, self.cpus)), *command, *self.flags, suite.name],
                cwd=name,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            most_mib = _watched(process)
            said = process.stdout.read() if process.stdout is not None else ""
            wall_s = (time.monotonic_ns() - began_ns) / 1e9
            out = Path(name) / "out"
            row = _row(out, said, began_ns)
            row |= {"wall s": wall_s, "CPU s": _children_s() - before, "memory MiB": most_mib}
            kept = work / "records.jsonl"
            kept.write_text("".join(_lines(out)), "utf-8")
            return row, kept


def pytest_command(python: str, port: int) -> list[str]:
    """``pytest`` against the server at ``port``, its report in ``out``; the suite is to follow."""
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    return [*command, f"--llm-endpoint=http://127.0.0.1:{port}/v1", "--llm-remeasure=0", "--llm-report=out"]


def _lines(out: Path) -> list[str]:
    """Whole lines of the records, the header first."""
    (path,) = (out / "records").glob("*.jsonl*")
    with records_lines(path) as lines:
        first = next(lines)
        row_of = row_reader(json.loads(first))
        return [first.decode(), *(encoded_line(whole_line(*row_of(line))).decode() for line in lines)]


def _row(out: Path, said: str, began_ns: int) -> Row:
    if not (out / "records").is_dir():
        raise SystemExit(f"pytest measured nothing:\n{said}")
    records = [json.loads(line) for line in _lines(out)[1:]]
    measured = [each for each in records if each["phase"] == "measure"]
    seconds = (max(e["finished_ns"] for e in measured) - min(e["dispatched_ns"] for e in measured)) / 1e9
    first_ns = min(each["dispatched_ns"] for each in records)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return {
        "requests": float(len(measured)),
        "req/s": len(measured) / seconds,
        "start to first request s": (first_ns - began_ns) / 1e9,
        "report files KiB": size / 1024,
        "void": float("INVALID" in said),
    }


def _watched(process: subprocess.Popen[str]) -> float:
    """The greatest proportional set size of a process and all that it started, in MiB, until it ends."""
    most, root = 0.0, psutil.Process(process.pid)
    give_up = time.monotonic() + _LIMIT_S
    while process.poll() is None:
        if time.monotonic() > give_up:
            process.kill()
        with suppress(psutil.NoSuchProcess):
            most = max(most, sum(map(_pss_mib, [root, *root.children(recursive=True)])))
        time.sleep(0.25)
    return most


def _pss_mib(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii").splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass
class Scenario:
    """Sessions and other clients that take turns; ``rows[client]`` has a row for each round."""

    name: str
    title: str
    session: Session
    flat_out: bool = False
    """The client in C and the usual script run beside it."""
    rows: dict[str, list[Row]] = field(default_factory=dict)

    def round(self, python: str, built: Path, work: Path, quick: bool) -> Mapping[str, Row]:
        count = self.session.requests // (4 if quick else 1)
        row = self.session.run(python, built, work, count)
        found = {"pytest": row}
        if not self.flat_out:
            return found
        few = self.session.run(python, built, work, count // 4)
        more = row["requests"] - few["requests"]
        row["CPU us per further request"] = (row["CPU s"] - few["CPU s"]) / more * 1e6
        row["CPU us per request"] = row["CPU s"] / row["requests"] * 1e6
        with KnownServer(built, work, self.session.tokens, cpu=SERVER_CPU) as server:
            load = Closed(server.port, 64, 4 * count, self.session.tokens, CLIENT_CPU)
            found["C"] = native(built, load)
            script = naive(Closed(server.port, 64, max(128, count // 10), self.session.tokens, CLIENT_CPU))
        return found if script is None else {**found, "naive": script}


SCENARIOS = (
    Scenario(
        "cap16", "64 in flight, 16 tokens, all on one core", Session("concurrency=64", 20_000, 16, ONE), True
    ),
    Scenario(
        "cap16two",
        "the same on two cores, one of them the server's",
        Session("concurrency=64", 20_000, 16, TWO),
        True,
    ),
    Scenario(
        "cap256",
        "64 in flight, 256 tokens, all on one core",
        Session("concurrency=64", 4_000, 256, ONE),
        True,
    ),
    Scenario(
        "poisson100one",
        "100 req/s of 64 tokens, all on one core",
        Session("rate=100", 1_000, 64, ONE, 20_000, 5_000),
    ),
    Scenario(
        "poisson100two",
        "100 req/s of 64 tokens, on two cores, one of them the server's",
        Session("rate=100", 1_000, 64, TWO, 20_000, 5_000),
    ),
    Scenario(
        "paced256",
        "256 streams, a chunk every 5 ms, on two cores, one of them the server's",
        Session("concurrency=256", 4_000, 64, TWO, 20_000, 5_000),
    ),
)


def report(scenario: Scenario) -> None:
    print(f"\n### {scenario.name}: {scenario.title}\n")
    for client, rows in scenario.rows.items():
        for name in rows[0]:
            print(f"- {client}: {name} {spread([row[name] for row in rows])}")
    own = scenario.rows["pytest"]
    for other in ("C", "naive"):
        pairs = list(zip(own, scenario.rows.get(other, ()), strict=False))
        if pairs:
            print(f"- **pytest / {other}: {spread([a['req/s'] / b['req/s'] for a, b in pairs])} by rate**")
            dearer = [a["CPU us per further request"] / b["CPU us per request"] for a, b in pairs]
            print(f"- **pytest / {other}: {spread(dearer)} by CPU of a further request**")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", choices=[scenario.name for scenario in SCENARIOS], default=None)
    parser.add_argument("--python", default=sys.executable, help="the interpreter with the plugin under test")
    options = parser.parse_args()
    if not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2:
        parser.error("two cores and Linux are needed: server and pytest have one each")
    print(f"host: {host()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="llmbench-product-") as directory:
        work = Path(directory)
        built = compiled(work)
        for scenario in SCENARIOS:
            if options.only and scenario.name not in options.only:
                continue
            for _ in range(options.rounds):
                for client, row in scenario.round(options.python, built, work, options.quick).items():
                    scenario.rows.setdefault(client, []).append(row)
            report(scenario)
    print(f"\nhost afterwards: {host()}")


if __name__ == "__main__":
    main()
