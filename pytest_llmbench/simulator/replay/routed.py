"""Several replicas behind a router in virtual time: each has its own steps, side by side."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

from pytest_llmbench.simulator.engine.router import Router
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.records import InFlight
from pytest_llmbench.simulator.replay.replica import Replica
from pytest_llmbench.simulator.replay.run import ReplayRun


class RoutedRun(ReplayRun):
    """One plan on several replicas. Events are processed in the order of time, at one instant in this order:
    steps end, requests arrive, deadlines run out, steps begin.

    A request is routed at the instant at which it joins a queue, by what is in the replicas then. A block of
    a prompt is in a prefix cache from the beginning of the step on that computes it, as in one engine.
    """

    def __init__(self, *args: Any, router: Router, **options: Any) -> None:
        super().__init__(*args, **options)
        self._router = router

    def _play(self) -> None:
        while True:
            if self._ended >= self._batch:
                self._hand_over_ended()
            due_ns = self._next_ns()
            if due_ns is None:
                return
            self.now_ns = max(self.now_ns, due_ns)
            self._sample_idle()
            self._end_steps()
            if self.now_ns >= self._deadline_ns and self.interrupted is None:
                self._give_up()
                continue
            self._take_in()
            if self.now_ns >= self._patience.look_ns:
                self._look()
            self._begin_steps()

    def _next_ns(self) -> int | None:
        """The next instant at which something happens; None: nothing will."""
        due = [replica.ends_ns for replica in self.replicas if replica.step is not None]
        arrives_ns = self._arrivals.next_ns()
        if arrives_ns is not None:
            due.append(arrives_ns)
        if self._screened:
            due.append(self._screened[0][0])
        if self._cuts and due:
            due.append(self._cuts[0][0])
        return min(due, default=None)

    def _sample_idle(self) -> None:
        """Sample the gauges of engines without a step, before anything about them changes."""
        for replica in self.replicas:
            if replica.step is None and replica.gauges.due_ns < self.now_ns:
                replica.gauges.idle_until(self.now_ns)

    def _end_steps(self) -> None:
        for replica in self.replicas:
            step = replica.step
            if step is not None and replica.ends_ns <= self.now_ns:
                replica.step = None
                self._complete(replica, step)

    def _take_in(self) -> None:
        self._cut_those_due()
        arrives_ns = self._arrivals.next_ns()
        while arrives_ns is not None and arrives_ns <= self.now_ns:
            self._receive(self._arrivals.take())
            arrives_ns = self._arrivals.next_ns()
        while self._screened and self._screened[0][0] <= self.now_ns:
            self._queue(heapq.heappop(self._screened)[2])

    def _begin_steps(self) -> None:
        for replica in self.replicas:
            if replica.step is not None:
                continue
            if not replica.engine.idle:
                replica.step = replica.engine.step()
                replica.ends_ns = self._begin(replica, replica.step)

    def _route(self, flight: InFlight, sequence: EngineSequence) -> Replica:
        return self._chosen(self._router, self.replicas, flight, sequence)

    def _chosen(
        self, router: Router, replicas: Sequence[Replica], flight: InFlight, sequence: EngineSequence
    ) -> Replica:
        """The one of ``replicas`` that the router chooses for the request; those that are down are passed
        over."""
        up = [place for place, replica in enumerate(replicas) if replica.down_until_ns <= self.now_ns]
        turn = flight.planned.turn
        session = None if turn is None else turn.session
        return replicas[router.choose(replicas, up or range(len(replicas)), sequence, session)]

    def _down_until_ns(self) -> int:
        return min(replica.down_until_ns for replica in self.replicas)

    def _running(self) -> int:
        return sum(replica.requests for replica in self.replicas)

    def _cancel(self, why: str) -> None:
        """Cancel the plan: steps under way no longer come to their end, so neither do their tokens."""
        reads_until_ns = self.now_ns + self._to_client_ns
        for replica in self.replicas:
            for flight in replica.in_flight.values():
                read_ns = self._token_ns(flight) + self._to_client_ns
                flight.read_ns = read_ns[read_ns <= reads_until_ns]
        super()._cancel(why)
