"""How close together the requests of a batch leave, beside what the plain calls into the kernel take.

    python benchmarks/bench_batch.py [--requests 64 1000] [--workers 1 2] [--runs 10]

The server is the embedded engine in a process of its own, reached through the loopback: there the call that
sends a byte also delivers it. ``plain`` sends a byte on as many connections of a bare socket server, in a
loop of nothing else.
"""

from __future__ import annotations

import argparse
import select
import socket
import time
from multiprocessing import Process
from multiprocessing.connection import Connection, Pipe

import numpy as np

from pytest_llmbench.generator.limits import raise_descriptors
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import Batch, LoadPlan
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

ASKED = SyntheticWorkload("short", Fixed(128), Fixed(8))


def spreads_ms(url: str, requests: int, workers: int, runs: int) -> list[float]:
    """The time from the first request that leaves to the last, of each run but the first, which warms up."""
    found = []
    with DistributedLoadGenerator(
        Address(url), "openai-chat", workers=workers, model="sim-fast"
    ) as generator:
        for run in range(runs + 1):
            plan = LoadPlan(f"run {run}", ASKED, Batch(requests), requests, seed=1, first=run * requests)
            records = generator.run(plan).records
            assert records.counts()["ok"] == requests, records.counts()
            found.append(float(np.ptp(records.submitted_ns)) / 1e6)
    return found[1:]


def reading(told: Connection) -> None:
    """A server that reads and says nothing."""
    raise_descriptors()
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as server:
        told.send(server.getsockname())
        waiting, there = select.epoll(), {}
        waiting.register(server.fileno(), select.EPOLLIN)
        while True:
            for number, _ in waiting.poll():
                if number == server.fileno():
                    connection, _ = server.accept()
                    there[connection.fileno()] = connection
                    waiting.register(connection.fileno(), select.EPOLLIN)
                elif not there[number].recv(64):
                    return


def plain_ms(requests: int, runs: int) -> list[float]:
    """The same time of calls that send a byte, with nothing else in between."""
    ours, theirs = Pipe()
    server = Process(target=reading, args=(theirs,), daemon=True)
    server.start()
    address = ours.recv()
    connections = [socket.create_connection(address) for _ in range(requests)]
    for each in connections:
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found = []
    for _ in range(runs):
        time.sleep(0.1)
        sends = [each.send for each in connections]
        start_ns = last_ns = time.monotonic_ns()
        for send in sends:
            last_ns = time.monotonic_ns()
            send(b"x")
        found.append((last_ns - start_ns) / 1e6)
    for each in connections:
        each.close()
    server.join()
    return found


def line(label: str, found: list[float]) -> str:
    return f"{label:<28} P50 {np.median(found):7.3f}  least {min(found):7.3f}  most {max(found):7.3f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, nargs="+", default=[64, 1000])
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--runs", type=int, default=10)
    options = parser.parse_args()
    raise_descriptors()
    with EmbeddedEngine.start("fast") as engine:
        for requests in options.requests:
            for workers in options.workers:
                found = spreads_ms(engine.url, requests, workers, options.runs)
                print(line(f"{requests} requests, {workers} workers", found), flush=True)
            print(line(f"{requests} plain calls", plain_ms(requests, options.runs)), flush=True)


if __name__ == "__main__":
    main()
