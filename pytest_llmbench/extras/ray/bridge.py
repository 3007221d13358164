"""The bridge into a Ray cluster: ``python -m pytest_llmbench.extras.ray.bridge DESCRIPTOR``.

Ray's driver installs signal handlers, an exception hook and logging, reads and writes the environment, and
may end its process when the cluster does. So it has a process of its own, and nothing of Ray is in the user's
session, which may use Ray for itself. When the session is gone, so are the bridge and its actors.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from io import FileIO
from ipaddress import ip_address
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.reduction import recv_handle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_llmbench.errors import GeneratorError, LLMBenchError, SuiteError
from pytest_llmbench.extras.ray.clocks import (
    ClockLine,
    ClockOffset,
    measured,
    mistake_of,
    shifted_done,
    shifted_records,
)
from pytest_llmbench.extras.ray.cluster import (
    WHERE,
    Actor,
    AskClocks,
    Clocks,
    Cluster,
    Join,
    Joined,
    KillWorker,
    Lost,
    Refused,
    StartWorkers,
    WorkersStarted,
    ending_file,
)
from pytest_llmbench.extras.ray.worker_actor import Greeting, Heard, Machine
from pytest_llmbench.generator.workers.protocol import Done, Go, Line, Requests, Setup, Work, own_version

_FRESH_NS = 2_000_000_000
"""Workers of one machine start, and end, at about the same time: its clock is read once for all."""


class MachineClock:
    """The clock of one machine that has workers, against ours, around a plan."""

    def __init__(self, machine: Machine, here: Machine) -> None:
        self.machine = machine
        self._shared = machine.clock == here.clock
        self._reading = threading.Lock()
        self.start = self.end = ClockOffset.shared(0)

    @property
    def line(self) -> ClockLine:
        return ClockLine(self.start, self.end)

    def before(self, actor: Actor) -> ClockOffset:
        """The offset of an actor's clock before a load, while none is running."""
        with self._reading:
            if time.monotonic_ns() - self.end.at_ns > _FRESH_NS:
                self.end = self._read(actor)
            self.start = self.end
            return self.start

    def after(self, actor: Actor) -> ClockLine:
        """The line of the plan that has ended on this machine."""
        with self._reading:
            if self.end is self.start or time.monotonic_ns() - self.end.at_ns > _FRESH_NS:
                self.end = self._read(actor)
            return self.line

    def _read(self, actor: Actor) -> ClockOffset:
        if self._shared:
            return ClockOffset.shared(time.monotonic_ns())
        return measured(lambda: int(actor.call("clock")))


class ActorRelay:
    """The relay between a worker and the session: ``forward`` in one thread, ``take`` in another."""

    def __init__(self, setup: Setup, line: Line, actor: Actor, clock: MachineClock) -> None:
        self.setup = setup
        self.line = line
        self.actor = actor
        self.clock = clock
        self.heard: Any = None
        """The call that will bring the next news."""
        self._handed: Any = None
        """The call that brings the last requests, while it may be under way."""
        self._start = ClockOffset.shared(0)
        self._spool: FileIO | None = None

    def forward(self, message: object) -> None:
        """Pass a message from the session to the worker. Raises Lost."""
        if isinstance(message, Work):
            self._start = self.clock.before(self.actor)
            mistake = mistake_of(ClockLine(self._start, self._start), self.clock.machine.host)
            if mistake is not None:
                raise Lost(mistake)
            self._close()
            self._spool = FileIO(self.setup.spool, "w")
            self._wait_for_handed()
            self.actor.start("begin", message, self._start)
        elif isinstance(message, Requests):
            # One call at a time: calls whose end nobody waits for would pile up in Ray.
            self._wait_for_handed()
            self._handed = self.actor.start("send", message)
        elif isinstance(message, Go):
            theirs_ns = ClockLine(self._start, self._start).theirs(message.start_ns)
            self.actor.start("send", Go(theirs_ns))
        else:
            self.actor.start("send", message)

    def take(self, heard: Heard) -> None:
        """Pass what was heard from the worker to the session. Raises Lost, OSError."""
        if heard.spool and self._spool is not None:
            rest = memoryview(heard.spool)
            while rest:
                rest = rest[self._spool.write(rest) :]
        for message in heard.messages:
            if isinstance(message, Done):
                # By our clock. The records came by the offset at the start: what the clocks have drifted
                # since is still to be put right.
                line = replace(self.clock.after(self.actor), start=self._start)
                if not line.same:
                    shifted = partial(shifted_records, line=line.since_start())
                    message = replace(shifted_done(message, line), on_our_clock=shifted)
            self.line.send(message)

    def give_up(self, how: str) -> None:
        """Leave the reason that the session will find when the line is closed."""
        ending_file(self.setup).write_text(how, encoding="utf-8")

    def close(self) -> None:
        self._close()
        self.line.close()

    def _wait_for_handed(self) -> None:
        handed, self._handed = self._handed, None
        if handed is not None:
            self.actor.got(handed)

    def _close(self) -> None:
        if self._spool is not None:
            self._spool.close()


