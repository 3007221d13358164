"""One LoadPlan, dealt to several workers: who sends which request, and when. Nothing is drawn twice.

Requests and arrival instants are drawn once, here, and dealt by position, so the union of what the workers
send is the declared load: with an open loop position p goes to worker p mod n at its own instant of the one
schedule. (Workers that each draw a Poisson stream of their own from one seed are not Poisson together.)

With a closed loop of C slots, slot s belongs to worker s mod n and position p to slot p mod C, so every
worker gets requests in proportion to its slots, and all run out at about the same time. Which slot a request
belongs to is known beforehand, so of a load that a duration ends the last few positions may have gaps: a
worker that was faster has gone further. ``requests`` and the ceiling are split in the same way, exactly.

Sessions are dealt whole, in the same two ways: a session stays on its worker, since its turns wait for one
another.

Requests are handed out while they are drawn, in blocks, so that they never exist together.
"""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import islice
from operator import attrgetter
from typing import Any

from pytest_llmbench.arrivals import starts_ns, turn_of
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.records.supply import FRAME_LENGTH, DealtWorkload
from pytest_llmbench.generator.workers.protocol import UNSAYABLE, Requests, refusal
from pytest_llmbench.model.plan import (
    LoadPlan,
    OpenLoop,
)
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.sequence import AT_ONCE, passing, texts_of

BLOCK_BYTES = 64 * 1024
"""The size of a block: less than the buffer of a line holds, so that it is written at once where the other
end reads."""
_ALL_BLOCKS_BYTES = 32 * 1024 * 1024
"""The size of all blocks together: each worker, of a thousand perhaps, has a block that is being filled."""
_TOKENS_AT_ONCE = 8192
"""Input tokens that are made into text together: some twenty short prompts, or a single long one."""
_NAMES = [field.name for field in fields(PlannedRequest)]
_IDS, _TEXT, _LABEL = map(_NAMES.index, ("token_ids", "text", "class_label"))
_values = attrgetter(*_NAMES)
_PLAIN = (array, list, tuple, type(None))


