"""A replay ends when its limits are decided, like a load in real time."""

from __future__ import annotations

import pytest

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, Looks, OpenLoop, Watched
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.failing import look_taker
from pytest_llmbench.workloads.catalogue import workload

P50 = Looks((Watched(Objective("ttft.p50", "<=", 1_000.0, "ms"), "ttft", 50.0),), 0.01)


def plan(load: Load, looks: Looks | None, requests: int = 2_000) -> LoadPlan:
    return LoadPlan("measure", workload("synthetic-uniform"), load, requests, seed=3, looks=looks)


@pytest.mark.parametrize("load", [ClosedLoop(4), OpenLoop(20.0)], ids=["closed", "open"])
def test_it_ends_early_with_the_records_of_the_whole_load_until_then(load: Load) -> None:
    wanted = plan(load, P50)
    seen = ReplayEngine(parse_scenario("fast")).run(wanted)
    sent = len(seen.records)
    assert seen.stopped is not None
    assert 100 <= sent < 1_500
    assert seen.records.ok.all()
    assert seen.records.index.tolist() == list(range(sent))
    taker = look_taker(wanted)
    assert taker is not None
    taker.add_all(seen.records)
    assert taker.reason(taker.close()) == seen.stopped
    if isinstance(load, OpenLoop):  # arrivals know nothing of the looks
        whole = ReplayEngine(parse_scenario("fast")).run(plan(load, None, sent))
        assert seen.records.submitted_ns.tolist() == whole.records.submitted_ns.tolist()
        assert seen.records.first_content_ns.tolist() == whole.records.first_content_ns.tolist()
