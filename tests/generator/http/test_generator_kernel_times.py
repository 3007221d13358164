"""Kernel receive times: on our clock, whatever the wall clock does, and through the same connections."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from heard_link import Heard, linked, on_loop
from scripted_server import HEAD, REPLY, Conversation, chunked, reply, text_event
from virtual_clock import VirtualClock

from pytest_llmbench.generator.http import sockets as module
from pytest_llmbench.generator.http.sockets import (
    SO_TIMESTAMPNS,
    TOLERANCE_NS,
    KernelTimes,
    Sockets,
    kernel_times,
    stamps_a_datagram,
)
from pytest_llmbench.generator.http.transport import KERNEL, USER_SPACE, Stamping
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.timing import MonotonicClock

MS = 1_000_000
S = 1_000_000_000
EPOCH_NS = 1_700_000_000 * S
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel option is Linux's")


@dataclass
class Clocks:
    """A machine's two clocks; the wall clock can be set."""

    now_ns: int = 5 * S
    offset_ns: int = EPOCH_NS

    def monotonic(self) -> int:
        self.now_ns += 20
        return self.now_ns

    def wall(self) -> int:
        self.now_ns += 20
        return self.now_ns + self.offset_ns

    def packet(self) -> list[tuple[int, int, bytes]]:
        """The control message of a packet that comes in now."""
        stamp = struct.pack("@ll", *divmod(self.now_ns + self.offset_ns, S))
        return [(socket.SOL_SOCKET, SO_TIMESTAMPNS, stamp)]


@dataclass
class Machine:
    clocks: Clocks = field(default_factory=Clocks)

    def __post_init__(self) -> None:
        self.times = KernelTimes(self.clocks.monotonic, self.clocks.wall)

    def read(self, packet: Sequence[tuple[int, int, bytes]], delay_ns: int) -> int:
        self.clocks.now_ns += delay_ns
        return self.times.instant(packet)


def test_the_wait_in_the_socket_is_not_in_the_stamp():
    machine = Machine()
    for _ in range(3):
        arrived = machine.clocks.now_ns
        assert abs(machine.read(machine.clocks.packet(), 3 * MS) - arrived) <= 50
    assert (machine.times.steps, machine.times.distrusted, machine.times.unstamped) == (0, 0, 0)


def test_a_read_without_a_stamp_has_its_own_instant():
    machine = Machine()
    assert machine.read([], MS) == pytest.approx(machine.clocks.now_ns, abs=200)
    assert machine.times.unstamped == 1


@pytest.mark.parametrize("step_ns", [-3600 * S, -S, -5 * MS, 5 * MS, S, 3600 * S])
def test_a_step_of_the_wall_clock_is_no_latency(step_ns):
    """Packets from before the step and after it, read after it: no stamp is off by more than the wait."""
    machine = Machine()
    before, arrived_before = machine.clocks.packet(), machine.clocks.now_ns
    machine.clocks.offset_ns += step_ns
    after, arrived_after = machine.clocks.packet(), machine.clocks.now_ns
    for packet, arrived in ((before, arrived_before), (after, arrived_after)):
        assert arrived <= machine.read(packet, MS) <= machine.clocks.now_ns
    assert (machine.times.steps, machine.times.distrusted) == (1, 2)
    arrived = machine.clocks.now_ns
    assert abs(machine.read(machine.clocks.packet(), MS) - arrived) <= 50  # trusted again, on the new offset
    assert (machine.times.steps, machine.times.distrusted) == (1, 2)


def test_being_descheduled_between_the_two_clocks_is_no_step():
    machine = Machine()
    slow = machine.clocks.wall
    arrived = machine.clocks.now_ns
    packet = machine.clocks.packet()
    calls = 0

    def descheduled() -> int:
        nonlocal calls
        calls += 1
        if calls == 1:
            machine.clocks.now_ns += 4 * MS
        return slow()

    machine.times._wall = descheduled
    assert abs(machine.read(packet, MS) - arrived) <= 50
    assert (machine.times.steps, machine.times.distrusted) == (0, 0)


def test_a_drift_is_followed_without_a_step():
    """A few hundred nanoseconds each second, as no step is: the next second's look takes it in."""
    machine = Machine()
    for _ in range(50):
        machine.clocks.offset_ns += 300
        machine.read(machine.clocks.packet(), S + MS)
        arrived = machine.clocks.now_ns
        assert abs(machine.read(machine.clocks.packet(), MS) - arrived) <= 50
    assert machine.times.steps == 0


