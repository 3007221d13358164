"""Steps that are taken together give what they give one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from replayed import MIXED, everything

from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.power import EnergyCurve
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario

BUSY, CALM, SLOTS = OpenLoop(40.0), OpenLoop(4.0), ClosedLoop(9)
HASTY = Deadlines(between_chunks_s=0.3, total_s=0.8, drain_s=0.4)


def seen(preset: str, plan: LoadPlan) -> list[object]:
    """Everything that a replay of the plan says, and of one more on the same engine."""
    engine = ReplayEngine(parse_scenario(preset))
    found: list[object] = []
    for run in (engine.run(plan), engine.run(plan.with_(seed=8))):
        found += [*everything(run), run.telemetry is not None]
    return [*found, *(column for meter in engine.meters for column in energy(meter.curve))]


def energy(curve: EnergyCurve) -> tuple[list[int], list[float], list[int]]:
    return curve.at_ns.tolist(), curve.energy_j.tolist(), curve.busy_ns.tolist()


@pytest.mark.parametrize(
    "options",
    [
        "max_num_seqs=4",
        "max_num_seqs=4&max_waiting=2&input_filter=enabled&input_filter_us=40000",
        "kv_blocks=40&context_limit_tokens=512",
        "kv_blocks=40&context_limit_tokens=512&preemption=swap&swap_us_per_block=50",
        "kv_blocks=40&context_limit_tokens=512&preemption=off&out_of_memory=engine&recovery_ms=700",
        "kv_blocks=60&context_limit_tokens=512&think_mean_tokens=30&scheduler=phase&output_kv_share=0.3",
        "output_filter=enabled&output_filter_window_tokens=16&output_refusal_share=0.2",
        "eos_mean_tokens=40&max_num_batched_tokens=128",
        "fault=reset,stall,crash&fault_rate=0.1&fault_after_tokens=7&recovery_ms=300",
    ],
)
@pytest.mark.parametrize(
    "plan",
    [
        LoadPlan("busy", MIXED, BUSY, 120, seed=7),
        LoadPlan("calm", MIXED, CALM, 30, seed=7),
        LoadPlan("slots", MIXED, SLOTS, 80, seed=7),
        LoadPlan("hasty", MIXED, BUSY, 120, seed=7, deadlines=HASTY),
        LoadPlan("cut", MIXED, SLOTS, 500, seed=7, most_s=2.0),
    ],
    ids=lambda plan: plan.label,
)
def test_the_same_comes_of_it(options: str, plan: LoadPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = f"fast?step_base_us=9000&kv_block_tokens=16&idle_w=70&step_w=330&decode_mj_per_token=9&{options}"
    together = seen(preset, plan)
    taken: list[bool] = []
    monkeypatch.setattr(Engine, "glide", lambda _engine, now_ns, *_: (taken.append(True), (now_ns, ()))[1])
    assert seen(preset, plan) == together
    assert bool(taken) is ("fault=" not in options)


def test_most_steps_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, single = [], []
    glide, step = Engine.glide, Engine.step

    def gliding(engine: Engine, *asked: Any) -> tuple[int, Sequence[EngineSequence]]:
        before = len(asked[-1])
        found = glide(engine, *asked)
        whole.append(len(asked[-1]) - before)
        return found

    monkeypatch.setattr(Engine, "glide", gliding)
    monkeypatch.setattr(Engine, "step", lambda engine: (single.append(1), step(engine))[1])
    ReplayEngine(parse_scenario("fast")).run(LoadPlan("slots", MIXED, ClosedLoop(4), 50, seed=7))
    assert sum(whole) > 5 * len(single)
