"""What a further request costs in every thread of a session, of one version or of several in turns.

    python benchmarks/bench_threads.py [--requests 20000] [--tokens 16] [--rounds 3] [NAME=CHECKOUT ...]

Needs what ``bench_product.py`` needs. Sessions of ``pytest`` against the server of known delays, 64 in
flight, all on one core, a long one and one a quarter as long; each thread says at its end how much CPU it has
had. Printed is the difference between the two by request, so what a session costs however short it is cancels
out: the median of the rounds with the least and the greatest beside it. Each CHECKOUT is a source tree of
this project, this one if none is given; they take turns, in one order and then in the other.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from bench_product import CLIENT_CPU, SERVER_CPU, SUITE, pytest_command
from table_servers import KnownServer, compiled

_HOOK = """
import atexit, os, sys, threading, time

_whose = "measuring" if any("workers.process" in each for each in sys.orig_argv) else "pytest's"


def _tell(name, cpu_ns):
    with open(os.environ["LLMBENCH_THREADS"], "a", encoding="utf-8") as file:
        file.write(f"{_whose}\\t{name}\\t{cpu_ns}\\n")


def _bootstrap(self, run=threading.Thread._bootstrap_inner):
    try:
        run(self)
    finally:
        _tell(self.name, time.thread_time_ns())


threading.Thread._bootstrap_inner = _bootstrap
atexit.register(lambda: _tell("MainThread", time.thread_time_ns()))
atexit.register(lambda: _tell("all threads", time.process_time_ns()))
"""
"""Imported by every Python of a session, as ``sitecustomize``."""
_NUMBER = re.compile(r"[-_]\d+.*$")
Cpu = dict[tuple[str, str], float]
"""µs by process and thread."""


def session(checkout: Path, requests: int, tokens: int, built: Path, work: Path) -> Cpu:
    with (
        tempfile.TemporaryDirectory(dir=work) as name,
        KnownServer(built, work, tokens, cpu=SERVER_CPU) as server,
    ):
        suite, told, hook = (Path(name) / each for each in ("test_load.py", "threads", "sitecustomize.py"))
        suite.write_text(SUITE.format(load="concurrency=64", requests=requests), "utf-8")
        hook.write_text(_HOOK, "utf-8")
        path = os.pathsep.join((name, str(checkout)))
        command = ["taskset", "-c", str(CLIENT_CPU), *pytest_command(sys.executable, server.port), suite.name]
        done = subprocess.run(
            command,
            cwd=name,
            env=os.environ | {"PYTHONPATH": path, "LLMBENCH_THREADS": str(told)},
            capture_output=True,
            text=True,
            check=False,
        )
        if not (Path(name) / "out" / "records").is_dir():
            raise SystemExit(f"pytest measured nothing:\n{done.stdout}{done.stderr}")
        found: Cpu = defaultdict(float)
        for line in told.read_text("utf-8").splitlines():
            whose, thread, cpu_ns = line.split("\t")
            found[whose, _NUMBER.sub("", thread)] += int(cpu_ns) / 1e3
        found["both", "all threads"] = sum(us for (_, thread), us in found.items() if thread == "all threads")
        return found


def further(checkout: Path, requests: int, tokens: int, built: Path, work: Path) -> Cpu:
    few = requests // 4
    long, short = (session(checkout, count, tokens, built, work) for count in (requests, few))
    return {place: (us - short.get(place, 0.0)) / (requests - few) for place, us in long.items()}


def report(rounds: dict[str, list[Cpu]]) -> None:
    places = {place for each in rounds.values() for cpu in each for place in cpu}
    of = {p: [[cpu.get(p, 0.0) for cpu in each] for each in rounds.values()] for p in places}
    print("| process | thread | " + " | ".join(rounds) + " |\n" + "|---" * (2 + len(rounds)) + "|")
    for whose, thread in sorted(places, key=lambda place: -max(map(statistics.median, of[place]))):
        told = [
            f"{statistics.median(each):.1f} ({min(each):.1f} to {max(each):.1f})"
            for each in of[whose, thread]
        ]
        if any(max(each) >= 0.5 for each in of[whose, thread]):
            print(f"| {whose} | {thread} | {' | '.join(told)} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", metavar="NAME=CHECKOUT")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    given = options.versions or [f"this={Path(__file__).parents[1]}"]
    checkouts = {name: Path(path).absolute() for name, _, path in (each.partition("=") for each in given)}
    rounds: dict[str, list[Cpu]] = {name: [] for name in checkouts}
    with tempfile.TemporaryDirectory(prefix="llmbench-threads-") as directory:
        work = Path(directory)
        built = compiled(work)
        for number in range(options.rounds):
            for name in list(checkouts)[:: -1 if number % 2 else 1]:
                found = further(checkouts[name], options.requests, options.tokens, built, work)
                rounds[name].append(found)
                print(f"{name}: {found['both', 'all threads']:.1f} µs", file=sys.stderr, flush=True)
    report(rounds)


if __name__ == "__main__":
    main()
