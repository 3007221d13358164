"""The requests of a plan, drawn no further than the load goes."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.sequence import SequenceDigest, drawn
from pytest_llmbench.workloads.stream import StreamedWorkload

AT_ONCE = 8192
"""Requests that are drawn together."""


class PlanRequests:
    """Hands out the plan's requests in order, and knows which were taken.

    They are drawn a slice at a time: a long plan has no room for all of them, and a closed loop with a
    duration may send ``plan.ceiling`` requests and mostly sends far fewer. Its first slice is the least it
    sends, and each further one as long as all before it, up to :data:`AT_ONCE`.
    """

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._most = plan.most_requests
        self._slice: Sequence[PlannedRequest] = ()
        self._slice_start = 0
        self._drawn = 0
        self.taken = 0
        self._digest = SequenceDigest()
        self._draw(
            min(plan.requests, AT_ONCE) if isinstance(plan.workload, StreamedWorkload) else plan.requests
        )

    @property
    def exhausted(self) -> bool:
        """There are no more; a workload of ours never ends before the plan does."""
        if self.taken < self._drawn:
            return False
        if self.taken < self._most:
            self._draw(min(max(self.taken, 64), AT_ONCE))
        return self.taken >= self._drawn

    def __len__(self) -> int:
        """How many there are at most."""
        return self._most

    def take(self) -> PlannedRequest:
        """The next one; ask ``exhausted`` before."""
        request = self._slice[self.taken - self._slice_start]
        self.taken += 1
        self._digest.add(request)
        return request

    def sha256(self) -> str:
        """Identity of what was taken, in METHODOLOGY §4.3's format."""
        return self._digest.hexdigest()

    def _draw(self, count: int) -> None:
        start, plan = self._drawn, self._plan
        count = min(count, self._most - start)
        self._slice, self._slice_start = drawn(plan.workload, plan.first + start, count, plan.seed), start
        self._drawn = start + len(self._slice)
        if len(self._slice) < count:
            self._most = self._drawn


__all__ = ["PlanRequests"]
