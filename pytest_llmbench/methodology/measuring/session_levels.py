"""Loads of sessions in tests with levels: how sessions start, metrics whose unit is the session, and what
keeps sessions from being sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pytest_llmbench.methodology.measuring.levels import FAMILIES, Seen
from pytest_llmbench.methodology.parameters import DEFAULT_CONCURRENCY, arrival_law
from pytest_llmbench.methodology.procedure import Setting
from pytest_llmbench.metrics.session_figures import latencies
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.request import (
    USUAL,
    OfSessions,
    Session,
    TurnClass,
    Workload,
    session_mistakes,
)
from pytest_llmbench.workloads.stream import streamed

_TOO_LONG_SHOWN = 3


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
    metrics = dict(seen.level.metrics)
    for family in FAMILIES:
        metrics |= latencies([seen.inside], family, None)
    return seen.with_(metrics=metrics, steady=None)


def shapes_of(plan: LoadPlan) -> Iterator[Session]:
    """The sessions of a load without their content."""
    assert isinstance(plan.workload, OfSessions)
    turns = 0
    for session in plan.workload.shapes(plan.seed):
        if turns >= plan.requests:
            return
        turns += len(session.turns)
        yield session


def too_long(setting: Setting, plans: Sequence[LoadPlan]) -> list[str]:
    """Mistakes: sessions that do not fit the model's context, found before anything is sent."""
    workload, limit = setting.workload, setting.facts.value(SUTFact.CONTEXT_LIMIT_TOKENS)
    if not isinstance(workload, OfSessions) or not isinstance(limit, int):
        return []
    over: list[str] = []
    for plan in plans:
        for number, session in enumerate(shapes_of(plan)):
            told = session_mistakes(session, shared_tokens=workload.shared_tokens, context_tokens=limit)
            over += [f"session {number}: {mistake}" for mistake in told]
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