def test_the_error_of_the_difference_is_no_stamp_from_the_future():
    machine = Machine()
    machine.clocks.offset_ns += TOLERANCE_NS // 2
    assert machine.read(machine.clocks.packet(), 0) <= machine.clocks.now_ns
    assert machine.times.distrusted == 0


def test_only_the_clock_of_the_machine_has_kernel_times():
    assert kernel_times(VirtualClock()) is None
    assert (kernel_times(MonotonicClock()) is not None) == sys.platform.startswith("linux")


def test_the_source_names_what_was_used_and_the_exceptions():
    assert Stamping().figures(10)["stamp_source"] == USER_SPACE
    assert Stamping(kernel=True).figures(10)["stamp_source"] == KERNEL
    assert Stamping(kernel=True).figures(0)["stamp_source"] == KERNEL
    assert Stamping(kernel=True, unstamped=10).figures(10)["stamp_source"] == USER_SPACE
    later = Stamping(True, 5, 4, 3, 2)
    assert later.since(Stamping(True, 1, 1, 1, 1)) == Stamping(True, 4, 3, 2, 1)
    told = later.figures(100)["stamp_source"]
    assert told.startswith(KERNEL)
    assert "9 of 100 reads in user space" in told
    assert "2 steps of the wall clock" in told


@LINUX
def test_a_loop_that_was_held_up_does_not_move_the_stamps(serve, generator_for, plan, loop_factory):
    """The loop sleeps while the reply comes in; the stamps are those of the arrival all the same."""
    sent: list[int] = []
    held: list[int] = []

    def hold() -> None:
        time.sleep(0.3)
        held.append(time.monotonic_ns())

    def script(conversation: Conversation) -> None:
        generator._thread.loop.call_soon_threadsafe(hold)  # type: ignore[union-attr]
        conversation.wait(0.1)
        sent.append(time.monotonic_ns())
        conversation.send(REPLY)

    server = serve(script)
    generator = generator_for(server, loop_factory=loop_factory)
    seen = generator.run(plan(1))
    assert seen.selfcheck.stamp_source.startswith(KERNEL)
    late_ns = seen.records.first_byte_ns[0] - sent[0]
    assert held[0] - sent[0] > 100 * MS
    assert -TOLERANCE_NS < late_ns < (held[0] - sent[0]) / 2


class SteppedClock(MonotonicClock):
    """The machine's, whose wall clock somebody sets while load is running."""

    name = "CLOCK_MONOTONIC"

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns
        self.stepped = False

    def wall_ns(self) -> int:  # type: ignore[override]  # a function of the class there
        return time.time_ns() + (self.step_ns if self.stepped else 0)


@LINUX
@pytest.mark.parametrize("step_ns", [3600 * S, -3600 * S, 50 * MS])
def test_a_step_under_load_is_in_no_figure(serve, generator_for, plan, step_ns, monkeypatch):
    clock, stamp_of = SteppedClock(step_ns), module._timespec

    def stepped_stamp(data: bytes) -> tuple[int, int]:
        seconds, nanoseconds = stamp_of(data)
        return divmod(seconds * S + nanoseconds + (step_ns if clock.stepped else 0), S)

    def script(conversation: Conversation) -> None:
        clock.stepped = clock.stepped or conversation.turn >= 20
        conversation.send(REPLY)

    monkeypatch.setattr(module, "_timespec", stepped_stamp)
    began = time.monotonic_ns()
    seen = generator_for(serve(script), clock=clock).run(plan(requests=60))
    ended = time.monotonic_ns()
    assert clock.stepped
    assert seen.records.counts()["ok"] == 60
    assert (seen.selfcheck.clock_steps, seen.selfcheck.moved_stamps) == (1, 0)
    assert "1 steps of the wall clock" in seen.selfcheck.stamp_source
    assert seen.facts.value("clock.stepped_ms") == pytest.approx(step_ns / 1e6, abs=5)
    instants = [
        seen.records.submitted_ns,
        seen.records.first_byte_ns,
        seen.records.first_content_ns,
        seen.records.finished_ns,
    ]
    for earlier, later in itertools.pairwise(instants):
        assert (earlier <= later).all()
    assert (instants[0] > began).all()
    assert (instants[-1] < ended).all()


