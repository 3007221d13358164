"""Observations made by hand: what a generator would have answered, without one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.sequence import drawn

START_NS = 1_000_000_000_000
ITL_NS = 5_000_000


def record(
    plan: LoadPlan,
    index: int,
    ttft_ns: int,
    *,
    input_tokens: int,
    output_tokens: int,
    outcome: Outcome = Outcome.OK,
) -> RequestRecord:
    submitted = START_NS + index * 50_000_000
    row = RequestRecord(
        index=index,
        request_id=f"canned-{index}",
        phase=plan.phase,
        scheduled_ns=submitted - 20_000,
        dispatched_ns=submitted - 10_000,
        submitted_ns=submitted,
        input_tokens=input_tokens,
        requested_max_tokens=output_tokens,
        outcome=outcome,
    )
    if outcome is not Outcome.OK:
        return replace(row, finished_ns=submitted + 1_000_000, error="canned failure")
    first = submitted + ttft_ns
    stamps = [first + i * ITL_NS for i in range(output_tokens)]
    return replace(
        row,
        first_byte_ns=first - 1000,
        first_event_ns=first,
        first_nonempty_ns=first,
        first_content_ns=first,
        chunk_ns=stamps,
        chunk_tokens=[1] * output_tokens,
        last_content_ns=stamps[-1],
        finished_ns=stamps[-1] + 1000,
        output_tokens=output_tokens,
        token_source=TokenSource.SERVER_USAGE,
        http_status=200,
        finish_reason="length",
    )


def answer(
    plan: LoadPlan,
    ttft_ms: float | Sequence[float] = 100.0,
    *,
    failures: int = 0,
    interrupted: str | None = None,
    selfcheck: SelfCheck | None = None,
) -> Observation:
    """A run of ``plan`` with the given TTFT of each request (or of all); the first ``failures`` fail."""
    requests = drawn(plan.workload, plan.first, plan.requests, plan.seed)
    values = [ttft_ms] * len(requests) if isinstance(ttft_ms, int | float) else list(ttft_ms)
    rows = [
        record(
            plan,
            i,
            round(value * 1e6),
            input_tokens=request.input_tokens,
            output_tokens=min(request.max_tokens, 20),
            outcome=Outcome.HTTP_ERROR if i < failures else Outcome.OK,
        )
        for i, (request, value) in enumerate(zip(requests, values, strict=True))
    ]
    records = Records.from_rows(rows)
    return Observation(
        plan=plan,
        records=records,
        started_ns=START_NS,
        ended_ns=int(records.finished_ns.max()) if len(records) else START_NS,
        anchor=ClockAnchor(START_NS, 1_700_000_000_000_000_000),
        selfcheck=selfcheck or SelfCheck(send_lag_p99_ns=50_000 if isinstance(plan.load, OpenLoop) else None),
        interrupted=interrupted,
        sequence_sha256="",
        facts=Facts.of(Origin.GENERATOR, {"streaming.protocol": "sse"}),
    )
