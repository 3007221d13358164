"""The energy that the embedded engine takes, worked out by hand, and what its accelerators tell of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from driven_engine import MS, KeptReply, VirtualAlarm, given
from nvml_face import nvml_face

from pytest_llmbench.simulator.engine import power
from pytest_llmbench.simulator.engine.power import DeviceReading, PowerMeter, read_devices
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.ground_truth import GroundTruthLog, energy_json, parse_energy

# Two accelerators of 100 W, 300 W while a step runs; a prompt token takes 0.5 J, an output token 1 J.
POWER = "idle_w=100&step_w=200&prefill_mj_per_token=500&decode_mj_per_token=1000&accelerator_count=2"
STEPS = "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
S = 1000 * MS


def metered(options: str = "") -> PowerMeter:
    """A meter of an engine that began at 1 s, after a step from 2 s to 4 s that took 1300 J."""
    scenario = parse_scenario(f"{STEPS}&{POWER}{options}")
    meter = PowerMeter(scenario.power, scenario.engine, 1 * S)
    meter.note_step(2 * S, 4 * S, prefill_tokens=100, output_tokens=50)
    return meter


def told(meter: PowerMeter, at_ns: int) -> list[DeviceReading]:
    devices = read_devices([meter], at_ns)
    assert devices is not None
    return devices


@pytest.mark.parametrize(
    ("at_s", "joules", "watts"),
    [
        (0.5, 0.0, 200.0),
        (1.0, 0.0, 200.0),
        (1.5, 100.0, 200.0),
        (2.0, 200.0, 650.0),  # (600 W · 2 s + 100 · 0.5 J + 50 · 1 J) / 2 s
        (3.0, 850.0, 650.0),
        (4.0, 1500.0, 200.0),
        (5.5, 1800.0, 200.0),
    ],
)
def test_energy_is_linear_between_the_ends_of_steps(at_s: float, joules: float, watts: float) -> None:
    curve = metered().curve
    assert curve.joules(round(at_s * S)) == pytest.approx(joules)
    assert curve.watts(round(at_s * S)) == pytest.approx(watts)


def test_the_share_of_time_with_a_step() -> None:
    curve = metered().curve
    assert curve.busy(1 * S, 5 * S) == 0.5
    assert curve.busy(3 * S + S // 2, 5 * S + S // 2) == 0.25
    assert curve.busy(1 * S, 1 * S) == 0.0


def test_a_step_that_begins_before_the_last_one_has_ended_adds_no_time_twice() -> None:
    meter = metered()
    meter.note_step(3 * S, 5 * S, 0, 0)
    assert meter.curve.joules(5 * S) == pytest.approx(1500 + 600)
    meter.note_step(4 * S, 4 * S, 0, 3)  # cancelled in between: its tokens have been computed
    assert meter.curve.joules(6 * S) == pytest.approx(2100 + 3 + 200)


def test_a_long_curve_stays_exact_where_it_keeps_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "MOST_POINTS", 8)
    meter, exact, drawn = metered(), {}, random.Random(3)
    for number in range(4, 100):
        meter.note_step(number * S, (number + 1) * S, 0, drawn.randrange(90))
        exact[(number + 1) * S] = meter.curve.energy_j[-1]
    kept = meter.curve.at_ns
    assert len(kept) <= 9
    assert (kept[0], kept[-1]) == (1 * S, 100 * S)
    assert all(meter.curve.joules(at_ns) == pytest.approx(exact[at_ns]) for at_ns in kept[1:])
    assert list(meter.curve.energy_j) == sorted(meter.curve.energy_j)


@pytest.mark.asyncio
async def test_the_driver_meters_each_step_on_its_schedule() -> None:
    alarm = VirtualAlarm()
    driver = EngineDriver(parse_scenario(f"{STEPS}&{POWER}"), lambda: alarm, GroundTruthLog(), alarm.clock)
    reply = KeptReply(alarm)
    running = asyncio.create_task(driver.run())
    given(driver, EngineSequence("r", 10, 4), reply)
    await reply.done.wait()
    running.cancel()
    assert reply.token_ns[-1] == 1040 * MS
    (curve,) = parse_energy(energy_json([meter.curve for meter in driver.meters]).decode())
    assert curve == driver.meters[0].curve
    assert curve.joules(1010 * MS) == pytest.approx(600 * 0.01 + 10 * 0.5 + 1)
    assert curve.watts(1005 * MS) == pytest.approx(1200)
    assert curve.joules(1040 * MS) == pytest.approx(600 * 0.04 + 10 * 0.5 + 4)
    assert curve.watts(1041 * MS) == 200


def test_the_accelerators_of_an_engine_share_its_power() -> None:
    first, second = told(metered(), 4 * S - S // 2)
    assert (first.number, second.number) == (0, 1)
    assert first.uuid != second.uuid
    for each in (first, second):
        assert each.power_w == pytest.approx(325)
        assert each.energy_j == pytest.approx(587.5)
        assert each.utilisation == 1.0
        assert each.memory_bytes == (4 * 2**30 + 33024 * 16 * 16 * 2**10) // 2
        assert each.temperature_c == pytest.approx(30 + 0.06 * 325)


def test_power_is_the_mean_of_the_last_second_as_that_of_accelerators() -> None:
    energies = [told(metered(), at_ns)[0].energy_j for at_ns in (S + S // 2, 2 * S + S // 2)]
    (power_w,) = {each.power_w for each in told(metered(), 2 * S + S // 2)}
    assert power_w == pytest.approx(energies[1] - energies[0])
    assert 100 < power_w < 325  # half of it was idle


def test_what_is_told_may_be_as_old_as_the_last_update() -> None:
    meter = metered("&power_update_ms=400")
    assert told(meter, 1 * S + 1199 * MS) == told(metered(), 1 * S + 800 * MS)
    assert told(meter, 1 * S + 1200 * MS) == told(metered(), 1 * S + 1200 * MS)


def test_faults_of_the_last_accelerator_begin_when_they_are_due() -> None:
    def energies(fault: str, at_s: int) -> list[float]:
        meter = metered(f"&power_fault={fault}&power_fault_after_s=2")
        return [each.energy_j for each in told(meter, at_s * S)]

    whole = [each.energy_j for each in told(metered(), 4 * S)]
    assert whole == pytest.approx([750, 750])
    for fault in ("counter_resets", "counter_stands", "device_gone", "silent"):
        assert energies(fault, 2) == pytest.approx([100, 100])
    assert energies("counter_resets", 3) == pytest.approx([425, 0])
    assert energies("counter_resets", 4) == pytest.approx([750, 325])
    assert energies("counter_stands", 4) == pytest.approx([750, 425])
    assert energies("device_gone", 4) == pytest.approx([750])
    assert read_devices([metered("&power_fault=silent&power_fault_after_s=2")], 3 * S) is None


def test_the_face_of_nvml_has_its_units_and_its_lost_gpu() -> None:
    meter, now = metered("&power_fault=device_gone&power_fault_after_s=2.5"), [3 * S]
    nvml: Any = nvml_face(lambda: read_devices([meter], now[0]))
    with pytest.raises(nvml.NVMLError, match="Uninitialized"):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 2
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 325_000
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) == 425_000
    assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 100
    now[0] = 4 * S
    assert nvml.nvmlDeviceGetCount() == 2
    with pytest.raises(nvml.NVMLError, match="GPU is lost"):
        nvml.nvmlDeviceGetPowerUsage(handle)
