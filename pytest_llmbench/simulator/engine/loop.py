"""The loop of a scenario's engines, without a clock: which engine takes a request, what happens at the
beginning and the end of a step, and how prompts go from one engine to another (disaggregated serving).

Whoever drives it has the clock, a real or a virtual one: it tells the loop the time, lets steps and transfers
take theirs, and hands out the tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.router import Router, RouterOptions
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

    def receive(self, handover: Handover[Any], now_ns: int) -> bool:
        """Note that a transfer to it has ended. Returns False if the request has gone meanwhile."""
        return self.engine.receive(handover.decode, now_ns - handover.begun_ns)

    def wake(self) -> None:
        """Look again whether there is something to do. One that is looked at all the time needs no waking."""


R = TypeVar("R", bound=Replica[Any])


@dataclass(slots=True, eq=False)
class Handover(Generic[R]):
    """The handover of one prompt."""

    prompt: EngineSequence
    decode: EngineSequence
    source: R
    target: R
    begun_ns: int = 0
    """Instant at which the transfer begins, once the target has blocks for it."""


class EngineLoop(ABC, Generic[C, R]):
    """The engines, the router before them, and the handovers between them.

    With prefill and decode apart a request is routed to an engine of the first kind, and as its prompt is
    through to one of the second. There it waits for the blocks of its prompt, then for what belongs into them
    (the transfer), then for a place in the batch. The source holds the blocks of a prompt until its transfer
    has ended, also if nobody waits for it any more; a prompt whose request is gone before its transfer has
    begun is not sent.
    """

    def __init__(self, replicas: Sequence[R], options: RouterOptions) -> None:
        self.replicas = tuple(replicas)
        self.down_until_ns = 0
        """Instant before which no engine is up."""
        self._options = options
        self._takers = self.replicas[: options.prefill_workers] or self.replicas
        self.stages = 2 if options.disaggregated else 1
        """2: prompts have to be passed on to another engine (:meth:`pass_on`)."""
        self._decoders = self.replicas[options.prefill_workers :] if options.disaggregated else ()
        self._router = Router(options.policy, options.router_max_lead)
        self._decode_router = Router(options.decode_policy)
        self._dropped = False
        """Whether something was dropped or has failed since things were settled."""
        self._waiting: dict[EngineSequence, Handover[R]] = {}
        """Handovers whose target has no blocks for them yet, by the sequence that decodes."""

    @abstractmethod
    def send_until(self, ends_ns: int, handover: Handover[R]) -> None:
        """Let a transfer take its time, and then call :meth:`end_transfer`."""

    def submit(self, client: C, now_ns: int) -> None:
        """Hand the client's sequence, or with prefill and decode apart its prompt, to the engine that the
        router chooses. QueueFullError if that takes no more."""
        sequence = client.sequence
        assert sequence is not None
        if self.stages == 2 and sequence.generates:
            sequence = sequence.prompt()
        takers = self._takers
        one = len(takers) == 1
        replica = takers[0] if one else self._chosen(self._router, takers, sequence, client, now_ns)
        replica.take(sequence, client)

    def _chosen(
        self, router: Router, replicas: Sequence[R], sequence: EngineSequence, client: C, now_ns: int
    ) -> R:
        """The one of ``replicas`` that the router chooses for the request; those that are down are passed
        over."""
        up = [place for place, replica in enumerate(replicas) if replica.down_until_ns <= now_ns]
        return replicas[router.choose(replicas, up or range(len(replicas)), sequence, client.session)]

    def note_failed(self, replica: R, step: StepResult, now_ns: int) -> None:
        """Note that sequences have failed at the beginning of a step. To tell who waits for them is the
        driver's part."""
        self._dropped = True
        if step.crashed:
            self.take_down(replica, now_ns + step.duration_ns)

    def pass_on(self, replica: R, step: StepResult, now_ns: int) -> None:
        """Pass on the prompts that a step completed as it ended, and send what its engine has room for
        now."""
        for prompt in step.finished:
            client = replica.in_flight.pop(prompt, None) if prompt.decode is not None else None
            if client is not None:
                self._to_decoder(replica, prompt, client, now_ns)
        if replica in self._decoders:
            self._send(replica, now_ns)

    def take_down(self, replica: R, until_ns: int) -> None:
        """Put an engine that has crashed out of service."""
        replica.down_until_ns = until_ns
        self.down_until_ns = min(each.down_until_ns for each in self.replicas)

    def drop(self, client: C) -> bool:
        """Free what the client's sequence holds, as nobody waits for it any more. Returns False if it has
        ended before. Others get its place with :meth:`settle`."""
        replica, sequence = self.replicas[client.replica], client.sequence
        if sequence is None or replica.in_flight.pop(sequence, None) is None:
            return False
        replica.engine.abort(sequence)
        self._dropped = True
        return True

    def settle(self, now_ns: int) -> None:
        """Drop the handovers whose requests have been dropped or failed, and send what there is room for
        now."""
        if self.stages == 1 or not self._dropped:
            return
        self._dropped = False
        for decode, handover in list(self._waiting.items()):
            if not handover.target.engine.expects(decode):
                del self._waiting[decode]
                handover.source.engine.release(handover.prompt)
        for target in self._decoders:
            self._send(target, now_ns)
        for replica in self.replicas:
            replica.wake()

    def _to_decoder(self, source: R, prompt: EngineSequence, client: C, now_ns: int) -> None:
        """Choose the engine that decodes a prompt which has been computed."""
        decode = prompt.decode
        assert decode is not None
        target = self._chosen(self._decode_router, self._decoders, decode, client, now_ns)
        target.expect(decode, client, now_ns)
        self._waiting[decode] = Handover(prompt, decode, source, target)
        self._send(target, now_ns)

    def _send(self, target: R, now_ns: int) -> None:
        """Begin the transfers for which the engine now has blocks."""
        for decode in target.engine.reserve():
            handover = self._waiting.pop(decode)
            handover.begun_ns = now_ns
            took_ns = self._options.transfer_ns(target.engine.config, decode.received_blocks)
            self.send_until(now_ns + took_ns, handover)

    def end_transfer(self, handover: Handover[R], now_ns: int) -> None:
        """Note that a transfer has ended."""
        handover.source.engine.release(handover.prompt)
        handover.target.receive(handover, now_ns)
        handover.source.wake()
        handover.target.wake()
