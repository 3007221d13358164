"""The figures of a machine in a result: of one load, of levels, with limits, with what is missing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_machine import S, around, device, drawing
from replayed_sut import ReplayedSUT

from pytest_llmbench import J, W, energy_per_output_token, gpu_utilisation, mean_power
from pytest_llmbench.compare.gate import gate
from pytest_llmbench.harness.comparison.arms import whole_procedure
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Scale
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.telemetry import Lost, Telemetry
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario

Machine = Callable[[Observation], Observation]


def measured(test: str, machine: Machine, scale: Scale = "quick", **given: Any) -> TestResult:
    found = definition(test)
    asked = build(found.parameters, given, test=test, counted=True)
    engine = ReplayEngine(parse_scenario("fast"))

    def execute(plan: Any) -> Observation:
        seen = engine.run(plan)
        return machine(seen) if plan.phase is Phase.MEASURE else seen

    setting = ReplayedSUT().setting("synthetic-uniform", scale)
    return drive(whole_procedure(found, asked, setting), execute)


def constant(run: Observation) -> Observation:
    return drawing(run, {"gpu-0": 300.0, "gpu-1": 100.0})


def point(result: TestResult, name: str) -> float:
    value = result.metrics[name].point
    assert value is not None
    return value


def test_energy_of_one_load_is_over_the_window_of_its_throughput() -> None:
    result = measured("ttft", constant, rate=40, requests=50)
    assert point(result, "mean_power") == pytest.approx(400, rel=1e-6)
    rate = point(result, "output_token_throughput")
    assert point(result, "energy_per_output_token") == pytest.approx(400 / rate, rel=1e-6)
    assert point(result, "tokens_per_joule") == pytest.approx(rate / 400, rel=1e-6)
    requests = point(result, "request_throughput")
    assert point(result, "energy_per_request") == pytest.approx(400 / requests, rel=1e-6)
    (table,) = (each for each in result.tables if each.id == "machine")
    assert [row[1].value for row in table.cells] == pytest.approx([300, 100])  # type: ignore[union-attr]
    ids = [plot.id for plot in result.plots]
    assert ids.index("power_over_time") == ids.index("requests_over_time") + 1


def test_each_run_has_a_value_and_a_job_the_interval_of_one() -> None:
    result = measured("ttft", constant, "standard", concurrency=4, requests=50, runs=3)
    assert len(result.by_run["energy_per_output_token"]) == 3
    assert result.metrics["energy_per_output_token"].runs == 3


def test_levels_have_figures_of_their_own_and_a_picture_over_the_load() -> None:
    result = measured("tradeoff", constant, levels_percent=(30, 60, 90))
    assert point(result, "mean_power[60%]") == pytest.approx(400, rel=1e-6)
    assert "mean_power" not in result.metrics
    held = [level for level in result.levels if level.percent_of_capacity is not None]
    for level in held:
        rate = level.metrics["output_token_throughput"].point
        assert rate is not None
        assert level.metrics["tokens_per_joule"].point == pytest.approx(rate / 400, rel=1e-6)
    (table,) = (each for each in result.tables if each.id == "energy_by_level")
    assert {row[0] for row in table.rows} >= {level.label for level in held}
    (plot,) = (each for each in result.plots if each.id == "energy_load")
    assert len(plot.series["J per output token"][0]) == len(held)


def test_limits_are_judged_and_one_that_nothing_told_is_undecided() -> None:
    limits = [energy_per_output_token <= 5 * J, mean_power <= 700 * W]
    given = {"rate": 40, "requests": 400, "slo": limits}
    kept = measured("ttft", constant, "standard", **given)
    by_name = {each.objective.metric: each.verdict for each in gate(kept.objectives, kept.metrics).objectives}
    assert by_name["mean_power"] is GateVerdict.PASS
    alone = measured("ttft", lambda run: run, "standard", **given)
    verdicts = {each.verdict for each in gate(alone.objectives, alone.metrics).objectives}
    assert verdicts == {GateVerdict.INCONCLUSIVE}
    assert alone.metrics["mean_power"].point is None
    assert [note.id for note in alone.notes] == ["machine_not_sampled"]


def test_without_telemetry_and_without_limits_nothing_changes() -> None:
    result = measured("ttft", lambda run: run, rate=40, requests=50)
    assert not {"mean_power", "peak_memory"} & result.metrics.keys()
    assert not [each for each in result.tables if each.id == "machine"]


def test_a_device_whose_energy_is_not_known_voids_the_sum_and_is_told() -> None:
    def half(run: Observation) -> Observation:
        seen = constant(run)
        assert seen.telemetry is not None
        first, second = seen.telemetry.devices
        kept = 3
        cut = replace(
            second,
            at_ns=second.at_ns[:kept],
            values={name: own[:kept] for name, own in second.values.items()},
            vanished_ns=int(second.at_ns[kept]),
        )
        lost = (Lost("nvml", "sampler_died", "exit status 9", run.started_ns + 2 * S),)
        return replace(seen, telemetry=replace(seen.telemetry, devices=(first, cut), lost=lost))

    result = measured("ttft", half, rate=40, requests=50)
    assert result.metrics["mean_power"].point is None
    assert result.metrics["ttft.p50"].point is not None
    assert [str(note) for note in result.notes] == [
        "telemetry: nvml the process that samples ended, 2 s after the start: exit status 9",
        "the energy of model (gpu-1) is not known: it went while the load ran",
    ]
    (table,) = (each for each in result.tables if each.id == "machine")
    assert [row[1] for row in table.rows] == ["300 W", "not measured"]


def test_what_is_within_another_device_is_counted_with_that() -> None:
    def nested(run: Observation) -> Observation:
        at_ns = around(run)
        watts = {"package": (90.0, ""), "core": (60.0, "package"), "dram": (10.0, "")}
        devices = tuple(
            device(at_ns, name, "cpu", within=within, power_w=np.full(len(at_ns), own))
            for name, (own, within) in watts.items()
        )
        return replace(run, telemetry=Telemetry(devices, 0.25))

    assert point(measured("ttft", nested, rate=40, requests=50), "mean_power") == pytest.approx(100)


def test_an_accelerator_without_power_leaves_the_sum_unknown_and_a_host_does_not() -> None:
    def mixed(run: Observation, kind: Any) -> Observation:
        seen, at_ns = constant(run), around(run)
        assert seen.telemetry is not None
        silent = device(at_ns, "silent", kind, utilisation=np.full(len(at_ns), 0.5))
        return replace(seen, telemetry=replace(seen.telemetry, devices=(*seen.telemetry.devices, silent)))

    of_host = measured("ttft", lambda run: mixed(run, "node"), rate=40, requests=50)
    assert point(of_host, "mean_power") == pytest.approx(400)
    of_gpu = measured("ttft", lambda run: mixed(run, "gpu"), rate=40, requests=50)
    assert of_gpu.metrics["mean_power"].point is None
    assert point(of_gpu, "gpu_utilisation") == pytest.approx(0.5)


def test_memory_is_that_of_the_accelerators_and_tokens_per_dollar_of_the_price() -> None:
    def priced(run: Observation) -> Observation:
        at_ns = around(run)
        grown = np.linspace(1, 5, len(at_ns)) * 2**30
        devices = (
            device(at_ns, "gpu-0", memory_bytes=np.minimum(grown, 3 * 2**30)),
            device(at_ns, "gpu-1", memory_bytes=np.full(len(at_ns), 2.0**30)),
            device(at_ns, "host", "node", memory_bytes=grown * 100),
        )
        return replace(run, telemetry=Telemetry(devices, 0.25, (), 7.2, "USD"))

    result = measured("ttft", priced, rate=40, requests=50)
    assert point(result, "peak_memory") == pytest.approx(4)
    rate = point(result, "output_token_throughput")
    assert point(result, "tokens_per_dollar") == pytest.approx(rate * 3600 / 7.2)
    assert result.metrics["mean_power"].point is None


def test_a_limit_by_level_is_asked_for_where_a_sweep_has_no_other() -> None:
    from pytest_llmbench.methodology.given import not_given

    assert not_given("ttft", [mean_power <= 700 * W, gpu_utilisation >= 0.5]) == []
    (told,) = not_given("tradeoff", [mean_power <= 700 * W])
    assert 'write mean_power["50%"]' in told
    assert not_given("tradeoff", [mean_power["50%"] <= 700 * W]) == []