_UP_S = 60.0


def hire(
    cluster: Cluster, setups: Sequence[Setup], here: Machine, clocks: dict[str, MachineClock]
) -> list[tuple[Actor, MachineClock]]:
    """An actor with a worker for each setup. ``clocks`` are those known already, and grow.

    Raises SuiteError or GeneratorError; then nothing of the new ones is left.
    """
    actors, greetings = _up(cluster, len(setups))
    try:
        hired = []
        for actor, greeting, setup in zip(actors, greetings, setups, strict=True):
            machine = greeting.machine
            if greeting.version != own_version():
                what = f"{machine.host} has pytest-llmbench {greeting.version}, this process {own_version()}"
                remedy = "install the same version everywhere; restart the cluster's nodes after upgrades"
                raise SuiteError(what, where=WHERE, remedy=remedy)
            _refuse_own_loopback(setup, machine, here)
            clock = clocks.setdefault(machine.clock, MachineClock(machine, here))
            offset = clock.before(actor)
            if mistake := mistake_of(ClockLine(offset, offset), machine.host):
                remedy = "take nodes that are nearer, or a less busy network between them"
                raise GeneratorError(mistake, where=WHERE, remedy=remedy)
            hired.append((actor, clock))
        _answered(
            actors,
            [
                actor.start("engage", *_portable(setup, clock))
                for (actor, clock), setup in zip(hired, setups, strict=True)
            ],
        )
    except BaseException:
        _kill(actors)
        raise
    return hired


def _up(cluster: Cluster, count: int) -> tuple[Sequence[Actor], list[Greeting]]:
    """Actors that have greeted. A node that is just being lost is still given some: then once more."""
    for tries_left in (1, 0):
        actors = cluster.hire(count)
        try:
            return actors, _answered(actors, [actor.start("greet") for actor in actors])
        except (GeneratorError, Lost):
            _kill(actors)
            if not tries_left:
                raise
        except BaseException:
            _kill(actors)
            raise
    raise AssertionError("unreachable")


def _kill(actors: Sequence[Actor]) -> None:
    for actor in actors:
        actor.kill()


def _answered(actors: Sequence[Actor], promised: Sequence[Any]) -> list[Any]:
    """What all of them said, within ``_UP_S`` in all."""
    deadline_s = time.monotonic() + _UP_S
    answers = []
    for number, (actor, promise) in enumerate(zip(actors, promised, strict=True), start=1):
        try:
            answers.append(actor.got(promise, max(0.1, deadline_s - time.monotonic())))
        except Lost as error:
            where = f"{WHERE}, worker {number} of {len(actors)}"
            if "No module named 'pytest_llmbench" in str(error):
                raise SuiteError(
                    "pytest-llmbench is not installed on its node",
                    where=where,
                    remedy=f"have the image of the cluster's nodes install the same version: {own_version()}",
                ) from error
            raise GeneratorError(
                f"is not up: {error}", where=where, remedy="`ray status` and the logs of its node tell more"
            ) from error
    return answers


def _refuse_own_loopback(setup: Setup, machine: Machine, here: Machine) -> None:
    host = urlsplit(setup.address.url).hostname or ""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    if loopback and machine.network != here.network:
        raise SuiteError(
            f"{setup.address.url} is this machine only: on {machine.host} it would be {machine.host} itself",
            where=WHERE,
            remedy="give the endpoint by an address that the cluster's nodes reach; the embedded engine "
            "(sim) can be loaded from this machine alone",
        )


def _portable(setup: Setup, clock: MachineClock) -> tuple[Setup, bytes | None]:
    """The setup as the other machine needs it: by its clock, and without paths of this one.

    With it goes the content of the CA file, if there is one.
    """
    deadline_ns = setup.session_deadline_ns
    ca_file = setup.address.ca_file
    portable = replace(
        setup,
        directory=Path(),
        number=0,
        cpu=None,
        session_deadline_ns=None if deadline_ns is None else clock.line.theirs(deadline_ns),
        address=replace(setup.address, ca_file=None),
    )
    return portable, None if ca_file is None else ca_file.read_bytes()


_TICK_S = 0.25
_HEAR_S = 0.5
_CALLS_PER_S = 500
"""The most calls per second: the more workers, the less often each is asked for news."""
_END_S = 5.0


