"""Adapters of the embedded engine: a first use loads, a step costs by distinct adapter, memory has places."""

from __future__ import annotations

import pytest
from engine_runs import A, B, C, D, config

from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.mixture import of_adapters
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

LOAD_MS, EACH_US = 40, 100


def engine(**more: object) -> Engine:
    return Engine(config(adapters=4, adapter_load_ms=LOAD_MS, adapter_us=EACH_US, **more))


def submitted(engine: Engine, *adapters: str, tokens: int = 3) -> list[EngineSequence]:
    made = [EngineSequence(f"r{k}", 10, tokens, adapter=name) for k, name in enumerate(adapters)]
    for each in made:
        engine.submit(each)
    return made


def test_a_first_use_loads_and_each_adapter_of_the_batch_costs() -> None:
    own = engine()
    submitted(own, "adapter-1", "adapter-1", "adapter-2", "")
    first, second = own.step(), own.step()
    assert first.duration_ns == round((A + 40 * B + 2 * EACH_US + 2 * LOAD_MS * 1000) * 1000)
    assert second.duration_ns == round((A + 4 * C + 44 * D + 2 * EACH_US) * 1000)
    own.step()
    submitted(own, "adapter-2")
    again = own.step()
    assert again.duration_ns == round((A + 10 * B + EACH_US) * 1000)  # it is in memory


def test_without_adapters_any_name_is_taken_and_costs_nothing() -> None:
    """As a replay has it of requests that may name any model."""
    named, plain = Engine(config()), Engine(config())
    submitted(named, "large", "small", "large")
    submitted(plain, "", "", "")
    steps = [[engine.step().duration_ns for _ in range(3)] for engine in (named, plain)]
    assert steps[0] == steps[1]
    assert named.idle


def test_the_least_recently_used_gives_way() -> None:
    own = engine(max_adapters=2)
    loads = []
    for name in ("adapter-1", "adapter-2", "adapter-1", "adapter-3", "adapter-1", "adapter-2"):
        submitted(own, name, tokens=1)
        loads.append(own.step().duration_ns >= LOAD_MS * 1_000_000)
    assert loads == [True, True, False, True, False, True]


def test_a_request_waits_for_a_place_in_memory() -> None:
    own = engine(max_adapters=1)
    first, second, behind = submitted(own, "adapter-1", "adapter-2", "adapter-1")
    steps = [own.step() for _ in range(3)]
    assert steps[0].admitted == [first]
    assert not any(step.admitted for step in steps[1:])  # the one behind does not overtake the head
    assert first in steps[2].finished
    assert own.step().admitted == [second]
    while own.waiting:
        own.step()
    assert behind.first_step is not None


@pytest.mark.parametrize("way", ["abort", "crash"])
def test_what_leaves_the_batch_early_holds_no_place(way: str) -> None:
    own = engine(
        max_adapters=1, **({} if way == "abort" else {"preemption": "off", "out_of_memory": "engine"})
    )
    (held,) = submitted(own, "adapter-1", tokens=50)
    own.step()
    if way == "abort":
        assert own.abort(held)
    else:
        own._crash(own.next_step)
    (other,) = submitted(own, "adapter-2")
    assert own.step().admitted == [other]


def test_replay_measures_what_the_engine_costs() -> None:
    options = f"adapters=2&adapter_load_ms={LOAD_MS}&adapter_us={EACH_US}&prefill_us_per_token=10"
    scenario = parse_scenario(f"fast?{options}&step_base_us=1000&decode_us_per_sequence=50&kv_us_per_token=0")
    workload = of_adapters(SyntheticWorkload("short", Fixed(10), Fixed(11)), {"adapter-1": 1.0})
    records = ReplayEngine(scenario).run(LoadPlan("one", workload, ClosedLoop(1), 3, 7)).records
    ttft = (records.first_content_ns - records.submitted_ns) / 1e6
    tpot = (records.last_content_ns - records.first_content_ns) / 10 / 1e6
    own = 0.05 + 1.0 + 10 * 0.01 + EACH_US / 1000  # the way there and back, and the step
    assert ttft.tolist() == pytest.approx([own + LOAD_MS, own, own])
    assert tpot.tolist() == pytest.approx([1.0 + 0.05 + EACH_US / 1000] * 3)


def test_an_unknown_adapter_is_refused() -> None:
    workload = of_adapters(SyntheticWorkload("short", Fixed(10), Fixed(11)), ["adapter-3"])
    records = (
        ReplayEngine(parse_scenario("fast?adapters=2"))
        .run(LoadPlan("one", workload, ClosedLoop(1), 1, 7))
        .records
    )
    assert records.http_status.tolist() == [404]


def test_an_engine_with_adapters_is_another_one() -> None:
    plain = parse_scenario("fast").engine
    assert plain.figures_sha256 != parse_scenario("fast?adapters=1").engine.figures_sha256
