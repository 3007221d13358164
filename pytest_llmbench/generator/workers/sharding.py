"""One LoadPlan, dealt to several workers: who sends which request, and when. Nothing is drawn twice.

Requests and arrival instants are drawn once, here, and dealt by position, so the union of what the workers
send is the declared load: with an open loop position p goes to worker p mod n at its own instant of the one
schedule. (Workers that each draw a Poisson stream of their own from one seed are not Poisson together.)

With a closed loop of C slots, slot s belongs to worker s mod n and position p to slot p mod C, so every
worker gets requests in proportion to its slots, and all run out at about the same time. Which slot a request
belongs to is known beforehand, so of a load that a duration ends the last few positions may have gaps: a
worker that was faster has gone further. ``requests`` and the ceiling are split in the same way, exactly.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.arrivals.schedule import arrival_seed, schedule_ns
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.prompts import with_text
from pytest_llmbench.workloads.sequence import drawn

_TEXTS = (str, type(None))
Positions = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DealtWorkload:
    """The requests of one worker, ready drawn. Its requests keep their numbers in the whole sequence."""

    name: str
    planned: list[PlannedRequest]
    """A list, so that it cannot be hashed: nothing remembers it beyond its plan."""
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:  # noqa: ARG002 - drawn already
        return self.planned[:count]

    def specification(self) -> Mapping[str, Any]:
        return {}


def deal(plan: LoadPlan, workers: int, *, as_text: bool = False) -> list[LoadPlan]:
    """The plans of the workers. Fewer than ``workers`` where there are fewer slots or requests than that.

    ``as_text``: prompts go as text, which is made here: a worker then need not load a tokenizer.
    """
    most = plan.most_requests
    planned = drawn(plan.workload, plan.first, most, plan.seed)
    count = active_workers(plan, workers)
    whose = owners(plan, count)
    offsets_ns = _offsets_ns(plan, plan.load) if isinstance(plan.load, OpenLoop) else None
    dealt = []
    for worker in range(count):
        own: Positions = np.flatnonzero(whose == worker)
        workload = DealtWorkload(
            plan.workload.name, [_portable(planned[position], as_text) for position in own.tolist()]
        )
        least = int(np.count_nonzero(own < plan.requests))
        changes: dict[str, Any] = {"workload": workload, "requests": least, "first": 0}
        # Of several shares the coordinator, who sees all ends, says whether the SUT has stopped answering.
        changes["stop_when_failing"] = plan.stop_when_failing and count == 1
        if isinstance(plan.load, OpenLoop):
            assert offsets_ns is not None
            instants = tuple(offsets_ns[own].tolist())
            changes["load"] = OpenLoop(plan.load.rate / count, arrival="trace", offsets_ns=instants)
        else:
            changes["load"] = ClosedLoop(split(plan.load.concurrency, count)[worker])
            changes["max_requests"] = len(own) if plan.duration_s is not None else None
        dealt.append(plan.with_(**changes))
    return dealt


def active_workers(plan: LoadPlan, workers: int) -> int:
    """How many of ``workers`` there is something to do for: no more than slots, nor than requests."""
    slots = plan.load.concurrency if isinstance(plan.load, ClosedLoop) else workers
    return max(1, min(workers, slots, plan.requests))


def owners(plan: LoadPlan, workers: int) -> Positions:
    """The worker of each position of the plan."""
    positions = np.arange(plan.most_requests, dtype=np.int64)
    if isinstance(plan.load, ClosedLoop):
        positions %= plan.load.concurrency
    owner: Positions = positions % workers
    return owner


def split(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` whole numbers that differ by one at most, the larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _portable(request: PlannedRequest, as_text: bool) -> PlannedRequest:
    """Without types that only the author's process knows: a worker does not load the suite's modules."""
    if as_text:
        request = replace(with_text([request])[0], token_ids=None)
    elif request.token_ids is not None and type(request.token_ids) not in (array, list, tuple):
        request = replace(request, token_ids=[int(token) for token in request.token_ids])
    if type(request) is PlannedRequest and type(request.class_label) is str and type(request.text) in _TEXTS:
        return request
    plain = {field.name: getattr(request, field.name) for field in fields(PlannedRequest)}
    plain["class_label"] = str(request.class_label)
    plain["text"] = None if request.text is None else str(request.text)
    return PlannedRequest(**plain)


def _offsets_ns(plan: LoadPlan, load: OpenLoop) -> Positions:
    """Instants from the start. A plan that takes up a sequence in the middle does so with its schedule."""
    whole = schedule_ns(load, plan.first + plan.requests, arrival_seed(plan.seed))
    base_ns = int(whole[plan.first - 1]) if plan.first else 0
    offsets: Positions = whole[plan.first :] - base_ns
    return offsets


__all__ = ["DealtWorkload", "active_workers", "deal", "owners", "split"]
