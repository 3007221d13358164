"""Streams made by hand, on the schedule of a plan: given TTFT, gaps, chunk sizes and refusals."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.methodology.procedure import Scale, Setting, WarmupPolicy
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import PlannedRequest, Workload
from pytest_llmbench.workloads.sequence import drawn

_MS = 1_000_000


def streaming_setting(workload: Workload, scale: Scale = "standard", **facts: object) -> Setting:
    return Setting(
        workload=workload,
        seed=42,
        scale=scale,
        facts=Facts.of(Origin.DECLARED, facts),
        warmup=WarmupPolicy(requests=2, output_tokens=0, probes=3),
    )


@dataclass
class StreamServer:
    """Executes plans; every request is served by itself, whatever the load. All laws get (plan, request)."""

    ttft_ms: Callable[[LoadPlan, PlannedRequest], float] = lambda plan, request: 50.0
    gaps_ms: Callable[[LoadPlan, PlannedRequest, int], Sequence[float]] = lambda plan, request, n: [10.0] * n
    """The n gaps between the tokens of a reply."""
    output_tokens: Callable[[PlannedRequest], int] = lambda request: request.max_tokens
    input_tokens: Callable[[PlannedRequest], int] = lambda request: request.input_tokens
    """As the server counts them."""
    refuses: Callable[[PlannedRequest], bool] = lambda request: False
    fails: Callable[[LoadPlan], bool] = lambda plan: False
    queue_wait_ms: Callable[[PlannedRequest], float] | None = None
    tokens_per_chunk: int = 1
    """The tokens of a chunk come with its last one."""
    server_instants: bool = False
    server_clock: float = 1.0
    """Speed of the clock by which the server tells its instants."""
    coalesced: int = 0
    """Chunks of each reply that shared a read."""
    now_ns: int = 1_000_000_000_000
    plans: list[LoadPlan] = field(default_factory=list)

    @property
    def measured(self) -> list[LoadPlan]:
        return [plan for plan in self.plans if plan.phase is Phase.MEASURE]

    def __call__(self, plan: LoadPlan) -> Observation:
        self.plans.append(plan)
        start = self.now_ns
        requests = drawn(plan.workload, plan.first, plan.requests, plan.seed)
        rows = self._open(plan, requests) if isinstance(plan.load, OpenLoop) else self._closed(plan, requests)
        records = Records.from_rows(rows)
        self.now_ns = int(records.finished_ns.max()) + _MS
        return Observation(
            plan=plan,
            records=records,
            started_ns=start,
            ended_ns=self.now_ns - _MS,
            anchor=ClockAnchor(start, 1_700_000_000_000_000_000),
            selfcheck=SelfCheck(send_lag_p99_ns=0),
            facts=Facts.of(Origin.GENERATOR, {"streaming.protocol": "sse"}),
        )

    def _open(self, plan: LoadPlan, requests: Sequence[PlannedRequest]) -> list[RequestRecord]:
        assert isinstance(plan.load, OpenLoop)
        offsets = schedule_ns(plan.load, plan.first + plan.requests, arrival_seed(plan.seed))
        base = int(offsets[plan.first - 1]) if plan.first else 0
        return [
            self._record(plan, request, self.now_ns + int(offset) - base)
            for request, offset in zip(requests, offsets[plan.first :], strict=True)
        ]

    def _closed(self, plan: LoadPlan, requests: Sequence[PlannedRequest]) -> list[RequestRecord]:
        assert not isinstance(plan.load, OpenLoop)
        free, rows = [self.now_ns] * plan.load.concurrency, []
        for request in requests:
            rows.append(self._record(plan, request, heapq.heappop(free)))
            heapq.heappush(free, rows[-1].finished_ns or 0)
        return rows

    def _record(self, plan: LoadPlan, request: PlannedRequest, submitted: int) -> RequestRecord:
        row = RequestRecord(
            index=request.index,
            request_id=f"canned-{request.index}",
            phase=plan.phase,
            class_label=request.class_label,
            scheduled_ns=submitted,
            dispatched_ns=submitted,
            submitted_ns=submitted,
            finished_ns=submitted + _MS,
            requested_input_tokens=request.input_tokens,
            requested_max_tokens=request.max_tokens,
            http_status=400,
        )
        if self.refuses(request) or self.fails(plan):
            row.outcome, row.error = Outcome.HTTP_ERROR, "400: maximum context length exceeded"
            row.http_status = 400 if self.refuses(request) else 500
            return row
        self._stream(row, plan, request)
        if self.queue_wait_ms is not None:
            row.queue_wait_ns = round(self.queue_wait_ms(request) * _MS)
        return row

    def _stream(self, row: RequestRecord, plan: LoadPlan, request: PlannedRequest) -> None:
        count = self.output_tokens(request)
        gaps = np.concatenate(([self.ttft_ms(plan, request)], self.gaps_ms(plan, request, count - 1)))
        assert row.submitted_ns is not None
        tokens_ns = (row.submitted_ns + np.cumsum(gaps) * _MS).round().astype(np.int64)
        sizes = [1] + [self.tokens_per_chunk] * ((count - 1) // self.tokens_per_chunk)
        if sum(sizes) < count:
            sizes.append(count - sum(sizes))
        chunks = tokens_ns[np.cumsum(sizes) - 1].tolist()
        row.outcome, row.finish_reason, row.http_status = Outcome.OK, "length", 200
        row.first_byte_ns = row.first_event_ns = row.first_nonempty_ns = row.first_content_ns = chunks[0]
        row.chunk_ns, row.chunk_tokens = chunks, sizes
        row.last_content_ns, row.finished_ns = chunks[-1], chunks[-1] + 1000
        row.input_tokens, row.output_tokens = self.input_tokens(request), count
        row.token_source, row.coalesced_chunks = TokenSource.SERVER_USAGE, self.coalesced
        told_ns = (tokens_ns * self.server_clock).round().astype(np.int64)
        row.server_token_ns = told_ns.tolist() if self.server_instants else ()


__all__ = ["StreamServer", "streaming_setting"]
