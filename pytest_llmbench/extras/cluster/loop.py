"""The loop of several engines: which of them takes a request, and how prompts go from one to another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic

from pytest_llmbench.extras.cluster.router import Router
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.deployment import At
from pytest_llmbench.simulator.engine.loop import C, EngineLoop, R
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence


@dataclass(slots=True, eq=False)
class Handover(Generic[R]):
    """The handover of one prompt."""

    prompt: EngineSequence
    decode: EngineSequence
    source: R
    target: R


class ClusterLoop(EngineLoop[C, R]):
    """The engines, the router before them, and the handovers between them.

    With prefill and decode apart a request is routed to an engine of the first kind, and as its prompt is
    through to one of the second. There it waits for the blocks of its prompt, then for what belongs into them
    (the transfer), then for a place in the batch. The source holds the blocks of a prompt until its transfer
    has ended, also if nobody waits for it any more; a prompt whose request is gone before its transfer has
    begun is not sent.
    """

    def __init__(
        self,
        replicas: Sequence[R],
        router: Router,
        at: At,
        *,
        prefill_workers: int,
        decode_router: Router,
        transfer_ns: Callable[[EngineConfig, int], int],
    ) -> None:
        """``transfer_ns``: the duration of the transfer of so many blocks from an engine of these figures."""
        super().__init__(replicas)
        self.stages = 2 if prefill_workers else 1
        self._takers = self.replicas[:prefill_workers] or self.replicas
        self._decoders = self.replicas[prefill_workers:] if prefill_workers else ()
        self._router, self._decode_router = router, decode_router
        self._at, self._transfer_ns = at, transfer_ns
        self._dropped = False
        """Whether something was dropped or has failed since things were settled."""
        self._waiting: dict[EngineSequence, Handover[R]] = {}
        """Handovers whose target has no blocks for them yet, by the sequence that decodes."""

    def submit(self, client: C, now_ns: int) -> None:
        sequence = client.sequence
        assert sequence is not None
        if self.stages == 2 and sequence.generates:
            sequence = sequence.prompt()
        self._chosen(self._router, self._takers, sequence, client, now_ns).take(sequence, client)

    def _chosen(
        self, router: Router, replicas: Sequence[R], sequence: EngineSequence, client: C, now_ns: int
    ) -> R:
        """The one of ``replicas`` that the router chooses for the request; those that are down are passed
        over."""
        up = [place for place, replica in enumerate(replicas) if replica.down_until_ns <= now_ns]
        return replicas[router.choose(replicas, up or range(len(replicas)), sequence, client.session)]

    def note_failed(self, replica: R, step: StepResult, now_ns: int) -> None:
        self._dropped = True
        super().note_failed(replica, step, now_ns)

    def drop(self, client: C) -> bool:
        dropped = super().drop(client)
        self._dropped |= dropped
        return dropped

    def abort_all(self) -> None:
        super().abort_all()
        self._dropped = True

    def pass_on(self, replica: R, step: StepResult, now_ns: int) -> None:
        """Pass on the prompts that a step completed as it ended, and send what its engine has room for
        now."""
        for prompt in step.finished:
            client = replica.in_flight.pop(prompt, None) if prompt.decode is not None else None
            if client is not None:
                self._to_decoder(replica, prompt, client, now_ns)
        if replica in self._decoders:
            self._send(replica, now_ns)

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
        for decode in target.reserve(now_ns):
            took_ns = self._transfer_ns(target.engine.config, decode.received_blocks)
            self._at(now_ns + took_ns, partial(self._end_transfer, self._waiting.pop(decode), now_ns))

    def _end_transfer(self, handover: Handover[R], begun_ns: int, now_ns: int) -> None:
        handover.source.engine.release(handover.prompt)
        handover.target.receive(handover.decode, begun_ns, now_ns)
        handover.source.wake()
        handover.target.wake()
