"""Loads on the engine in virtual time, and what they gave as values that can be compared."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

MIXED = SyntheticWorkload("mixed", Uniform(20, 300), Uniform(1, 120))
CHAT = SessionWorkload("chat", Uniform(2, 8), Uniform(10, 90), Uniform(5, 60), Uniform(100, 4000))
WITH_SYSTEM = SessionWorkload(
    "system", Uniform(2, 8), Uniform(10, 90), Uniform(5, 60), Uniform(100, 4000), system_tokens=330
)


def fixed(prompt: int, output: int) -> SyntheticWorkload:
    return SyntheticWorkload(f"{prompt}-{output}", Fixed(prompt), Fixed(output))


def replayed(scenario: str, *plans: LoadPlan) -> list[Observation]:
    """The plans one after another on one engine."""
    engine = ReplayEngine(parse_scenario(scenario))
    return [engine.run(plan) for plan in plans]


def replay(scenario: str, plan: LoadPlan) -> Observation:
    (seen,) = replayed(scenario, plan)
    return seen


def columns(records: Records) -> dict[str, list[object]]:
    values = {column.name: getattr(records, column.name) for column in fields(records)}
    return {k: v.tolist() if isinstance(v, np.ndarray) else list(v) for k, v in values.items()}


def everything(seen: Observation) -> list[object]:
    """All that a replay says."""
    readings = seen.engine
    assert readings is not None
    gauges = {name: values.tolist() for name, values in readings.gauges.items()}
    counted = [readings.at_ns.tolist(), gauges, readings.totals_before, readings.totals_after]
    ends = [seen.ended_ns, seen.interrupted, seen.stopped, seen.in_flight_at_end]
    return [columns(seen.records), *ends, *counted, readings.max_num_seqs, seen.selfcheck, seen.facts]


def assert_read_in_time(records: Records, apart_ns: int = 0) -> None:
    """The chunks of each reply are in order, at least so far apart, and none was read after its end."""
    for row in range(len(records)):
        chunks = records.chunk_ns[records.chunk_offsets[row] : records.chunk_offsets[row + 1]]
        assert (chunks <= records.finished_ns[row]).all()
        assert (np.diff(chunks) >= apart_ns).all()


def rows_by_turn(records: Records) -> dict[tuple[int, int], int]:
    """The row of each turn, by session and number."""
    places = zip(records.session.tolist(), records.turn.tolist(), strict=True)
    return {place: row for row, place in enumerate(places)}


def assert_all_is_cached(records: Records, workload: Workload, seed: int, block: int = 16) -> None:
    """What a cache that forgets nothing has of each turn: whole blocks, and never the last token."""
    rows = rows_by_turn(records)
    for request in workload.requests(len(records), seed):
        assert request.turn is not None
        most = min(request.shared_prefix_tokens, request.input_tokens - 1) // block * block
        assert records.cached_tokens[rows[request.turn.session, request.turn.number]] == most
