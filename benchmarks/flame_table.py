"""What a further request costs in every process and thread of a session, by the functions that are at work.

    python benchmarks/flame_table.py [--requests 20000] [--tokens 16] [--least 1.0] [--py-spy PATH]

Needs what ``bench_product.py`` needs, and py-spy (``pip install py-spy``; elsewhere installed, its path). Two
sessions of ``pytest`` against the server of known delays, 64 in flight, a long one and one a quarter as long:
py-spy says where each thread is, the kernel (``/proc/PID/task/TID/schedstat``) how much CPU it has had, which
is shared out among its samples. Printed is the difference between the sessions by request, so what a session
costs however short it is cancels out; imports are left out. *Own* is a function without those it calls, but
with what it calls of C.

Sampling takes time itself, and where threads wait for a core, the places where they do are seen too often:
read shares here, and costs in ``bench_product.py`` and ``bench_threads.py``.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from bench_product import CLIENT_CPU, SERVER_CPU, SUITE, pytest_command
from table_servers import KnownServer, compiled

_SAMPLES_A_SECOND = 500
_LOOK_S = 0.02
_THREAD = re.compile(r"thread \((\w+)\)(?:: (.*))?")
_FRAME = re.compile(r"(.*) \((.*?)(?::\d+)?\)$")
_NUMBER = re.compile(r"-\d+.*$")
_IMPORT = "<frozen importlib._bootstrap>"
"""Imports cost the same however many requests there are, much and not always the same: they are left out."""

Function = tuple[str, str]
"""File and name."""


@dataclass(frozen=True)
class Sample:
    """A stack that was seen ``count`` times."""

    process: str
    thread: str
    tid: int
    stack: list[Function]
    count: int


class CpuWatch:
    """The run time of each thread of a process and of all that it starts, as last seen; in seconds."""

    def __init__(self, pid: int) -> None:
        self.seconds: dict[int, float] = {}
        self._root = psutil.Process(pid)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_LOOK_S):
            children: list[psutil.Process] = []
            with suppress(psutil.Error):  # one of them has just ended
                children = self._root.children(recursive=True)
            for pid in [child.pid for child in children]:
                for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                    with suppress(OSError, IndexError):  # likewise
                        self.seconds[int(path.parent.name)] = int(path.read_text("ascii").split()[0]) / 1e9


def samples(raw: str) -> Iterator[Sample]:
    """Of py-spy's collapsed stacks."""
    for line in raw.splitlines():
        path, _, count = line.rpartition(" ")
        frames = path.split(";")
        at = max((place for place, frame in enumerate(frames) if _THREAD.match(frame)), default=None)
        if at is None or at + 1 == len(frames):
            continue
        found = _THREAD.match(frames[at])
        assert found is not None
        process = "measuring" if "workers.process" in frames[at - 1] else "pytest's"
        stack = [_function(frame) for frame in frames[at + 1 :]]
        name = _NUMBER.sub("", found[2] or "") or "MainThread"
        yield Sample(process, name, int(found[1], 0), stack, int(count))


def _function(frame: str) -> Function:
    found = _FRAME.match(frame)
    return (found[2], found[1]) if found is not None else ("", frame)


def session(spy: str, requests: int, tokens: int, built: Path, work: Path) -> tuple[list[Sample], CpuWatch]:
    with (
        tempfile.TemporaryDirectory(dir=work) as name,
        KnownServer(built, work, tokens, cpu=SERVER_CPU) as server,
    ):
        suite = SUITE.format(load="concurrency=64", requests=requests)
        (Path(name) / "test_load.py").write_text(suite, "utf-8")
        raw = Path(name) / "stacks"
        watched = ["taskset", "-c", str(CLIENT_CPU), *pytest_command(sys.executable, server.port)]
        record = ["record", "--nonblocking", "--subprocesses", "--threads", "--format", "raw"]
        record += ["--rate", str(_SAMPLES_A_SECOND), "--output", str(raw), "--"]
        process = subprocess.Popen(
            [spy, *record, *watched, "test_load.py"],
            cwd=name,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        watch = CpuWatch(process.pid)
        process.wait(600)
        watch.close()
        return list(samples(raw.read_text("utf-8"))), watch


Costs = dict[tuple[str, str], Counter[Function]]
"""Own seconds by process and thread, and function."""


def costs(seen: list[Sample], watch: CpuWatch) -> Costs:
    of_thread = Counter[int]()
    for sample in seen:
        of_thread[sample.tid] += sample.count
    found: Costs = defaultdict(Counter)
    for sample in seen:
        share = sample.count / of_thread[sample.tid]
        seconds = share * watch.seconds.get(sample.tid, 0.0)
        if all(file != _IMPORT for file, _ in sample.stack):
            found[sample.process, sample.thread][sample.stack[-1]] += seconds
    return found


def report(many: Costs, few: Costs, further: int, least_us: float) -> None:
    us = {
        place: {f: (s - few.get(place, Counter())[f]) / further * 1e6 for f, s in functions.items()}
        for place, functions in many.items()
    }
    print(f"CPU of a further request: {sum(sum(each.values()) for each in us.values()):.0f} µs\n")
    print("| process | thread | file | function | own µs |\n|---|---|---|---|---|")
    for (process, thread), functions in sorted(us.items(), key=lambda entry: -sum(entry[1].values())):
        total = sum(functions.values())
        if total < least_us:
            continue
        print(f"| {process} | {thread} | | | **{total:.1f}** |")
        by_file = Counter[str]()
        for (file, _), cost in functions.items():
            by_file[file] += cost
        for file, of_file in by_file.most_common():
            if of_file < least_us:
                break
            print(f"| | | {file} | | {of_file:.1f} |")
            for (where, name), cost in sorted(functions.items(), key=lambda entry: -entry[1]):
                if where == file and cost >= least_us:
                    print(f"| | | | {name} | {cost:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--least", type=float, default=1.0, help="what costs less is left out, µs")
    parser.add_argument("--py-spy", default=shutil.which("py-spy"))
    options = parser.parse_args()
    if options.py_spy is None:
        parser.error("py-spy is needed: pip install py-spy")
    with tempfile.TemporaryDirectory(prefix="llmbench-flame-") as directory:
        work = Path(directory)
        built = compiled(work)
        counts = options.requests, options.requests // 4
        many, few = (costs(*session(options.py_spy, count, options.tokens, built, work)) for count in counts)
    report(many, few, counts[0] - counts[1], options.least)


if __name__ == "__main__":
    main()
