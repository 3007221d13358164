"""The load generator beside a client in C and the usual script: the table of benchmarks/performance.md.

    python benchmarks/bench_table.py [--quick] [--rounds 5] [--only NAME ...]

Needs Linux, two cores and a C compiler (``cc``); aiohttp for the usual script's column. The server and the C
client of ``benchmarks/native`` are compiled into a temporary directory. The server has the first core, the
generator the second; those that are compared take turns, round by round, and each figure is the median of the
rounds with the least and the greatest beside it.

What is measured is what a test run uses: a measuring process of its own, kernel stamps where there are any,
all columns, records to a file. ``CPU`` is user and system time of the process that sends and reads, so its
ratios bear a busy machine better than rates do. The coordinator's own time (records to JSON) is told apart.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from table_clients import PRIORITY, Closed, naive, native, ours, ours_open
from table_servers import KnownServer, compiled

SERVER_CPU, CLIENT_CPU = 0, 1
Row = dict[str, float]


@dataclass
class Scenario:
    """Clients that take turns against servers of one kind; ``rows[client]`` has a row for each round."""

    name: str
    title: str
    run: Callable[[Path, Path, bool], Mapping[str, Row]]
    rows: dict[str, list[Row]] = field(default_factory=dict)


def flat_out(tokens: int, requests: int) -> Callable[[Path, Path, bool], Mapping[str, Row]]:
    """64 in flight, all of a reply at once."""

    def run(built: Path, work: Path, quick: bool) -> Mapping[str, Row]:
        count = requests // (4 if quick else 1)
        with KnownServer(built, work, tokens, cpu=SERVER_CPU) as server:
            load = Closed(server.port, 64, count, tokens, CLIENT_CPU)
            found = {"C": native(built, load), "ours": ours(load, work)}
            few = Closed(server.port, 64, max(128, count // 25), tokens, CLIENT_CPU)
            script = naive(few)
            return found if script is None else {**found, "naive": script}

    return run


def paced(built: Path, work: Path, quick: bool) -> Mapping[str, Row]:
    """256 streams of 64 tokens, a chunk every 5 ms each."""
    with KnownServer(built, work, 64, ttft_us=20_000, itl_us=5_000, cpu=SERVER_CPU) as server:
        load = Closed(server.port, 256, 1024 if quick else 4096, 64, CLIENT_CPU)
        row = ours(load, work, (CLIENT_CPU,), beside=SERVER_CPU)
    return {"ours": {**row, **server.errors(work / "records.jsonl")}}


def poisson(rate: float) -> Callable[[Path, Path, bool], Mapping[str, Row]]:
    """64 tokens, TTFT 20 ms, ITL 5 ms."""

    def run(built: Path, work: Path, quick: bool) -> Mapping[str, Row]:
        with KnownServer(built, work, 64, ttft_us=20_000, itl_us=5_000, cpu=SERVER_CPU) as server:
            row = ours_open(server.port, rate, 2.0 if quick else 6.0, CLIENT_CPU, work, SERVER_CPU)
        return {"ours": {**row, **server.errors(work / "records.jsonl")}}

    return run


def two_workers(built: Path, work: Path, quick: bool) -> Mapping[str, Row]:
    """A worker and its server share a core: one such core, then two."""
    count = 10_000 if quick else 40_000
    with KnownServer(built, work, 16, cpu=CLIENT_CPU) as server:
        one = ours(Closed(server.port, 64, count, 16, CLIENT_CPU), work)
    with (
        KnownServer(built, work, 16, cpu=CLIENT_CPU) as server,
        KnownServer(built, work, 16, cpu=SERVER_CPU, port=server.port),
    ):
        both = Closed(server.port, 128, 2 * count, 16, CLIENT_CPU)
        two = ours(both, work, cpus=(CLIENT_CPU, SERVER_CPU))
    return {"one": one, "two": two}


SCENARIOS = (
    Scenario("cap16", "64 in flight, replies of 16 tokens at once", flat_out(16, 40_000)),
    Scenario("flood256", "64 in flight, replies of 256 tokens at once", flat_out(256, 4_000)),
    Scenario("paced256", "256 streams, a chunk every 5 ms", paced),
    *(
        Scenario(f"poisson{rate}", f"Poisson, {rate} req/s, 64 tokens", poisson(rate))
        for rate in (20, 100, 200)
    ),
    Scenario("workers2", "two workers and servers on two cores, over one of each on one", two_workers),
)


def spread(values: Sequence[float]) -> str:
    """Median, least and greatest."""
    return f"{statistics.median(values):,.4g} ({min(values):,.4g} to {max(values):,.4g})"


def ratios(scenario: Scenario, figure: str, client: str, other: str) -> str:
    pairs = zip(scenario.rows[client], scenario.rows[other], strict=False)
    return spread([one[figure] / two[figure] for one, two in pairs])


def report(scenario: Scenario) -> None:
    print(f"\n### {scenario.name}: {scenario.title}\n")
    for client, rows in scenario.rows.items():
        for name in rows[0]:
            print(f"- {client}: {name} {spread([row[name] for row in rows])}")
    compared = [
        pair for pair in (("ours", "C"), ("ours", "naive"), ("two", "one")) if pair[1] in scenario.rows
    ]
    for client, other in compared:
        print(f"- **{client} / {other}: {ratios(scenario, 'req/s', client, other)} by rate**")
        per_cpu = ratios(scenario, "CPU us per request", other, client)
        print(f"- **{client} / {other}: {per_cpu} by requests per CPU second**")


def host() -> str:
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    load = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    return (
        f"{model}, {os.cpu_count()} cores, Linux {platform.release()}, Python {platform.python_version()}; "
        f"load average {load}"
    )


def start_and_memory() -> None:
    """What ``bench_start.py`` says of start time and memory, where it is there."""
    script = Path(__file__).with_name("bench_start.py")
    if script.exists():
        print("\n### start and memory\n", flush=True)
        with suppress(subprocess.TimeoutExpired):
            subprocess.run([sys.executable, script], check=False, timeout=300)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="two short rounds: does it work?")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=[scenario.name for scenario in SCENARIOS], default=None)
    parser.add_argument(
        "--priority",
        action="store_true",
        help="real-time priority (root): for a machine that does other work",
    )
    options = parser.parse_args()
    os.environ.update({PRIORITY: "1"} if options.priority else {})
    if not sys.platform.startswith("linux") or len(os.sched_getaffinity(0)) < 2:
        parser.error("two cores and Linux are needed: server and generator have one each")
    chosen = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    print(f"host: {host()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="llmbench-table-") as directory:
        work = Path(directory)
        built = compiled(work)
        for scenario in chosen:
            for _ in range(2 if options.quick else options.rounds):
                for client, row in scenario.run(built, work, options.quick).items():
                    scenario.rows.setdefault(client, []).append(row)
            report(scenario)
            sys.stdout.flush()
    if not options.only:
        start_and_memory()
    print(f"\nhost afterwards: {host()}")


if __name__ == "__main__":
    main()