@LINUX
def test_load_begins_when_the_kernel_stamps(serve, generator_for, plan):
    """A kernel that stamps from the fourth packet on is asked four times before the first request."""
    sent_before: list[int] = []
    requests: list[int] = []

    def script(conversation: Conversation) -> None:
        requests.append(conversation.turn)
        conversation.send(REPLY)

    def stamps() -> bool:
        sent_before.append(len(requests))
        return len(sent_before) > 3

    generator = generator_for(serve(script))
    times = generator._transport._opener._times
    assert times is not None
    times._stamps = stamps
    assert generator.run(plan(3)).records.counts()["ok"] == 3
    assert sent_before == [0, 0, 0, 0]


def test_a_kernel_that_stamps_nothing_is_asked_in_vain_once():
    asked: list[bool] = []

    def stamps() -> bool:
        asked.append(False)
        return False

    clocks = Clocks()
    times = KernelTimes(clocks.monotonic, clocks.wall, stamps)
    asyncio.run(times.switched_on())
    so_often = len(asked)
    assert so_often > 1
    asyncio.run(times.switched_on())
    assert len(asked) == so_often


@LINUX
def test_what_a_socket_asked_for_comes_true():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as first:
        KernelTimes.stamp(first)
        times = kernel_times(MonotonicClock())
        assert times is not None
        asyncio.run(times.switched_on())
        assert stamps_a_datagram()


def test_user_space_on_request(serve, generator_for, plan, loop_factory):
    generator = generator_for(serve(reply(REPLY)), loop_factory=loop_factory, kernel_stamps=False)
    seen = generator.run(plan(20, load=ClosedLoop(3)))
    assert seen.records.counts()["ok"] == 20
    assert seen.selfcheck.stamp_source == USER_SPACE


@LINUX
def test_a_stamp_before_the_submission_is_moved_and_counted(serve, generator_for, plan):
    generator = generator_for(serve(reply(REPLY)))
    times = generator._transport._opener._times
    assert times is not None
    times.instant = lambda _ancillary: 1  # type: ignore[method-assign]
    seen = generator.run(plan(5))
    assert seen.records.counts()["ok"] == 5
    assert (seen.records.first_byte_ns >= seen.records.submitted_ns).all()
    assert "moved to what came before" in seen.selfcheck.stamp_source


@LINUX
def test_a_reply_longer_than_the_buffer(serve, generator_for, plan, loop_factory):
    words = [text_event(f" {'w' * 500}{at}") for at in range(2000)]
    body = HEAD + chunked([*words, text_event(".", "stop")])
    seen = generator_for(serve(reply(body)), loop_factory=loop_factory).run(plan(3))
    assert seen.records.counts()["ok"] == 3
    assert len(seen.records.chunk_ns) == 3 * 2001


async def linked_to_64_bytes() -> tuple[Heard, socket.socket]:
    times = kernel_times(MonotonicClock())
    assert times is not None
    return await linked(Sockets(asyncio.get_running_loop(), times, read_bytes=64))


async def settle() -> None:
    await asyncio.sleep(0.05)


@LINUX
def test_a_link_reads_to_the_end_and_says_so_once(loop_factory):
    async def course() -> None:
        heard, other = await linked_to_64_bytes()
        other.sendall(b"a" * 100)
        other.close()
        await settle()
        assert heard.told == [b"a" * 64, b"a" * 36, ("ended", type(None)), ("ended", type(None)), "dropped"]
        assert heard.link.write(b"late")
        heard.link.close()
        await settle()
        assert len(heard.told) == 5

    on_loop(loop_factory, course)


@LINUX
def test_a_link_sends_what_the_kernel_would_not_take_at_once(loop_factory):
    async def course() -> None:
        heard, other = await linked_to_64_bytes()
        assert not heard.link.write(b"x" * 20_000_000)
        assert not heard.link.write(b"y")
        received = await asyncio.to_thread(drain, other, 20_000_001)
        await settle()
        assert heard.told == ["written"]
        assert received.endswith(b"xy")
        heard.link.close()
        await settle()
        assert heard.told == ["written", ("ended", type(None)), "dropped"]
        other.close()

    on_loop(loop_factory, course)


def drain(sock: socket.socket, count: int) -> bytes:
    last, seen = b"", 0
    while seen < count:
        piece = sock.recv(1 << 20)
        seen += len(piece)
        last = (last + piece)[-8:]
    return last


@LINUX
def test_a_reset_is_told_with_its_error(loop_factory):
    async def course() -> None:
        heard, other = await linked_to_64_bytes()
        other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        other.close()
        await settle()
        assert heard.told == [("ended", ConnectionResetError), "dropped"]

    on_loop(loop_factory, course)
