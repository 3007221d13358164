"""The loop of a scenario's engine, without a clock: what happens as a request comes and goes, and at the
beginning and the end of a step. That of several engines is an extra's.

Whoever drives it has the clock, a real or a virtual one: it tells the loop the time, lets steps take theirs,
and hands out the tokens.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence


class Client(Protocol):
    """Who waits for the tokens of a request, as the loop sees it."""

    sequence: EngineSequence | None
    """The request's sequence in the engine that has it now; before that the one to be submitted."""
    replica: int
    """Number of that engine."""

    @property
    def session(self) -> Hashable | None:
        """The session that the request says it belongs to."""


C = TypeVar("C", bound=Client)


class Replica(Generic[C]):
    """One engine, and the requests that it has."""

    def __init__(self, number: int, engine: Engine) -> None:
        self.number = number
        self.engine = engine
        self.in_flight: dict[EngineSequence, C] = {}
        """Who waits for each sequence that was given to the engine and has not ended."""
        self.down_until_ns = 0
        """Instant until which the engine recovers from a crash."""

    @property
    def requests(self) -> int:
        """Number of requests that were given to it and have not ended."""
        return len(self.in_flight)

    @property
    def prompt_tokens(self) -> int:
        """Sum of the prompt tokens of its :attr:`requests`."""
        return sum(sequence.prompt_tokens for sequence in self.in_flight)

    def cached_tokens(self, sequence: EngineSequence) -> int:
        """Number of tokens at the beginning of the prompt that its prefix cache holds."""
        return self.engine.cached_tokens(sequence)

    def take(self, sequence: EngineSequence, client: C) -> None:
        """Queue a sequence. QueueFullError if the engine takes no more."""
        self.engine.submit(sequence)
        client.sequence, client.replica = sequence, self.number
        self.in_flight[sequence] = client

    def expect(self, decode: EngineSequence, client: C, now_ns: int) -> None:  # noqa: ARG002 - a truth needs it
        """Take a sequence whose prompt another engine has computed at ``now_ns``."""
        self.engine.expect(decode)
        client.sequence, client.replica = decode, self.number
        self.in_flight[decode] = client

    def reserve(self, now_ns: int) -> list[EngineSequence]:  # noqa: ARG002 - a truth needs it
        """The expected sequences whose blocks may be sent from ``now_ns`` on."""
        return self.engine.reserve()

    def receive(self, decode: EngineSequence, begun_ns: int, now_ns: int) -> bool:
        """Note that a transfer to it has ended. Returns False if the request has gone meanwhile."""
        return self.engine.receive(decode, now_ns - begun_ns)

    def wake(self) -> None:
        """Look again whether there is something to do. One that is looked at all the time needs no waking."""


R = TypeVar("R", bound=Replica[Any])


class EngineLoop(Generic[C, R]):
    """One engine, and who waits for its tokens."""

    stages = 1
    """2: prompts are passed on to another engine (:meth:`pass_on`), and things must be settled."""

    def __init__(self, replicas: Sequence[R]) -> None:
        self.replicas = tuple(replicas)
        self.down_until_ns = 0
        """Instant before which no engine is up."""

    def submit(self, client: C, now_ns: int) -> None:  # noqa: ARG002 - several are chosen among by their state
        """Hand the client's sequence to an engine. QueueFullError if that takes no more."""
        assert client.sequence is not None
        self.replicas[0].take(client.sequence, client)

    def note_failed(self, replica: R, step: StepResult, now_ns: int) -> None:
        """Note that sequences have failed at the beginning of a step. To tell who waits for them is the
        driver's part."""
        if step.crashed:
            self.crash(replica, now_ns)

    def pass_on(self, replica: R, step: StepResult, now_ns: int) -> None:
        """Pass on the prompts that a step completed as it ended."""

    def crash(self, replica: R, now_ns: int) -> None:
        """Put an engine that has crashed out of service for as long as it takes to recover."""
        replica.down_until_ns = now_ns + round(replica.engine.config.recovery_ms * 1e6)
        self.down_until_ns = min(each.down_until_ns for each in self.replicas)

    def drop(self, client: C) -> bool:
        """Free what the client's sequence holds, as nobody waits for it any more. Returns False if it has
        ended before. Others get its place with :meth:`settle`."""
        replica, sequence = self.replicas[client.replica], client.sequence
        if sequence is None or replica.in_flight.pop(sequence, None) is None:
            return False
        replica.engine.abort(sequence)
        return True

    def abort_all(self) -> None:
        """Free what every sequence holds. Who waits for them stays noted."""
        for replica in self.replicas:
            for sequence in replica.in_flight:
                replica.engine.abort(sequence)

    def settle(self, now_ns: int) -> None:
        """Give to others what was dropped or has failed."""
