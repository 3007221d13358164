"""The messages between coordinator and worker: a dozen per plan, and how far the worker has got
(:class:`~pytest_llmbench.generator.loop_thread.Progress`) four times a second; none for a single request.

Requests go ahead of the load, some dozens in a message. All is pickled, over a socket pair that only the two
hold. Keys and headers go this way too, so that they stand in no file and on no command line.
"""

from __future__ import annotations

import os
import pickle
import select
import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import LLMBenchError, SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.installed import installed_version
from pytest_llmbench.model.facts import Fact
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import SESSION_HEADER
from pytest_llmbench.wire.server_figures import Declared

if TYPE_CHECKING:  # what few sessions hand over is imported by those that do
    from pytest_llmbench.http_client import ClientCertificate, HttpProxy
    from pytest_llmbench.model.records import Records
    from pytest_llmbench.tokens import TokenizerFile
    from pytest_llmbench.wire.dialect import PromptForm

PROTOCOL = 10


def own_version() -> str:
    """Coordinator and workers must agree in it."""
    return f"{installed_version('pytest-llmbench')} (worker protocol {PROTOCOL})"


@dataclass(frozen=True, repr=False)
class Address:
    """The address that requests go to, in a form that can be handed to another process."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: Path | None = None
    insecure: bool = False
    client: ClientCertificate | None = None
    http2: bool = False
    proxy: HttpProxy | None = None

    def target(self) -> Target:
        return Target.parse(
            self.url,
            headers=dict(self.headers),
            ca_file=self.ca_file,
            insecure=self.insecure,
            client=self.client,
            http2=self.http2,
            proxy=self.proxy,
        )


@dataclass(frozen=True, repr=False)
class Setup:
    """All that a worker's load generator is made of."""

    address: Address
    dialect: str
    model: str
    prompt_form: PromptForm = "text"
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    count_text: bool | TokenizerFile = False
    """Count prompts and replies where the server gives no figures: with the reference tokenizer, or with the
    one of this file, whose content goes along since other machines do not have it."""
    counts_early: bool = True
    """Whether that tokenizer is made ready before the first plan; else after it, when nothing is being
    measured."""
    session_deadline_ns: int | None = None
    declared: Declared = field(default_factory=Declared)
    session_header: str = SESSION_HEADER
    """The header with the id of the session, for turns of sessions; empty: none."""
    directory: Path = Path()
    """The directory for spools; private to the coordinator and its workers."""
    number: int = 0
    cpu: int | None = None
    """The core to stay on, as far as the system allows it."""

    @property
    def spool(self) -> Path:
        """Ended requests of the plan that is running."""
        return self.directory / f"worker-{self.number}.spool"

    @property
    def log(self) -> Path:
        """What the process printed."""
        return self.directory / f"worker-{self.number}.log"


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a worker."""

    version: str


@dataclass(frozen=True, slots=True)
class Requests:
    """Some more of what the next plan sends. Not answered."""

    at: int
    """Bytes of ``frames`` that have gone before; 0 begins a new plan."""
    frames: bytes
    """Packed requests, one after the other (``supply.py``); the last one may go on in the next message."""
    instants: bytes
    """The instants at which requests of an open loop are due: nanoseconds from the start, 8 bytes each."""


@dataclass(frozen=True, slots=True)
class Work:
    """A plan to prepare; its requests have been told. Answered by ``Ready`` and, in the end, by ``Done`` or
    ``Failed``."""

    plan: LoadPlan


@dataclass(frozen=True, slots=True)
class Ready:
    """Requests encoded, connections open."""


@dataclass(frozen=True, slots=True)
class Go:
    """Start at this instant of CLOCK_MONOTONIC, which all processes of a machine share."""

    start_ns: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End the plan early, or do not begin."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks whether the other end is alive. Answered by ``Pong`` at once, whatever else goes on."""


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer of a worker that is alive."""


@dataclass(frozen=True)
class Done:
    """What came of a worker's plan, without the records and what they tell: those lie in its spool."""

    started_ns: int
    ended_ns: int
    load_ended_ns: int | None
    in_flight_at_end: int
    interrupted: str | None
    stopped: str | None
    selfcheck: SelfCheck
    facts: Mapping[str, Fact]
    decoded_ns: int | None = None
    """Instant at which all records had been made; None where that is not known."""
    on_our_clock: Callable[[Records], Records] | None = None
    """Corrects the records where the worker's clock has drifted against ours."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The worker's load generator could not go on."""

    why: str
    mistake: LLMBenchError | None = None
    """The mistake of the plan, of a request, or of this machine's limits: to be raised as it is."""


UNSAYABLE = (pickle.PicklingError, TypeError, AttributeError)
"""Raised for objects of the suite that cannot be pickled."""


def refusal(error: Exception, where: str) -> SuiteError:
    """The SuiteError for an error of one of the types in ``UNSAYABLE``, in words."""
    return SuiteError(
        f"cannot be handed to a worker process: {error}",
        where=where,
        remedy="give plain values (text, numbers, lists), or measure in pytest's own process with "
        "--llm-workers 0",
    )


class Line:
    """One end of the connection. Any thread may speak; one thread listens."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._speaking = threading.Lock()

    def send(self, message: object) -> bool:
        """Send a message; returns False if the other end is gone. Raises SuiteError for what cannot be sent:
        objects of the suite."""
        try:
            with self._speaking:
                self.connection.send(message)
        except OSError:
            return False
        except UNSAYABLE as error:
            raise refusal(error, type(message).__name__.lower()) from error
        return True

    def takes(self, limit_s: float) -> bool:
        """Whether within ``limit_s`` there is room for a message of some 64 KiB, which is then said at once
        (Linux; smaller buffers make it wait for whom it is said to). True also when the other end is gone."""
        room = select.poll()
        with suppress(OSError):
            room.register(self.connection.fileno(), select.POLLOUT)
            return bool(room.poll(limit_s * 1000))
        return True

    def receive(self) -> object:
        """The next message; None when the other end is gone."""
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        """The other end hears of it even if a process forked meanwhile holds a copy of this one."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)
        self.connection.close()


def refuse_other_version(said: object, where: str) -> None:
    """Raise SuiteError unless ``said`` is the greeting of a worker of this version."""
    version = said.version if isinstance(said, Hello) else f"unknown ({said!r})"
    if version != own_version():
        raise SuiteError(
            f"the worker is of version {version}, this process of {own_version()}",
            where=where,
            remedy="let all processes load the same installation of pytest-llmbench; restart after upgrades",
        )
