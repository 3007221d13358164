"""Disaggregated prefill and decode in virtual time: prompts, transfers and output of a request."""

from __future__ import annotations

import heapq
from typing import Any

from pytest_llmbench.simulator.engine.handovers import Handover, Handovers
from pytest_llmbench.simulator.engine.router import Router, RouterOptions
from pytest_llmbench.simulator.engine.scheduling import StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.records import InFlight
from pytest_llmbench.simulator.replay.replica import Replica
from pytest_llmbench.simulator.replay.routed import RoutedRun


class DisaggregatedRun(RoutedRun):
    """One plan on prefill engines and decode engines.

    The request is routed to the first kind, and as its prompt is through to the second. There it waits for
    the blocks of its prompt, then for what belongs into them (the transfer), then for a place in the batch.
    At one instant steps end, then transfers, then the rest in the order of :class:`RoutedRun`.
    """

    def __init__(self, *args: Any, options: RouterOptions, **given: Any) -> None:
        super().__init__(*args, router=Router(options.policy, options.router_max_lead), **given)
        self._prefillers = self.replicas[: options.prefill_workers]
        self._decoders = self.replicas[options.prefill_workers :]
        self._decode_router = Router(options.decode_policy)
        self._handovers: Handovers[Replica] = Handovers(options)
        self._transfers: list[tuple[int, int, Handover[Replica]]] = []
        """Heap of the transfers under way: (end, number, handover)."""
        self._begun = 0

    def _play(self) -> None:
        super()._play()
        self._handovers.drop_gone()

    def _next_ns(self) -> int | None:
        due_ns = super()._next_ns()
        if not self._transfers:
            return due_ns
        ends_ns = self._transfers[0][0]
        return ends_ns if due_ns is None else min(due_ns, ends_ns)

    # The first stage.

    def _queue(self, flight: InFlight) -> None:
        if self._generates:
            assert flight.sequence is not None
            flight.sequence = flight.sequence.prompt()
        super()._queue(flight)

    def _route(self, flight: InFlight, sequence: EngineSequence) -> Replica:
        return self._chosen(self._router, self._prefillers, flight, sequence)

    # From one to the other.

    def _finish(self, flight: InFlight, sequence: EngineSequence) -> None:
        if sequence.decode is not None and sequence.finish_reason != "error":
            self._pass_on(flight, sequence, sequence.decode)
        else:
            super()._finish(flight, sequence)

    def _pass_on(self, flight: InFlight, prompt: EngineSequence, decode: EngineSequence) -> None:
        """Choose the engine that decodes a prompt which has been computed."""
        source = self.replicas[flight.replica]
        target = self._chosen(self._decode_router, self._decoders, flight, decode)
        flight.sequence, flight.replica = decode, target.number
        target.in_flight[decode] = flight
        self._handovers.pass_on(prompt, decode, source, target)
        self._begin_transfers(target)

    def _begin_transfers(self, target: Replica) -> None:
        """Begin the transfers for which the engine now has blocks."""
        for handover in self._handovers.begin(target, self.now_ns):
            self._begun += 1
            heapq.heappush(self._transfers, (handover.ends_ns, self._begun, handover))

    def _end_steps(self) -> None:
        super()._end_steps()
        while self._transfers and self._transfers[0][0] <= self.now_ns:
            ends_ns, _, handover = heapq.heappop(self._transfers)
            self._handovers.end(handover, ends_ns)
        self._handovers.drop_gone()

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
        """Begin the transfers for which blocks were freed by requests that were given up."""
        for target in self._decoders:
            self._begin_transfers(target)

    def _abort_all(self) -> None:
        super()._abort_all()
        self._handovers.drop_gone()
