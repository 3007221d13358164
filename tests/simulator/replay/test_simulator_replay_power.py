"""What a sampler would see of a replay's accelerators, and the true energy beside it."""

from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.telemetry import Telemetry
from pytest_llmbench.registry import names
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

POWER = "fast?idle_w=100&step_w=200&prefill_mj_per_token=11&decode_mj_per_token=50&accelerator_count=2"
LOAD = LoadPlan("power", SYNTHETIC_UNIFORM, OpenLoop(30.0), 90, seed=7)
S = 1_000_000_000
SEVERAL = pytest.mark.skipif(not names("deployments"), reason="the extra of several engines is left out")


def run(options: str = "", plan: LoadPlan = LOAD) -> tuple[ReplayEngine, Observation, Telemetry]:
    engine = ReplayEngine(parse_scenario(POWER + options))
    seen = engine.run(plan)
    assert seen.telemetry is not None
    return engine, seen, seen.telemetry


def test_one_reply_by_hand() -> None:
    one = LoadPlan("one", SyntheticWorkload("10-4", Fixed(10), Fixed(4)), ClosedLoop(1), 1, seed=7)
    steps = "&step_base_us=9000&prefill_us_per_token=100&decode_us_per_sequence=1000&kv_us_per_token=0"
    engine, seen, _ = run(steps, one)
    (meter,) = engine.meters
    assert meter.curve.busy_ns[-1] == 4 * 10_000_000  # the prompt, then three further tokens
    whole_s = (seen.ended_ns - meter.curve.at_ns[0]) / 1e9
    expected_j = 200 * whole_s + 400 * 0.04 + 10 * 0.011 + 4 * 0.05
    assert meter.curve.joules(seen.ended_ns) == pytest.approx(expected_j, rel=1e-12)


@pytest.mark.parametrize(
    "options",
    [
        "",
        pytest.param("&replicas=3&router=least_loaded", marks=SEVERAL),
        pytest.param("&prefill_workers=1&decode_workers=2", marks=SEVERAL),
        "&kv_blocks=8300",
    ],
)
def test_energy_is_that_of_time_steps_and_tokens(options: str) -> None:
    engine, seen, _ = run(options)
    assert seen.engine is not None
    totals, curves = seen.engine.totals_after, [meter.curve for meter in engine.meters]
    idle_j = len(curves) * 200 * (seen.ended_ns - S) / 1e9
    step_j = 400 * sum(curve.busy_ns[-1] for curve in curves) / 1e9
    tokens_j = totals["prompt_tokens"] * 0.011 + totals["generated_tokens"] * 0.05
    assert sum(curve.joules(seen.ended_ns) for curve in curves) == pytest.approx(idle_j + step_j + tokens_j)


@SEVERAL
def test_series_are_the_truth_at_the_instants_of_a_sampler() -> None:
    engine, seen, telemetry = run("&replicas=2")
    assert telemetry.interval_s == 0.5
    assert telemetry.lost == ()
    assert len({each.id for each in telemetry.devices}) == len(telemetry.devices) == 4
    for number, device in enumerate(telemetry.devices):
        curve = engine.meters[number // 2].curve
        assert device.at_ns[0] == seen.started_ns
        assert device.at_ns[-1] >= seen.ended_ns
        assert set(np.diff(device.at_ns[:-1])) == {500_000_000}
        truth_j = [curve.joules(at_ns) / 2 for at_ns in device.at_ns.tolist()]
        assert device.values["energy_j"].tolist() == pytest.approx(truth_j)
        assert device.values["power_w"][1:-1].max() > 200 > 100 <= device.values["power_w"].min()
        assert 0 < device.values["utilisation"].max() <= 1


def test_the_counter_goes_on_over_loads_restarts_and_idle_time() -> None:
    engine, first, before = run()
    second = engine.run(LOAD.with_(fresh_state=True)).telemetry
    assert second is not None
    gap_s = (second.devices[0].at_ns[0] - before.devices[0].at_ns[-1]) / 1e9
    grown_j = second.devices[0].values["energy_j"][0] - before.devices[0].values["energy_j"][-1]
    assert 0 < gap_s < 1
    assert grown_j == pytest.approx(100 * gap_s)
    assert first.ended_ns < second.devices[0].at_ns[0]


def test_planted_faults_come_out_as_a_sampler_would_meet_them() -> None:
    def faulty(fault: str, after_s: float = 1.2) -> Telemetry:
        return run(f"&power_fault={fault}&power_fault_after_s={after_s}")[2]

    whole, last = faulty("counter_resets").devices
    assert (np.diff(whole.values["energy_j"]) > 0).all()
    assert (np.diff(last.values["energy_j"]) < 0).sum() == 1
    whole, last = faulty("counter_stands").devices
    assert (np.diff(last.values["energy_j"]) == 0).sum() == len(whole.at_ns) - 4
    assert (last.values["power_w"] == whole.values["power_w"]).all()
    whole, last = faulty("device_gone").devices
    assert (whole.vanished_ns, last.vanished_ns, len(last.at_ns)) == (None, whole.at_ns[3], 3)
    silent = faulty("silent")
    assert [len(each.at_ns) for each in silent.devices] == [3, 3]
    assert [(each.why, each.at_ns) for each in silent.lost] == [("no_answer", whole.at_ns[3])]
    gone = faulty("device_gone", 0.0)
    assert [each.why for each in gone.lost] == ["vanished"]
    assert len(gone.devices) == 1
    assert faulty("silent", 0.0).devices == ()


def test_without_power_nothing_is_told() -> None:
    assert ReplayEngine(parse_scenario("fast")).run(LOAD).telemetry is None
