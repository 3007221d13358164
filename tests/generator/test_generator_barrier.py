"""A batch: all but the last byte of every request is there before the last byte of any leaves."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import trustme
from planned_load import TextWorkload
from scripted_server import REPLY, plain

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator import dispatcher
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.limits import Limits, LoadLimits
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.plan import Batch, Deadlines, LoadPlan
from pytest_llmbench.model.records import MISSING

BATCH = 40


@dataclass
class Arrivals:
    """A server that notes when all but the last byte of a request was there, and when the last one came."""

    port: int = 0
    rest_ns: list[int] = field(default_factory=list)
    last_ns: list[int] = field(default_factory=list)
    connections: int = 0
    at_rest: Callable[[int, asyncio.Transport], None] = lambda number, transport: None
    """Called with the number of a connection on which only the last byte is missing."""
    deaf: frozenset[int] = frozenset()
    """Numbers of the connections that are not read."""
    transports: list[asyncio.Transport] = field(default_factory=list)
    loop: asyncio.AbstractEventLoop = field(init=False)
    over: asyncio.Event = field(init=False)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


class _Connection(asyncio.Protocol):
    def __init__(self, seen: Arrivals) -> None:
        self.seen, self.data, self.length, self.number = seen, bytearray(), -1, seen.connections
        seen.connections += 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.seen.transports.append(transport)
        if self.number in self.seen.deaf:
            transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        self.data += data
        if self.length < 0:
            head, _, _ = self.data.partition(b"\r\n\r\n")  # which comes in one read
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self.length = len(head) + 4 + int(length)
        if len(self.data) == self.length - 1:
            self.seen.rest_ns.append(now_ns)
            self.seen.at_rest(self.number, self.transport)
        elif len(self.data) == self.length:
            self.seen.last_ns.append(now_ns)
            self.data, self.length = bytearray(), -1
            self.transport.write(REPLY)


async def _serve(seen: Arrivals, context: ssl.SSLContext | None, ready: threading.Event) -> None:
    seen.loop, seen.over = asyncio.get_running_loop(), asyncio.Event()
    server = await seen.loop.create_server(
        lambda: _Connection(seen), "127.0.0.1", 0, ssl=context, backlog=500
    )
    seen.port = server.sockets[0].getsockname()[1]
    ready.set()
    await seen.over.wait()
    server.close()
    for transport in seen.transports:
        transport.abort()
    await asyncio.sleep(0.01)


@pytest.fixture(autouse=True)
def time_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "SETTLE_S", 0.3)


@pytest.fixture
def arrivals() -> Iterator[Callable[..., Arrivals]]:
    running: list[tuple[Arrivals, threading.Thread]] = []

    def start(context: ssl.SSLContext | None = None, **how: Any) -> Arrivals:
        seen, ready = Arrivals(**how), threading.Event()
        thread = threading.Thread(target=lambda: asyncio.run(_serve(seen, context, ready)))
        thread.start()
        running.append((seen, thread))
        assert ready.wait(10)
        return seen

    yield start
    for seen, thread in running:
        seen.loop.call_soon_threadsafe(seen.over.set)
        thread.join(10)


@pytest.mark.parametrize("kernel_stamps", [True, False])
def test_the_last_bytes_leave_when_the_rest_of_all_is_there(
    arrivals, generator_for, plan, loop_factory, kernel_stamps
):
    server = arrivals()
    generator = generator_for(server.url, loop_factory=loop_factory, kernel_stamps=kernel_stamps)
    for _ in range(2):  # on new connections, and on kept ones
        server.rest_ns.clear()
        server.last_ns.clear()
        seen = generator.run(plan(BATCH, load=Batch(BATCH)))
        records = seen.records
        assert records.counts()["ok"] == BATCH
        assert len(server.last_ns) == BATCH
        assert max(server.rest_ns) < min(server.last_ns)
        assert records.scheduled_ns.tolist() == [seen.started_ns] * BATCH
        assert seen.started_ns <= records.submitted_ns.min()
        # No instant before its byte was sent, and none after it was there.
        assert (np.sort(records.submitted_ns) <= np.sort(server.last_ns)).all()
        assert (records.dispatched_ns == records.submitted_ns).all()
        assert seen.facts.value(LoadFact.RELEASE) == "last_byte"
    assert server.connections == BATCH


def test_over_tls(arrivals, generator_for, plan, tmp_path):
    authority, context = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = arrivals(context)
    target = Target.parse(server.url.replace("http:", "https:"), ca_file=tmp_path / "ca.pem")
    seen = generator_for("", target=target).run(plan(8, load=Batch(8)))
    assert seen.records.counts()["ok"] == 8
    assert max(server.rest_ns) < min(server.last_ns)


def test_several_workers_release_on_one_instant(arrivals, plan):
    server = arrivals()
    with DistributedLoadGenerator(Address(server.url), "openai-chat", workers=2, model="m") as generator:
        seen = generator.run(plan(9, load=Batch(9)))
    assert seen.records.counts()["ok"] == 9
    assert max(server.rest_ns, default=0) < min(server.last_ns)
    assert seen.records.scheduled_ns.tolist() == [seen.started_ns] * 9


def test_long_bodies_are_taken_first(arrivals, generator_for, plan):
    """More than the buffers of two kernels hold."""
    server = arrivals()
    workload = TextWorkload(text="x" * 8_000_000)
    seen = generator_for(server.url).run(plan(3, load=Batch(3), workload=workload))
    assert seen.records.counts()["ok"] == 3
    assert max(server.rest_ns) < min(server.last_ns)


def test_a_server_that_takes_no_body_holds_nobody_up_for_ever(arrivals, generator_for, plan):
    server = arrivals(deaf=frozenset({0}))
    limits = Deadlines(connect_s=0.5, first_byte_s=5, between_chunks_s=1, total_s=6, drain_s=3)
    workload = TextWorkload(text="x" * 8_000_000)
    records = (
        generator_for(server.url).run(plan(3, load=Batch(3), workload=workload, deadlines=limits)).records
    )
    assert records.counts()["ok"] == 2
    assert int((records.submitted_ns == MISSING).sum()) == 1
    (error,) = {*records.error} - {None}
    assert "stopped reading the request within 1 s" in str(error)


@pytest.mark.parametrize(
    ("answer", "outcome", "error"),
    [
        (
            b"",
            "disconnected",
            "the server closed the connection while the last byte of the request was held back",
        ),
        (plain("408 Request Timeout"), "http_error", "408"),
    ],
)
def test_a_server_that_does_not_wait_for_the_last_byte_is_told_in_one_line(
    arrivals, generator_for, plan, answer, outcome, error
):
    def at_rest(number: int, transport: asyncio.Transport) -> None:
        if number % 4 == 0:
            transport.write(answer)
            transport.close()

    server = arrivals(at_rest=at_rest)
    limits = Deadlines(connect_s=2, first_byte_s=5, between_chunks_s=2, total_s=6, drain_s=3)
    records = generator_for(server.url).run(plan(8, load=Batch(8), deadlines=limits)).records
    counts = records.counts()
    assert (counts["ok"], counts[outcome]) == (6, 2)
    assert all(error in str(each) for each in records.error if each is not None)


def test_more_than_there_may_be_connections_is_refused_before_any(arrivals, generator_for, plan):
    server = arrivals()
    generator = generator_for(server.url, limits=LoadLimits(host=Limits(descriptors=1000)))
    with pytest.raises(SuiteError, match="1000 connections need 1064 open files, the limit is 1000"):
        generator.run(plan(1000, load=Batch(1000)))
    assert server.connections == 0


def test_a_batch_is_no_load_of_sessions_and_has_no_more_requests_than_it_is():
    made = LoadPlan("x", TextWorkload(), Batch(3), 4, seed=1)
    assert made.mistakes() == [
        "a batch of 3 is so many requests at most, and has no sessions and no duration"
    ]
    assert made.with_(requests=3).mistakes() == []
    assert made.with_(requests=3, duration_s=1.0).mistakes() != []
    assert made.with_(load=Batch(3, of_sessions=True), requests=3).mistakes() != []
