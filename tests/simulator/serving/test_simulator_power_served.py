"""What the engine's accelerators tell over HTTP, against its true energy."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import plain_http
import pytest
from nvml_face import nvml_face, read_from
from prometheus_client.parser import text_string_to_metric_families
from waiting import wait_for

from pytest_llmbench.registry import names
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

POWER = "fast?idle_w=100&step_w=200&decode_mj_per_token=50&accelerator_count=2&replicas=2"
# The exporter's page has no suffix _total; the parser adds it to every counter.
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION_total"


def page(engine: EmbeddedEngine, timeout: float = 10.0) -> dict[str, dict[str, float]]:
    """Series → number of the accelerator → value."""
    answer = plain_http.get(engine.url.removesuffix("/v1") + "/sim/dcgm/metrics", timeout=timeout)
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert "_total{" not in answer.text
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            assert sample.labels["modelName"] == "simulated accelerator"
            assert sample.labels["UUID"].startswith("GPU-")
            found.setdefault(sample.name, {})[sample.labels["gpu"]] = sample.value
    return found


@pytest.mark.skipif(not names("deployments"), reason="the extra of several engines is left out")
def test_the_page_is_the_exporters_and_true() -> None:
    with EmbeddedEngine.start(POWER) as engine:
        before_ns, first = time.monotonic_ns(), page(engine)
        asked = threading.Thread(
            target=plain_http.post,
            args=(f"{engine.url}/completions",),
            kwargs={"json": {"prompt": "a", "max_tokens": 200}, "timeout": 15.0},
        )
        asked.start()
        wait_for(lambda: sum(page(engine)["DCGM_FI_DEV_POWER_USAGE"].values()) > 4 * 100)
        asked.join()
        second, after_ns = page(engine), time.monotonic_ns()
        curves = engine.energy()
        nvml: Any = nvml_face(read_from(engine))
        nvml.nvmlInit()
        assert nvml.nvmlDeviceGetCount() == 4
        for number in range(4):
            assert nvml.nvmlDeviceGetTotalEnergyConsumption(number) >= second[ENERGY][str(number)]
    assert set(first) == {
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_POWER_USAGE",
        ENERGY,
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_FB_USED",
    }
    assert first["DCGM_FI_DEV_POWER_USAGE"] == dict.fromkeys("0123", 100.0)
    assert first["DCGM_FI_DEV_GPU_TEMP"]["0"] == 36
    assert first["DCGM_FI_DEV_FB_USED"]["0"] == (4 * 1024 + 33024 * 16 * 16 / 1024) // 2
    told_j = sum(second[ENERGY].values()) / 1e3 - sum(first[ENERGY].values()) / 1e3
    most_j = sum(curve.joules(after_ns) - curve.joules(before_ns) for curve in curves)
    assert len(curves) == 2
    assert most_j - 400 * 0.2 < told_j <= most_j + 0.01  # the two pages took less than 0.2 s
    step_j = 200 * 2 * sum(curve.busy_ns[-1] for curve in curves) / 1e9 + 200 * 0.05
    assert most_j == pytest.approx(400 * (after_ns - before_ns) / 1e9 + step_j)
    assert max(second["DCGM_FI_DEV_GPU_UTIL"].values()) > 10


def test_a_page_may_stop_answering_and_the_engine_goes_on() -> None:
    with EmbeddedEngine.start("fast?idle_w=100&power_fault=silent") as engine:
        with pytest.raises(httpx.TimeoutException):
            page(engine, timeout=0.3)
        assert engine.status()["running"] == 0


def test_without_power_there_is_no_page() -> None:
    with EmbeddedEngine.start("fast") as engine:
        for path in ("/sim/dcgm/metrics", "/sim/energy"):
            assert plain_http.get(engine.url.removesuffix("/v1") + path).status_code == 404
