"""Prefill and decode on engines of their own in virtual time: prompts, transfers and output of a request."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.simulator.engine.router import Router, RouterOptions
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.engine.step_result import StepResult
from pytest_llmbench.simulator.replay.records import Flight
from pytest_llmbench.simulator.replay.replica import Replica
from pytest_llmbench.simulator.replay.routed import RoutedRun


@dataclass(slots=True, eq=False)
class Handover:
    """A prompt that has been computed, on its way to the engine that decodes."""

    source: Replica
    prompt: EngineSequence
    target: Replica
    decode: EngineSequence
    begun_ns: int = 0
    """The transfer begins: the target has blocks for it."""


class DisaggregatedRun(RoutedRun):
    """A plan on some engines that compute prompts and others that decode.

    The request is routed to the first kind, and as its prompt is through to the second. There it waits for
    the blocks of its prompt, then for what belongs into them (the transfer), then for a place in the batch.
    The engine that computed it holds its blocks until the transfer is over, also if nobody waits for it any
    more. At one instant steps end, then transfers, then the rest in the order of :class:`RoutedRun`.
    """

    def __init__(self, *args: Any, options: RouterOptions, **given: Any) -> None:
        super().__init__(*args, router=Router(options.policy, options.router_max_lead), **given)
        self._options = options
        self._prefillers = self.replicas[: options.prefill_workers]
        self._decoders = self.replicas[options.prefill_workers :]
        self._decode_router = Router(options.decode_policy)
        self._waiting: dict[EngineSequence, Handover] = {}
        """Those whose target has no blocks for them yet."""
        self._transfers: list[tuple[int, int, Handover]] = []
        """A heap of the transfers under way: their end, their number."""
        self._begun = 0

    def _play(self) -> None:
        super()._play()
        self._drop_given_up()

    def _next_ns(self) -> int | None:
        due_ns = super()._next_ns()
        if not self._transfers:
            return due_ns
        ends_ns = self._transfers[0][0]
        return ends_ns if due_ns is None else min(due_ns, ends_ns)

    # The first stage.

    def _queue(self, flight: Flight) -> None:
        whole = flight.sequence
        assert whole is not None
        if self._generates:
            flight.decode = whole
            flight.sequence = EngineSequence(
                "",
                whole.prompt_tokens,
                1,
                generates=False,
                hands_over=True,
                token_ids=whole.token_ids,
                prefix_hashes=whole.prefix_hashes,
            )
        super()._queue(flight)

    def _route(self, flight: Flight, sequence: EngineSequence) -> Replica:
        return self._chosen(self._router, self._prefillers, flight, sequence)

    # From one to the other.

    def _finish(self, flight: Flight, sequence: EngineSequence) -> None:
        if sequence.hands_over and sequence.finish_reason != "error":
            self._pass_on(flight, sequence)
        else:
            super()._finish(flight, sequence)

    def _pass_on(self, flight: Flight, prompt: EngineSequence) -> None:
        """The prompt is computed: choose who decodes."""
        source, decode = self.replicas[flight.replica], flight.decode
        assert decode is not None
        decode.prefix_hashes = prompt.prefix_hashes
        target = self._chosen(self._decode_router, self._decoders, flight, decode)
        flight.sequence, flight.decode, flight.replica = decode, None, target.number
        target.in_flight[decode] = flight
        target.engine.expect(decode)
        self._waiting[decode] = Handover(source, prompt, target, decode)
        self._begin_transfers(target)

    def _begin_transfers(self, target: Replica) -> None:
        """Send what the engine has blocks for by now."""
        for decode in target.engine.reserve():
            handover = self._waiting.pop(decode)
            handover.begun_ns = self.now_ns
            decode.cached_tokens = handover.prompt.cached_tokens
            took_ns = self._options.transfer_ns(self._config, decode.received_blocks)
            self._begun += 1
            heapq.heappush(self._transfers, (self.now_ns + took_ns, self._begun, handover))

    def _end_steps(self) -> None:
        super()._end_steps()
        while self._transfers and self._transfers[0][0] <= self.now_ns:
            ends_ns, _, handover = heapq.heappop(self._transfers)
            handover.source.engine.release(handover.prompt)
            if handover.decode in handover.target.in_flight:
                handover.target.engine.receive(handover.decode, ends_ns - handover.begun_ns)
        self._drop_given_up()

    def _complete(self, replica: Replica, step: StepResult) -> None:
        super()._complete(replica, step)
        if replica in self._decoders:
            self._begin_transfers(replica)

    # Requests that nobody waits for any more.

    def _look(self) -> None:
        super()._look()
        self._begin_all_transfers()

    def _cut_those_due(self) -> None:
        due = bool(self._cuts) and self._cuts[0][0] <= self.now_ns
        super()._cut_those_due()
        if due:
            self._begin_all_transfers()

    def _begin_all_transfers(self) -> None:
        """What was given up has left blocks."""
        for target in self._decoders:
            self._begin_transfers(target)

    def _drop_given_up(self) -> None:
        """Free the blocks of prompts that will not be sent."""
        gone = [each for each in self._waiting.values() if each.decode not in each.target.in_flight]
        for handover in gone:
            del self._waiting[handover.decode]
            handover.source.engine.release(handover.prompt)

    def _abort_all(self) -> None:
        super()._abort_all()
        for handover in self._waiting.values():
            handover.source.engine.release(handover.prompt)
        self._waiting.clear()
