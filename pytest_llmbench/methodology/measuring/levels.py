"""The Level that is made of a load level's observation: window, estimates, queue, saturation, criteria.

The rules for when a load level is saturated: section 5.2.3.1, settled by AMB-14.

1. The queue grows continuously: five equal segments of the window, mean in flight strictly rising, last minus
   first at least max(2, 20 % of the first). The queue is the server's waiting gauge where there is one.
2. The completion rate is below 90 % of the arrival rate (open loop), over times that belong together.
3. TTFT P99 is above ten times the TTFT P50 of the lowest tested level; switched off, with a note, when the
   lowest level itself breaks it.

In a closed loop the second rule says nothing and the first needs the gauge; there a throughput gain below 1 %
over a step of at least 10 % in concurrency is saturation too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.measuring.load_plans import part_of
from pytest_llmbench.methodology.parameters import DEFAULT_CONCURRENCY, arrival_law
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics import latency, throughput
from pytest_llmbench.metrics.balance import COMPLETION_SHARE, Queue, completion_balance, queue_of, steadiness
from pytest_llmbench.metrics.throughput import Window, level_window, submitted_inside
from pytest_llmbench.model.draft import TAIL_FACTOR
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.model.numbers import number, percentage, trimmed
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import NO_FAILURES, Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import (
    USUAL,
    Session,
    TurnClass,
    Workload,
    session_mistakes,
)
from pytest_llmbench.model.result import Band, Level, Line
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.stream import StreamedWorkload, streamed

_SLICES = 10
FAMILIES = ("ttft", "tpot", "e2e")
_TOO_LONG_SHOWN = 3


@dataclass(frozen=True)
class Seen:
    """A level together with its observation."""

    level: Level
    observation: Observation

    @property
    def records(self) -> Records:
        return self.observation.records

    @property
    def inside(self) -> Records:
        """The latency samples: requests submitted inside the window."""
        return submitted_inside(level_window(self.observation, self.level.role))

    def point(self, metric: str) -> float | None:
        """The point of the metric; None where it is not known, nor more than the least that it is."""
        estimate = self.level.metrics.get(metric)
        return None if estimate is None or estimate.among_given_up else estimate.point

    def with_(self, **changes: object) -> Seen:
        return replace(self, level=replace(self.level, **changes))  # type: ignore[arg-type]


def run_metrics(windows: Sequence[Window], *, seed: int) -> dict[str, Estimate]:
    """Latency distributions, rates and completion rate of one level over several runs of it, under plain
    names."""
    inside = [submitted_inside(window) for window in windows]
    every = [window.records for window in windows]
    return latency.distributions(FAMILIES, inside, among=every) | {
        "output_token_throughput": throughput.output_token_throughput(windows, seed=seed),
        "input_token_throughput": throughput.input_token_throughput(windows, seed=seed),
        "request_throughput": throughput.request_throughput(windows, seed=seed),
        "completion_rate": throughput.completion_rate(every),
    }


def level_of(
    seen: Observation,
    *,
    label: str | None = None,
    reference: Reference | None = None,
    seed: int,
    **more: object,
) -> Seen:
    """The level; ``more`` are further fields of :class:`Level` (``role``, ``percent_of_capacity`` …)."""
    window = level_window(seen, str(more.get("role", "")))
    counts, load = seen.records.counts(), seen.plan.load
    metrics, queue = run_metrics([window], seed=seed), queue_of(seen, window)
    growing = None if queue is None else queue.growth.growing
    overloads = overload(seen, window, queue)
    why = (*overloads, *long_tail(metrics["ttft.p99"], reference or Reference()))
    per_slice = throughput.output_tokens_per_slice(window, _SLICES)
    slices = () if per_slice is None else tuple((per_slice / (window.duration_s / _SLICES)).tolist())
    level = Level(
        label=label or seen.plan.label,
        load_model=load.model,
        duration_s=(window.end_ns - seen.started_ns) / 1e9,
        window_s=window.duration_s,
        n_submitted=counts["submitted"],
        n_ok=counts[Outcome.OK],
        n_failed=int(seen.records.failed.sum()),
        completion_ratio=metrics["completion_rate"].point,
        metrics=metrics,
        offered_rps=load.request_rate,
        concurrency=load.requests_in_flight,
        variant=seen.plan.variant,
        in_flight_means=() if queue is None else queue.growth.means,
        queue_source="" if queue is None else queue.source,
        queue_growing=growing,
        throughput_slices=slices,
        # In steady state (section 5.2.3.2) no queue grows, and the throughput is level across the window.
        steady=False if growing else None if (steady := steadiness(window)) is None else steady.level,
        saturated=bool(why),
        overloaded=bool(overloads),
        saturation_reasons=why,
        errors={name: count for name, count in counts.items() if count and name not in NO_FAILURES},
        shared_from=seen.shared_from,
    )
    return Seen(replace(level, **more), seen)  # type: ignore[arg-type]


def with_band(
    name: str, points: Iterable[tuple[float | None, Estimate]]
) -> tuple[dict[str, Line], dict[str, Band]]:
    """A series of a plot with its band: estimates over x, without the undefined ones; nothing where all are.
    The band is of those with both ends, where there are two or more."""
    known = [(x, each) for x, each in points if x is not None and each.point is not None]
    ends = [(x, e.lower, e.upper) for x, e in known if e.lower is not None and e.upper is not None]
    series = {name: (tuple(x for x, _ in known), tuple(float(e.point or 0.0) for _, e in known))}
    x, lower, upper = zip(*ends, strict=True) if len(ends) > 1 else ((), (), ())
    return series if known else {}, {name: (x, lower, upper)} if x else {}


def qualified(metrics: Mapping[str, Estimate], qualifier: str) -> dict[str, Estimate]:
    """The estimates of ``metrics`` under the names ``family[qualifier].statistic``."""
    split = {name: name.partition(".") for name in metrics}
    return {
        f"{family}[{qualifier}]{dot}{statistic}": metrics[name]
        for name, (family, dot, statistic) in split.items()
    }


def numbered(levels: Sequence[Seen]) -> tuple[Level, ...]:
    """The levels with the index of their observation, for a result that holds these in the same order."""
    return tuple(replace(seen.level, observation=index) for index, seen in enumerate(levels))


def saturated_notes(levels: Iterable[Seen]) -> list[Note]:
    """A note on each level at which the system was saturated, for tests that mean to stay below that."""
    return [
        Note.of("saturated_at", level=seen.level.label, reasons=seen.level.saturation_reasons)
        for seen in levels
        if seen.level.saturated
    ]


LEAST_GAIN = 0.01
LEAST_STEP = 0.1


@dataclass(frozen=True, slots=True)
class Reference:
    """The TTFT of the lowest tested level, to which the third rule compares."""

    ttft_p50_ms: float | None = None
    applies: bool = False
    note: Note | None = field(default_factory=lambda: Note.of("no_lower_level"))
    of_level: str = "the lowest level"
    """The level that it was taken from, in words."""

    @classmethod
    def of(cls, lowest: Level) -> Reference:
        """The reference from the lowest level; one that breaks the rule by itself switches the rule off."""
        p50, p99 = _point(lowest, "ttft.p50"), _point(lowest, "ttft.p99")
        if p50 is None or p99 is None:
            return cls(note=Note.of("lowest_without_ttft"))
        if p99 > TAIL_FACTOR * p50:
            return cls(p50, False, Note.of("tenfold_off", times=p99 / p50))
        return cls(p50, True, None)


def queue_grows(queue: Queue | None) -> tuple[str, ...]:
    """The reason, in words, if the queue grows."""
    if queue is None or not queue.growth.growing:
        return ()
    first, last = queue.growth.means[0], queue.growth.means[-1]
    return (
        f"the queue grows: {queue.source} {number(first)} in the first fifth, {number(last)} in the last",
    )


def overload(seen: Observation, window: Window, queue: Queue | None) -> tuple[str, ...]:
    """Why the level gets more work than it completes, by the first two rules; empty where it keeps up."""
    found = list(queue_grows(queue))
    if seen.plan.load.request_rate is not None:
        balance = completion_balance(seen.records, window)
        if balance is not None and balance.short:
            limit = percentage(COMPLETION_SHARE)
            found.append(f"completions at {percentage(balance.share)} of the arrivals (limit {limit})")
    if seen.records.failed.all():
        found.append("no request was completed")
    if seen.stopped is not None and seen.plan.may_break:
        found.append(f"the load ended early: {seen.stopped}")
    return tuple(found)


def long_tail(ttft_p99: Estimate, reference: Reference) -> tuple[str, ...]:
    """Why the level is saturated by the third rule, the ten-fold one; empty where it is not."""
    p99 = ttft_p99.point
    if not reference.applies or reference.ttft_p50_ms is None or p99 is None:
        return ()
    times = p99 / reference.ttft_p50_ms
    if times <= TAIL_FACTOR:
        return ()
    return (
        f"TTFT P99 is {number(times)} times the P50 of {reference.of_level} (limit {trimmed(TAIL_FACTOR)})",
    )


def gain_is_spent(lower: Level, higher: Level) -> str | None:
    """Why a step up in concurrency gained nothing in a closed loop; None where it did gain, or the step is
    small."""
    a, b = _point(lower, "output_token_throughput"), _point(higher, "output_token_throughput")
    if lower.concurrency is None or higher.concurrency is None or a is None or b is None or a <= 0:
        return None
    # In whole numbers: 1.1 * 10 is a little more than 11.
    if 10 * higher.concurrency < round(10 * (1 + LEAST_STEP)) * lower.concurrency:
        return None
    gain = b / a - 1
    if gain >= LEAST_GAIN:
        return None
    return (
        f"throughput gains {percentage(gain)} from {lower.concurrency} to {higher.concurrency} in flight "
        f"(limit {percentage(LEAST_GAIN)})"
    )


def _point(level: Level, name: str) -> float | None:
    estimate = level.metrics.get(name)
    return None if estimate is None else estimate.point


def session_load(
    rate: float | None, sessions: int | None, arrival: str | None, burstiness: float | None
) -> Load:
    """An open loop of ``rate`` session starts per second; without a rate so many ``sessions`` at once, 8 by
    default."""
    if rate is None:
        return ClosedLoop(sessions or DEFAULT_CONCURRENCY, of_sessions=True)
    return OpenLoop(rate, *arrival_law(arrival, burstiness), of_sessions=True)


def turn_classes(
    asked: Iterable[int | str], slo: Sequence[Objective], usual: Sequence[TurnClass] = USUAL
) -> tuple[TurnClass, ...]:
    """The classes of turns that get metrics: ``usual``, those with limits of their own, those that ``slo``
    names."""
    limited = sorted(map(TurnClass.parse, asked))
    named = (
        each.metric.partition("[")[2].partition("]")[0] for each in slo if each.metric.startswith("turn_")
    )
    return tuple(dict.fromkeys((*usual, *limited, *map(TurnClass.parse, named))))


def by_session(seen: Seen) -> Seen:
    """The level with latency intervals whose unit is the session."""
    from pytest_llmbench.metrics.session_figures import latencies

    metrics = dict(seen.level.metrics)
    for family in FAMILIES:
        metrics |= latencies([seen.inside], family, None)
    return seen.with_(metrics=metrics, steady=None)


def of_sessions(workload: Workload) -> StreamedWorkload:
    """The workload, which has to be one of sessions. SuiteError for one that a report stands in for, since it
    does not hold its sessions."""
    found = streamed(workload)
    if found.unit != "session":
        raise SuiteError(f"the sessions of workload {workload.name!r} are not known here")
    return found


def session_plan(
    setting: Setting, kind: str, label: str, load: Load, sessions: int, asked: Mapping[str, Any], **more: Any
) -> LoadPlan:
    """A load of that many sessions of the setting's workload, of the part ``kind`` with what it was
    ``asked`` for (:func:`part_of`). ``more``: further fields of the plan."""
    from pytest_llmbench.workloads.sessions import turns_of  # few loads are of sessions

    of_sessions(setting.workload)  # a clear error for others
    part = part_of(setting, setting.workload, kind, **asked)
    return part.plan(setting, label, load, turns_of(setting.workload, sessions, part.seed), **more)


def shapes_of(plan: LoadPlan) -> Iterator[Session]:
    """The sessions of a load without their content."""
    turns = 0
    for session in of_sessions(plan.workload).shapes(plan.seed):
        if turns >= plan.requests:
            return
        turns += len(session.turns)
        yield session


def too_long(setting: Setting, plans: Sequence[LoadPlan]) -> list[str]:
    """Mistakes: sessions that do not fit the model's context, found before anything is sent."""
    workload, limit = of_sessions(setting.workload), setting.facts.value(SUTFact.CONTEXT_LIMIT_TOKENS)
    if not isinstance(limit, int):
        return []
    over: list[str] = []
    for plan in plans:
        for index, session in enumerate(shapes_of(plan)):
            told = session_mistakes(session, shared_tokens=workload.shared_tokens, context_tokens=limit)
            over += [f"session {index}: {mistake}" for mistake in told]
    if not over:
        return []
    more = f" (and {len(over) - _TOO_LONG_SHOWN} more)" if len(over) > _TOO_LONG_SHOWN else ""
    shown = "; ".join(over[:_TOO_LONG_SHOWN])
    return [f"a model with a longer context, or a workload with context_tokens={limit}: {shown}{more}"]


def no_history(plans: Sequence[LoadPlan]) -> list[str]:
    """Mistakes: sessions of one turn in a test of what later turns find in the cache."""
    if any(len(session.turns) > 1 for plan in plans for session in shapes_of(plan)):
        return []
    return [
        f"no session of workload {plans[0].workload.name!r} has a second turn, so there is no history to "
        "cache: use sessions with several turns"
    ]


def live_answers(workload: Workload, compared: str) -> list[str]:
    """Mistakes: states of one test compared on histories that the server wrote anew in each of them, unless
    the workload asks for that."""
    if streamed(workload).answers != "live":
        return []
    return [
        f"workload {workload.name!r} has live answers, so {compared} would not read the same: leave "
        'answers="live" out, or say answers="live-compared" to compare nevertheless'
    ]