class Bridge:
    """The bridge: its main thread listens to the session, another one to the cluster."""

    def __init__(self, control: Line, cluster: Cluster) -> None:
        self._control = control
        self._cluster = cluster
        self._here = Machine.here()
        self._posts: list[ActorRelay] = []
        self._clocks: dict[str, MachineClock] = {}
        self._lost: deque[ActorRelay] = deque()
        self._bell, self._ring = Pipe(duplex=False)
        self._leaving = threading.Event()
        self._follower = threading.Thread(target=self._follow, name="llmbench-follow", daemon=True)

    def serve(self) -> None:
        """Serve until the session is gone."""
        self._follower.start()
        while True:
            posts = {post.line.connection: post for post in self._posts}
            for ready in wait([self._control.connection, self._bell, *posts]):
                if ready is self._control.connection:
                    message = self._control.receive()
                    if message is None:
                        return
                    self._answer(message)
                elif ready is self._bell:
                    self._bell.recv_bytes()
                    self._dismiss(self._lost.popleft())
                else:
                    self._forward(posts[ready])  # type: ignore[index]

    def close(self) -> None:
        """Every worker ends by itself, as far as it does so soon; then its actor is ended."""
        self._leaving.set()
        self._follower.join(_END_S)
        ending = []
        for post in self._posts:
            try:
                ending.append((post.actor, post.actor.start("end")))
            except Lost:
                continue
        for actor, ended in ending:
            try:
                actor.got(ended, _END_S)
            except Lost:
                continue
        for post in list(self._posts):
            self._dismiss(post)

    # From the session.

    def _answer(self, message: object) -> None:
        if isinstance(message, KillWorker):
            for post in self._posts:
                if post.setup.number == message.number:
                    post.actor.kill()  # which the other thread will hear of
        elif isinstance(message, AskClocks):
            told, mistake = [], None
            for clock in self._clocks.values():
                numbers = sorted(post.setup.number + 1 for post in self._posts if post.clock is clock)
                if numbers:
                    told.append({"host": clock.machine.host, "workers": numbers, **clock.line.told()})
                    mistake = mistake or mistake_of(clock.line, clock.machine.host)
            self._control.send(Clocks(tuple(told), mistake))
        elif isinstance(message, StartWorkers):
            try:
                self._enlist(message)
            except LLMBenchError as error:
                self._control.send(Refused(error))
            except Exception as error:  # noqa: BLE001 - the session must be told, whatever it is
                traceback.print_exc()
                what = f"no worker could be started: {type(error).__name__}: {error}"
                self._control.send(Refused(GeneratorError(what, where=WHERE)))
            else:
                self._control.send(WorkersStarted())

    def _enlist(self, message: StartWorkers) -> None:
        lines = [Line(Connection(recv_handle(self._control.connection))) for _ in message.setups]
        try:
            hired = hire(self._cluster, message.setups, self._here, self._clocks)
        except BaseException:
            for line in lines:
                line.close()
            raise
        for setup, line, (actor, clock) in zip(message.setups, lines, hired, strict=True):
            post = ActorRelay(setup, line, actor, clock)
            post.heard = actor.start("receive", self._patience_s)
            self._posts = [*self._posts, post]

    def _forward(self, post: ActorRelay) -> None:
        message = post.line.receive() if post in self._posts else None
        if message is None:  # the session has given it up
            self._dismiss(post)
            return
        try:
            post.forward(message)
        except Lost as error:
            self._lose(post, f"was lost: {error}")

    def _dismiss(self, post: ActorRelay) -> None:
        self._posts = [other for other in self._posts if other is not post]
        post.actor.kill()
        post.close()

    # From the cluster.

    @property
    def _patience_s(self) -> float:
        return _HEAR_S + len(self._posts) / _CALLS_PER_S

    def _follow(self) -> None:
        while not self._leaving.is_set():
            promised = {post.heard: post for post in self._posts if post.heard is not None}
            if not promised:
                self._leaving.wait(_TICK_S)
                continue
            try:
                ready = self._cluster.wait(list(promised), _TICK_S)
            except Lost as error:
                for post in promised.values():
                    self._lose(post, f"was lost: {error}")
                continue
            for heard in ready:
                self._take(promised[heard])

    def _take(self, post: ActorRelay) -> None:
        news, post.heard = post.heard, None
        try:
            heard = post.actor.got(news)
            post.take(heard)
            if heard.ending is not None:
                self._lose(post, heard.ending)
            else:
                post.heard = post.actor.start("receive", self._patience_s)
        except Lost as error:
            self._lose(post, f"was lost: {error}")
        except (OSError, LLMBenchError, ValueError) as error:
            self._lose(post, f"sent what cannot be kept here: {type(error).__name__}: {error}")

    def _lose(self, post: ActorRelay, how: str) -> None:
        """Give up a lost worker.

        Its line is closed by the main thread, which may be waiting for it just now.
        """
        where = post.clock.machine.host
        post.heard = None
        post.give_up(f"{how} (on {where})")
        self._lost.append(post)
        self._ring.send_bytes(b"lost")


def main() -> None:
    """The session's process is the parent; it has told us the descriptor of our end of the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the session's business
    control = Line(Connection(int(sys.argv[1])))
    join = control.receive()
    if not isinstance(join, Join):
        return
    try:
        cluster = Cluster.join(join.spec, join.directory)
    except LLMBenchError as error:
        control.send(Refused(error))
        return
    bridge = Bridge(control, cluster)
    try:
        control.send(Joined(cluster.workers))
        bridge.serve()
    finally:
        bridge.close()
        cluster.close()
        if os.getppid() != join.session:  # killed: there is nobody else to clear up
            for directory in (join.directory, join.mirrors):
                shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
