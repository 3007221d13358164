"""A server of sessions with known instants that answers LoadPlans without a network or a clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import groupby

import numpy as np
from canned_levels import QueueServer

from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.sequence import drawn

MS = 1_000_000


def nothing(row: RequestRecord, request: PlannedRequest, plan: LoadPlan) -> None:
    """As it is."""


@dataclass
class SessionServer:
    """Any number of turns at once: the first token comes after ``first_ms``, the last one 90 ms later. A turn
    that fails ends its session."""

    first_ms: Callable[[PlannedRequest, LoadPlan], float]
    change: Callable[[RequestRecord, PlannedRequest, LoadPlan], None] = nothing
    """What else is to be said of a reply."""
    plans: list[LoadPlan] = field(default_factory=list)
    warm_up: QueueServer = field(default_factory=QueueServer)
    now_ns: int = 2_000_000_000_000

    def __call__(self, plan: LoadPlan) -> Observation:
        if not plan.load.of_sessions:
            return self.warm_up(plan)
        self.plans.append(plan)
        start = self.now_ns
        free, rows = [start] * (plan.load.in_flight or 0), list[RequestRecord]()
        requests = drawn(plan.workload, 0, plan.requests, plan.seed)
        for _, turns in groupby(requests, lambda each: each.turn.session if each.turn else 0):
            at = heapq.heappop(free)
            for request in turns:
                assert request.turn is not None
                rows.append(self._row(plan, request, at + request.turn.pause_ns))
                at = rows[-1].finished_ns or 0
                if rows[-1].outcome is not Outcome.OK:
                    break
            heapq.heappush(free, at)
        records = Records.from_rows(rows)
        self.now_ns = int(records.finished_ns.max()) + MS
        anchor, check = ClockAnchor(start, 1), SelfCheck(send_lag_p99_ns=0)
        return Observation(plan, records, start, self.now_ns - MS, anchor, check)

    def _row(self, plan: LoadPlan, request: PlannedRequest, at: int) -> RequestRecord:
        assert request.turn is not None
        first = at + round(self.first_ms(request, plan) * MS)
        stamps = np.linspace(first, first + 90 * MS, request.max_tokens).astype(np.int64).tolist()
        row = RequestRecord(
            index=request.index,
            request_id=f"canned-{request.index}",
            phase=plan.phase,
            scheduled_ns=at,
            dispatched_ns=at,
            submitted_ns=at,
            finished_ns=stamps[-1],
            input_tokens=request.input_tokens,
            requested_input_tokens=request.input_tokens,
            requested_max_tokens=request.max_tokens,
            class_label=request.class_label,
            shared_prefix_tokens=request.shared_prefix_tokens,
        )
        row.session, row.turn, row.session_turns = (
            request.turn.session, request.turn.number, request.turn.turns,
        )  # fmt: skip
        row.outcome, row.finish_reason, row.http_status = Outcome.OK, "length", 200
        row.first_byte_ns = row.first_event_ns = row.first_nonempty_ns = row.first_content_ns = first
        row.chunk_ns, row.chunk_tokens, row.last_content_ns = stamps, [1] * len(stamps), stamps[-1]
        row.output_tokens, row.token_source = len(stamps), TokenSource.SERVER_USAGE
        self.change(row, request, plan)
        return row


@dataclass
class Disturbed(SessionServer):
    """A server beside which this machine spoils the first attempts of some levels, and their figures."""

    spoiled: dict[int, int] = field(default_factory=dict)
    """How many attempts, by the sessions at once."""
    sent: list[LoadPlan] = field(default_factory=list)
    """All plans, those of no sessions too."""

    def __call__(self, plan: LoadPlan) -> Observation:
        self.sent.append(plan)
        seen, slots = super().__call__(plan), plan.load.in_flight or 0
        if not plan.load.of_sessions or not self.spoiled.get(slots):
            return seen
        self.spoiled[slots] -= 1
        late = replace(
            seen.records,
            dispatched_ns=seen.records.scheduled_ns + 80 * MS,
            first_content_ns=seen.records.first_content_ns + 700 * MS,
            cached_tokens=seen.records.turn,
        )
        return replace(seen, records=late, selfcheck=SelfCheck(send_lag_p99_ns=80 * MS))
