"""A server with a known capacity that answers LoadPlans without a network or a clock.

``slots`` requests are served at once, each for ``service_s``; further ones wait in the order of arrival. So
it completes ``slots / service_s`` requests per second at most, an open loop beyond that queues without end,
and a closed loop gains nothing beyond ``slots`` in flight.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.methodology.procedure import Scale, Setting, WarmupPolicy
from pytest_llmbench.metrics.definitions import is_metric, metric_unit
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import ClockAnchor, EngineReadings, Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import drawn, passing
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

INPUT_TOKENS, OUTPUT_TOKENS = 16, 10
TINY = SyntheticWorkload("tiny", Fixed(INPUT_TOKENS), Fixed(OUTPUT_TOKENS))
_MS = 1_000_000


def canned_setting(scale: Scale = "quick", **facts: object) -> Setting:
    return Setting(
        workload=TINY,
        seed=42,
        scale=scale,
        facts=Facts.of(Origin.DECLARED, facts),
        warmup=WarmupPolicy(requests=2, output_tokens=0, probes=3),
    )


@dataclass(frozen=True)
class Served:
    """One request, in nanoseconds from the start of its plan."""

    planned: PlannedRequest
    submitted: int
    started: int
    ended: int
    failed: bool


@dataclass
class QueueServer:
    """Executes plans. First token after ``first_ms`` of service, the others evenly up to its end."""

    slots: int = 4
    service_s: float = 0.1
    first_ms: float = 20.0
    fails_above: int | None = None
    """A request that finds so many others under way ends with an out-of-memory error."""
    slow_after_s: float | None = None
    """A plan of this nominal length, or longer, is served at 5/6 of the pace."""
    gauges: bool = False
    dies: bool = False
    """Every request of a load of some length fails."""
    now_ns: int = 1_000_000_000_000
    plans: list[LoadPlan] = field(default_factory=list)

    @property
    def capacity_rps(self) -> float:
        return self.slots / self.service_s

    @property
    def measured(self) -> list[LoadPlan]:
        return [plan for plan in self.plans if plan.phase is Phase.MEASURE]

    def __call__(self, plan: LoadPlan) -> Observation:
        self.plans.append(plan)
        served = self._open(plan) if isinstance(plan.load, OpenLoop) else self._closed(plan)
        start = self.now_ns
        records = Records.from_rows([self._record(plan, one, start) for one in served])
        self.now_ns = int(records.finished_ns.max()) + _MS
        ended_load = (
            None
            if plan.duration_s is None
            else start
            + max(
                round(plan.duration_s * 1e9) if isinstance(plan.load, OpenLoop) else 0, served[-1].submitted
            )
        )
        return Observation(
            plan=plan,
            records=records,
            started_ns=start,
            ended_ns=self.now_ns - _MS,
            anchor=ClockAnchor(start, 1_700_000_000_000_000_000),
            selfcheck=SelfCheck(send_lag_p99_ns=0),
            facts=Facts.of(Origin.GENERATOR, {"streaming.protocol": "sse"}),
            engine=self._readings(served, start) if self.gauges else None,
            load_ended_ns=ended_load,
        )

    def _service_ns(self, plan: LoadPlan) -> int:
        slow = self.slow_after_s is not None and (plan.duration_s or 0.0) >= self.slow_after_s
        return round(self.service_s * (1.2 if slow else 1.0) * 1e9)

    def _requests(self, plan: LoadPlan, count: int) -> Iterator[PlannedRequest]:
        return passing(plan.workload, plan.first, count, plan.seed)

    def _open(self, plan: LoadPlan) -> list[Served]:
        assert isinstance(plan.load, OpenLoop)
        offsets = schedule_ns(plan.load, plan.first + plan.requests, arrival_seed(plan.seed))
        base = int(offsets[plan.first - 1]) if plan.first else 0
        free, under_way, served = [0] * self.slots, [], []
        for request, at in zip(self._requests(plan, plan.requests), offsets[plan.first :], strict=True):
            one = self._serve(plan, request, int(at) - base, free, under_way)
            served.append(one)
        return served

    def _closed(self, plan: LoadPlan) -> list[Served]:
        assert isinstance(plan.load, ClosedLoop)
        last = None if plan.duration_s is None else round(plan.duration_s * 1e9)
        clients, free, under_way, served = [0] * plan.load.concurrency, [0] * self.slots, [], []
        requests = self._requests(plan, min(plan.ceiling, 40_000))
        for request in requests:
            at = heapq.heappop(clients)
            if len(served) >= plan.requests and (last is None or at >= last):
                break
            one = self._serve(plan, request, at, free, under_way)
            served.append(one)
            heapq.heappush(clients, one.ended)
        return served

    def _serve(
        self, plan: LoadPlan, request: PlannedRequest, at: int, free: list[int], under_way: list[int]
    ) -> Served:
        while under_way and under_way[0] <= at:
            heapq.heappop(under_way)
        failed = self.fails_above is not None and len(under_way) >= self.fails_above
        failed |= self.dies and plan.duration_s is not None
        if failed:
            started = at
        else:
            started = max(at, heapq.heappop(free))
            heapq.heappush(free, started + self._service_ns(plan))
        ended = started + self._service_ns(plan)
        heapq.heappush(under_way, ended)
        return Served(request, at, started, ended, failed)

    def _record(self, plan: LoadPlan, one: Served, start: int) -> RequestRecord:
        submitted = start + one.submitted
        row = RequestRecord(
            index=one.planned.index,
            request_id=f"canned-{one.planned.index}",
            phase=plan.phase,
            scheduled_ns=submitted,
            dispatched_ns=submitted,
            submitted_ns=submitted,
            finished_ns=start + one.ended,
            input_tokens=one.planned.input_tokens,
            requested_input_tokens=one.planned.input_tokens,
            requested_max_tokens=one.planned.max_tokens,
        )
        if one.failed:
            row.outcome, row.error = Outcome.HTTP_ERROR, "500: CUDA out of memory"
            return row
        first, last = start + one.started + round(self.first_ms * _MS), start + one.ended
        count = min(one.planned.max_tokens, OUTPUT_TOKENS)
        stamps = np.linspace(first, last, count).astype(np.int64).tolist() if count > 1 else [first]
        row.outcome, row.finish_reason, row.http_status = Outcome.OK, "length", 200
        row.first_byte_ns = row.first_event_ns = row.first_nonempty_ns = row.first_content_ns = first
        row.chunk_ns, row.chunk_tokens, row.last_content_ns = stamps, [1] * count, stamps[-1]
        row.output_tokens, row.token_source = count, TokenSource.SERVER_USAGE
        row.queue_wait_ns, row.prefill_ns = one.started - one.submitted, first - start - one.started
        return row

    def _readings(self, served: list[Served], start: int) -> EngineReadings:
        end = max(one.ended for one in served)
        at = np.arange(0, end, 50 * _MS)
        submitted, started, ended = (
            np.array([getattr(one, name) for one in served]) for name in ("submitted", "started", "ended")
        )
        running = [int(((started <= t) & (t < ended)).sum()) for t in at]
        waiting = [int(((submitted <= t) & (t < started)).sum()) for t in at]
        gauges = {"running": np.array(running, float), "waiting": np.array(waiting, float)}
        return EngineReadings(at + start, gauges, max_num_seqs=self.slots, source="canned")


REPLAY_SLOTS, REPLAY_TOKENS, REPLAY_STEP_S = 8, 20, 0.01
"""A step takes 10 ms whatever is in it and gives each of at most 8 requests a token: 800 tok/s, 40 req/s."""
REPLAY_WORKLOAD = SyntheticWorkload("steps", Fixed(INPUT_TOKENS), Fixed(REPLAY_TOKENS))


def replay_engine() -> ReplayEngine:
    figures = {
        "step_base_us": REPLAY_STEP_S * 1e6,
        "prefill_us_per_token": 0,
        "decode_us_per_sequence": 0,
        "kv_us_per_token": 0,
        "max_num_seqs": REPLAY_SLOTS,
    }
    options = "&".join(f"{name}={value}" for name, value in figures.items())
    return ReplayEngine(parse_scenario(f"fast?{options}"))


def prompts(plans: Sequence[LoadPlan]) -> list[tuple[int, ...] | str | None]:
    """Every prompt of the plans, in their order."""
    return [
        request.text if request.token_ids is None else tuple(request.token_ids)
        for plan in plans
        for request in drawn(plan.workload, plan.first, plan.requests, plan.seed)
    ]


def replay_setting() -> Setting:
    return replace(canned_setting(), workload=REPLAY_WORKLOAD)


def rows_of(result: TestResult, table: str) -> dict[str, tuple[str, ...]]:
    """The rows of a table by their first cell."""
    (found,) = (each for each in result.tables if each.id == table)
    return {row[0]: row[1:] for row in found.rows}


def are_in_the_catalogue(metrics: Mapping[str, Estimate]) -> bool:
    """Whether all are metrics, in their units; else it fails with those that are not."""
    assert [name for name in metrics if not is_metric(name)] == []
    assert [name for name, each in metrics.items() if each.unit != metric_unit(name)] == []
    return True


__all__ = [
    "INPUT_TOKENS",
    "OUTPUT_TOKENS",
    "REPLAY_SLOTS",
    "REPLAY_STEP_S",
    "REPLAY_TOKENS",
    "TINY",
    "QueueServer",
    "are_in_the_catalogue",
    "canned_setting",
    "prompts",
    "replay_engine",
    "replay_setting",
    "rows_of",
]
