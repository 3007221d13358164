"""The sampling process: readings around a load, commands that end, a process that dies, absent pages."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from served_load import PATIENT
from waiting import wait_for

from pytest_llmbench.extras.telemetry.metrics import energy
from pytest_llmbench.extras.telemetry.sampling import Sampler, sampled
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.endpoint import SampledMachine
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.telemetry import Telemetry
from pytest_llmbench.probes.disclosure import read_sut_file
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.simulator.serving.metrics_page import PATH
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.catalogue import workload

METER = """
import json, time
for _ in range({lines}):
    print(json.dumps({{"id": "pdu", "power_w": 50}}), flush=True)
    time.sleep(0.05)
"""


@contextmanager
def sampler(wanted: SampledMachine) -> Iterator[Sampler]:
    made = Sampler(wanted)
    try:
        made.ready()
        yield made
    finally:
        made.close()


def meter(lines: int = 10_000) -> tuple[str, ...]:
    return (sys.executable, "-u", "-c", METER.format(lines=lines))


def during(source: Sampler, seconds: float) -> tuple[Telemetry, int, int]:
    started_ns = time.monotonic_ns()
    time.sleep(seconds)
    ended_ns = time.monotonic_ns()
    return source.during(started_ns, ended_ns), started_ns, ended_ns


def test_a_load_has_the_readings_from_before_it_until_after_it() -> None:
    with sampler(SampledMachine(command=meter(), interval_s=0.1)) as source:
        for _ in range(2):  # the second load does not have those of the first
            told, started_ns, ended_ns = during(source, 0.3)
            (device,) = told.devices
            assert device.at_ns[0] <= started_ns < device.at_ns[1]
            assert device.at_ns[-2] < ended_ns <= device.at_ns[-1]
            assert told.lost == ()
            drawn = energy(device, np.array([started_ns, ended_ns]))
            assert drawn.total_j == pytest.approx(50 * (ended_ns - started_ns) / 1e9)


def test_a_command_that_ends_and_one_that_is_not_there_are_told() -> None:
    with sampler(SampledMachine(command=meter(lines=3), interval_s=0.1)) as source:
        told, _, _ = during(source, 0.6)
        assert [(lost.why, lost.detail) for lost in told.lost] == [("vanished", "it ended with status 0")]
    with sampler(SampledMachine(command=("/no/such/meter",))) as source:
        told, _, _ = during(source, 0.0)
        assert [lost.why for lost in told.lost] == ["no_answer"]


@pytest.mark.parametrize("killed", [False, True])
def test_no_command_outlives_its_sampler(killed: bool) -> None:
    told = "import json, os, time; print(json.dumps({'id': str(os.getpid()), 'power_w': 1}), flush=True); "
    command = (sys.executable, "-c", f"{told} time.sleep(60)")
    with sampler(SampledMachine(command=command, interval_s=0.1)) as source:
        (line,) = source._lines
        pid = int(line["devices"][0]["id"])
        assert psutil.pid_exists(pid)
        if killed:
            assert source._child is not None
            source._child.kill()
    with suppress(psutil.NoSuchProcess):
        gone = psutil.Process(pid)
        wait_for(lambda: not gone.is_running() or gone.status() == psutil.STATUS_ZOMBIE)


def test_a_sampler_that_dies_is_told_and_the_next_load_has_a_new_one() -> None:
    with sampler(SampledMachine(command=meter(), interval_s=0.1)) as source:
        assert source._child is not None
        os.kill(source._child.pid, signal.SIGKILL)
        told, _, _ = during(source, 0.1)
        assert [lost.why for lost in told.lost] == ["sampler_died"]
        source.ready()
        told, _, _ = during(source, 0.1)
        assert told.lost == ()


def test_a_page_that_nobody_serves_is_told_and_costs_no_figure() -> None:
    with sampler(SampledMachine(("http://127.0.0.1:9/metrics",), interval_s=0.1)) as source:
        told, _, _ = during(source, 0.1)
        (lost,) = told.lost
        assert (lost.source, lost.why, told.devices) == ("http://127.0.0.1:9/metrics", "no_answer", ())


def test_this_host_tells_its_use_and_why_there_is_no_power() -> None:
    with sampler(SampledMachine(this_host=True, pid=os.getpid(), interval_s=0.1)) as source:
        told, _, _ = during(source, 0.3)
        assert {device.kind for device in told.devices} >= {"node", "process"}


@pytest.mark.timing
def test_energy_of_a_served_load_is_that_of_the_engine_within_a_hundredth() -> None:
    scenario = "fast?idle_w=70&step_w=300&decode_mj_per_token=100"
    plan = LoadPlan("load", workload("synthetic-uniform"), ClosedLoop(8), 60, seed=3, deadlines=PATIENT)
    with EmbeddedEngine.start(scenario) as engine:
        generator = LoadGenerator(Target.parse(engine.url), dialect("openai-completions"), model=engine.model)
        executor = sampled(generator, SampledMachine((server_root(engine.url) + PATH,), interval_s=0.05))
        try:
            seen = executor.run(plan)
        finally:
            executor.close()
        (curve,) = engine.energy()
    assert seen.records.ok.all()
    assert seen.telemetry is not None
    (device,) = seen.telemetry.devices
    measured = energy(device, np.array([seen.started_ns, seen.ended_ns])).total_j
    assert measured == pytest.approx(curve.joules(seen.ended_ns) - curve.joules(seen.started_ns), rel=0.01)


def test_the_sut_file_says_what_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SampledMachine] = []
    monkeypatch.setattr(Sampler, "__init__", lambda _, wanted: made.append(wanted))
    sut = tmp_path / "sut.toml"
    sut.write_text("[telemetry]\nthis_host = true\n")
    access = SUTAccess.to(SUT("replay"), Settings(), read_sut_file(sut))
    wrapped = access.sampled(LoadGenerator.__new__(LoadGenerator), here=False, pid=7)
    assert made == [SampledMachine(this_host=True, pid=7, currency="USD")]
    without = SUTAccess.to(SUT("replay"), Settings(), None)
    assert without.sampled(wrapped, here=True, pid=7) is wrapped