class Deal:
    """Deals a plan to workers: their requests by :meth:`blocks`, once; then what they are to do with them."""

    def __init__(
        self,
        plan: LoadPlan,
        workers: int,
        *,
        as_text: bool = False,
        all_blocks_bytes: int = _ALL_BLOCKS_BYTES,
    ) -> None:
        """Deal the plan to ``workers``, or to fewer where there are fewer slots or requests.

        ``as_text``: prompts go as text, which is made here, so that a worker need not load a tokenizer.
        Raises SuiteError.
        """
        self.workers = active_workers(plan, workers)
        self._plan = plan
        self._as_text = as_text
        self._shares = [_Share() for _ in range(self.workers)]
        # What defines no schedule is refused before anything is dealt; sessions have their numbers first.
        self._starts_ns = None if plan.load.of_sessions else starts_ns(plan, 0)
        self._block_bytes = min(BLOCK_BYTES, all_blocks_bytes // self.workers)
        self._tokens = 0

    def blocks(self, wanted: Callable[[], bool] = lambda: True) -> Iterator[tuple[int, Requests]]:
        """Goes through the sequence and gives what each worker is to be told. ``wanted``: asked before each
        request. Raises SuiteError for requests that cannot be handed over, and for a sequence that ends."""
        plan, dealt, job, session = self._plan, 0, -1, -1
        cycle = plan.load.in_flight or self.workers
        for request, frame in self._packed():
            if not wanted():
                return
            before, session = session, turn_of(request).session if plan.load.of_sessions else dealt
            begins = session != before
            job += begins
            number = job % cycle % self.workers
            share = self._shares[number]
            share.add(frame)
            if self._starts_ns is None:
                self._starts_ns = starts_ns(plan, session)
            if begins:
                share.instants.extend(islice(self._starts_ns, 1))
            share.least += dealt < plan.requests
            self._tokens += request.max_tokens
            dealt += 1
            while share.waiting_bytes >= self._block_bytes:
                yield number, share.block(self._block_bytes)
        if dealt < plan.most_requests:
            raise SuiteError(
                f"gives {dealt} requests where {plan.most_requests} are wanted",
                where=f"workload {plan.workload.name!r}",
                remedy="let requests(count, seed) give `count` requests, or request fewer",
            )
        for number, share in enumerate(self._shares):
            # One without requests must be told too.
            if share.waiting_bytes or share.instants or not share.size:
                yield number, share.block(self._block_bytes)

    def _packed(self) -> Iterator[tuple[PlannedRequest, bytes]]:
        plan = self._plan
        for requests in _some(passing(plan.workload, plan.first, plan.most_requests, plan.seed)):
            texts = texts_of(requests) if self._as_text else [None] * len(requests)
            for request, text in zip(requests, texts, strict=True):
                yield request, packed(request, text)

    @property
    def mean_tokens(self) -> float:
        """Output tokens that a request asks for; once all have been dealt."""
        count = sum(share.count for share in self._shares)
        return self._tokens / count if count else 0.0

    def plans(self) -> list[LoadPlan]:
        """What each worker is to do, once all requests have been dealt."""
        return [self._plan_of(number, share) for number, share in enumerate(self._shares)]

    def _plan_of(self, number: int, share: _Share) -> LoadPlan:
        plan, load = self._plan, self._plan.load
        changes: dict[str, Any] = {"requests": share.least, "first": 0}
        changes["workload"] = DealtWorkload(plan.workload.name, share.size, self.mean_tokens)
        # Of several shares the coordinator, who sees all ends, says whether the SUT has stopped answering.
        changes["watched"] = plan.watched and self.workers == 1
        if isinstance(load, OpenLoop):  # its instants are with the requests
            most = load.most_in_flight
            changes["load"] = OpenLoop(
                load.rate / self.workers,
                "trace",
                of_sessions=load.of_sessions,
                most_in_flight=None if most is None else split(most, self.workers)[number],
            )
        else:
            changes["load"] = replace(load, concurrency=split(load.concurrency, self.workers)[number])
            changes["max_requests"] = share.count if plan.duration_s is not None else None
        return plan.with_(**changes)


class _Share:
    """One worker's, as far as it has been dealt."""

    def __init__(self) -> None:
        self.count = 0
        self.least = 0
        """The requests among them that are sent in any case."""
        self.size = 0
        """Bytes of packed requests that have been handed out."""
        self.waiting_bytes = 0
        """Bytes of those that wait to be handed out."""
        self.instants: array[int] = array("q")
        self._frames: list[bytes] = []
        self._joined = bytearray()

    def add(self, frame: bytes) -> None:
        self._frames.append(frame)
        self.waiting_bytes += len(frame)
        self.count += 1

    def block(self, size: int) -> Requests:
        self._joined += b"".join(self._frames)  # at once: by and by it would be copied as it grows
        self._frames.clear()
        block = Requests(self.size, bytes(self._joined[:size]), self.instants.tobytes())
        self.size += len(block.frames)
        self.waiting_bytes -= len(block.frames)
        del self._joined[:size], self.instants[:]
        return block


def active_workers(plan: LoadPlan, workers: int) -> int:
    """How many of ``workers`` there is something to do for: no more than slots, nor than requests."""
    slots = plan.load.in_flight or plan.load.most_in_flight or workers
    return max(1, min(workers, slots, plan.requests))


def split(total: int, parts: int) -> list[int]:
    """``total`` in ``parts`` whole numbers that differ by one at most, the larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def _some(requests: Iterator[PlannedRequest]) -> Iterator[list[PlannedRequest]]:
    """The requests, as many at a time as have :data:`_TOKENS_AT_ONCE`."""
    some: list[PlannedRequest] = []
    tokens = 0
    for request in requests:
        some.append(request)
        tokens += request.input_tokens
        if tokens >= _TOKENS_AT_ONCE or len(some) >= AT_ONCE:
            yield some
            some, tokens = [], 0
    if some:
        yield some


def packed(request: PlannedRequest, text: str | None = None) -> bytes:
    """Pack a request for a process that does not load the suite's modules: without types that only the
    author's knows; its length comes first.

    ``text``: the prompt goes as this text instead of its ids. Raises SuiteError for what cannot be packed.
    """
    values = list(_values(request))
    if text is not None:
        # Rendering messages takes no tokenizer: the other end does it.
        values[_TEXT] = None if request.messages is not None else text
        # An empty tuple: it was decoded from ids, and what it holds is nobody's meaning.
        values[_IDS] = () if request.text is None and request.messages is None else None
    elif isinstance(request.token_ids, memoryview):  # a prompt of a session, part of a longer array
        values[_IDS] = array("I", request.token_ids.tobytes())
    elif type(request.token_ids) not in _PLAIN:
        values[_IDS] = [int(token) for token in request.token_ids or ()]
    values[_LABEL] = str(request.class_label)
    if values[_TEXT] is not None:
        values[_TEXT] = str(values[_TEXT])
    try:
        frame = pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
    except UNSAYABLE as error:
        raise refusal(error, "requests") from error
    return FRAME_LENGTH.pack(len(frame)) + frame
