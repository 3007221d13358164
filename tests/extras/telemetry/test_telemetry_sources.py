"""What sources say, as readings: pages of exporters, NVML, RAPL, psutil, lines of a command."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_llmbench.extras.telemetry.host import AmdSmi, Host, Nvml, Rapl
from pytest_llmbench.extras.telemetry.pages import readings_of
from pytest_llmbench.extras.telemetry.reading import Reading, SourceError, readings_of_line

DCGM = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",pci_bus_id="00000000:04:00.0",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",DCGM_FI_DRIVER_VERSION="550.54.15"} 1980
# HELP DCGM_FI_DEV_POWER_USAGE Power draw (in W).
# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",container="vllm",namespace="a",pod="p-1"} 412.5
DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7",container="side",namespace="a",pod="p-2"} 412.5
DCGM_FI_DEV_POWER_USAGE{gpu="1",UUID="GPU-b",device="nvidia1",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7"} 71.2
# HELP DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION Total energy consumption since boot (in mJ).
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7"} 94631472113
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7"} 97
DCGM_FI_DEV_FB_USED{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7"} 70000
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7"} 61
DCGM_FI_DEV_CLOCKS_EVENT_REASONS{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="node-7"} 36
DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-a"} 0
"""  # noqa: E501
NODE = """\
# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} %(idle)s
node_cpu_seconds_total{cpu="0",mode="iowait"} 10
node_cpu_seconds_total{cpu="0",mode="user"} %(user)s
node_memory_MemTotal_bytes 6.7e+10
node_memory_MemAvailable_bytes 4.7e+10
node_rapl_package_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0"} 25863.25
node_rapl_core_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0:0"} 1000.5
node_rapl_dram_joules_total{index="0",path="/sys/class/powercap/intel-rapl:0:1"} 500.25
node_hwmon_power_average_watt{chip="power_meter_acpi000d_00",sensor="power1"} 231
node_load1 0.21
"""
KEPLER = """\
# TYPE kepler_node_platform_joules_total counter
kepler_node_platform_joules_total{instance="n1",mode="dynamic",source="acpi"} 1000
kepler_node_platform_joules_total{instance="n1",mode="idle",source="acpi"} 4000
kepler_node_package_joules_total{instance="n1",mode="dynamic",package="0",source="intel_rapl"} 700
kepler_node_package_joules_total{instance="n1",mode="idle",package="0",source="intel_rapl"} 300
kepler_container_joules_total{container_name="vllm",mode="dynamic"} 123
"""
KEPLER_NEW = """\
kepler_node_cpu_joules_total{node_name="n1",path="/sys/class/powercap/intel-rapl:0",zone="package"} 700
kepler_node_cpu_joules_total{node_name="n1",path="/sys/class/powercap/intel-rapl:0:0",zone="core"} 300
kepler_node_cpu_joules_total{node_name="n1",path="/sys/class/powercap/intel-rapl:0:1",zone="dram"} 90
"""


def read(text: str) -> dict[str, Reading]:
    return {each.id: each for each in readings_of(text, "far", 1.0)[0]}


def test_dcgm_exporter() -> None:
    found = read(DCGM)
    assert found.keys() == {"GPU-a", "GPU-b"}
    first = found["GPU-a"]
    assert (first.kind, first.name, first.host) == ("gpu", "NVIDIA H100 80GB HBM3", "node-7")
    assert first.values == {
        "power_w": 412.5,
        "energy_j": pytest.approx(94631472.113),
        "utilisation": 0.97,
        "memory_bytes": 70000 * 2**20,
        "temperature_c": 61,
        "clock_mhz": 1980,
        "throttled": 1 + 4,
    }
    assert found["GPU-b"].values == {"power_w": 71.2}


def test_node_exporter_tells_the_use_of_its_processors_from_the_second_page_on() -> None:
    _, idle = readings_of(NODE % {"idle": 1000, "user": 500}, "far", 1.0)
    later, _ = readings_of(NODE % {"idle": 1003, "user": 501}, "far", 2.0, idle)
    found = {each.id: each for each in later}
    assert found["far"].values == {"utilisation": 0.25, "memory_bytes": pytest.approx(2e10), "power_w": 231}
    assert found["far package 0"].values == {"energy_j": 25863.25}
    assert found["far core 0"].within == "far package 0"
    assert {found["far package 0"].within, found["far dram 0"].within} == {"far"}


def test_kepler_adds_up_its_modes_and_nothing_twice() -> None:
    found = read(KEPLER)
    assert {name: each.values["energy_j"] for name, each in found.items()} == {
        "n1 platform": 5000,
        "n1 package 0": 1000,
    }
    assert (found["n1 package 0"].within, found["n1 platform"].within) == ("n1 platform", "")
    new = read(KEPLER_NEW)
    assert new["n1 core"].within == "n1 package"
    assert (new["n1 dram"].kind, new["n1 dram"].within) == ("memory", "")


def test_a_page_of_something_else_has_no_devices_and_a_broken_line_is_an_error() -> None:
    assert read("vllm:num_requests_running 3\n") == {}
    with pytest.raises(ValueError, match=r"."):
        read("DCGM_FI_DEV_POWER_USAGE{gpu=} x\n")


class LostError(Exception):
    pass


def fake_nvml(devices: list[dict[str, Any]]) -> SimpleNamespace:
    """NVML as its binding has it: handles, milliwatts, millijoules; what is absent is not supported."""

    def told(name: str) -> Any:
        def ask(handle: dict[str, Any], *_: Any) -> Any:
            if handle.get(name) is None:
                raise LostError("Not Supported")
            return handle[name]

        return ask

    return SimpleNamespace(
        NVMLError=LostError,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(devices),
        nvmlDeviceGetHandleByIndex=lambda number: devices[number],
        nvmlDeviceGetUUID=told("uuid"),
        nvmlDeviceGetName=told("name"),
        nvmlDeviceGetPowerUsage=told("mw"),
        nvmlDeviceGetTotalEnergyConsumption=told("mj"),
        nvmlDeviceGetUtilizationRates=told("use"),
        nvmlDeviceGetMemoryInfo=told("memory"),
        nvmlDeviceGetTemperature=told("heat"),
        nvmlDeviceGetClockInfo=told("clock"),
        nvmlDeviceGetCurrentClocksThrottleReasons=told("reasons"),
    )


def test_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = {
        "uuid": "GPU-a", "name": "NVIDIA L4", "mw": 61500, "mj": 5_000_000, "use": SimpleNamespace(gpu=40),
        "memory": SimpleNamespace(used=2**30), "heat": 55, "clock": 1200, "reasons": 0x41,
    }  # fmt: skip
    old = {"uuid": b"GPU-b", "name": b"Tesla K80", "use": SimpleNamespace(gpu=0)}
    devices: list[dict[str, Any]] = [whole, old, {}]
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(devices))  # type: ignore[arg-type]
    source = Nvml()
    first, second = source.read()  # the third is lost
    assert first.values == {
        "power_w": 61.5, "energy_j": 5000, "utilisation": 0.4, "memory_bytes": 2**30, "temperature_c": 55,
        "clock_mhz": 1200, "throttled": 8,
    }  # fmt: skip
    assert (second.id, second.name, second.values) == ("GPU-b", "Tesla K80", {"utilisation": 0.0})


def test_amdsmi(monkeypatch: pytest.MonkeyPatch) -> None:
    library = SimpleNamespace(
        AmdSmiException=LostError,
        amdsmi_init=lambda: None,
        amdsmi_get_processor_handles=lambda: [1],
        amdsmi_get_gpu_device_uuid=lambda _: "uuid-1",
        amdsmi_get_power_info=lambda _: {"current_socket_power": "N/A", "average_socket_power": 140},
        amdsmi_get_energy_count=lambda _: {"energy_accumulator": 1_000_000, "counter_resolution": 15.3},
        amdsmi_get_gpu_activity=lambda _: {"gfx_activity": 80},
        amdsmi_get_gpu_vram_usage=lambda _: {"vram_used": 1024},
        amdsmi_get_gpu_asic_info=lambda _: {"market_name": "AMD Instinct MI300X"},
    )
    monkeypatch.setitem(sys.modules, "amdsmi", library)  # type: ignore[arg-type]
    (found,) = AmdSmi().read()
    assert found.name == "AMD Instinct MI300X"
    assert found.values == {
        "power_w": 140, "energy_j": pytest.approx(15.3), "utilisation": 0.8, "memory_bytes": 2**30,
    }  # fmt: skip


def test_a_library_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    with pytest.raises(SourceError) as raised:
        Nvml()
    assert raised.value.why == "not_installed"


def zone(folder: Path, name: str, label: str, uj: int | None) -> None:
    (folder / name).mkdir()
    (folder / name / "name").write_text(f"{label}\n")
    (folder / name / "max_energy_range_uj").write_text("262143328850\n")
    if uj is not None:
        (folder / name / "energy_uj").write_text(f"{uj}\n")


def test_rapl_counts_memory_beside_the_package_and_cores_within_it(tmp_path: Path) -> None:
    zone(tmp_path, "intel-rapl:0", "package-0", 1_500_000)
    zone(tmp_path, "intel-rapl:0:0", "core", 700_000)
    zone(tmp_path, "intel-rapl:0:1", "dram", 200_000)
    zone(tmp_path, "intel-rapl-mmio:0", "package-0", 1_500_000)
    found = {each.id: each for each in Rapl(tmp_path).read()}
    assert {name: (each.kind, each.within) for name, each in found.items()} == {
        "intel-rapl:0": ("cpu", ""),
        "intel-rapl:0:0": ("cpu", "intel-rapl:0"),
        "intel-rapl:0:1": ("memory", ""),
    }
    assert found["intel-rapl:0"].values == {"energy_j": 1.5}
    assert found["intel-rapl:0"].wraps_at_j == pytest.approx(262143.32885)


def test_rapl_that_is_absent_or_shut_is_told(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as absent:
        Rapl(tmp_path)
    zone(tmp_path, "intel-rapl:0", "package-0", None)
    with pytest.raises(SourceError) as shut:
        Rapl(tmp_path).read()
    assert (absent.value.why, shut.value.why) == ("no_figure", "not_readable")


def test_this_host_and_the_processes_of_a_system() -> None:
    source = Host(os.getpid())
    source.read()
    host, processes = source.read()
    assert (host.kind, processes.kind) == ("node", "process")
    for each in (host, processes):
        assert 0 <= each.values["utilisation"] <= 1
        assert each.values["memory_bytes"] > 10 * 2**20


def test_lines_of_a_command() -> None:
    (found,) = readings_of_line('{"id": "pdu-3", "power_w": 812.5, "kind": "node"}', "here")
    assert (found.id, found.kind, found.values) == ("pdu-3", "node", {"power_w": 812.5})
    several = readings_of_line(
        '{"devices": [{"kind": "gpu", "energy_j": 3}, {"id": "b", "power_w": 1}]}', "here"
    )
    assert [each.id for each in several] == ["gpu", "b"]
    macmon = {
        "cpu_power": 1.5, "gpu_power": 12.0, "sys_power": 20.0, "gpu_usage": [1300, 0.75],
        "memory": {"ram_usage": 2**34}, "temp": {"gpu_temp_avg": 48.5},
    }  # fmt: skip
    gpu, cpu, whole = readings_of_line(json.dumps(macmon), "mac")
    assert gpu.values["utilisation"] == 0.75
    assert (cpu.within, whole.values) == ("system", {"power_w": 20.0})


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("watts: 3", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"kind": "tpu", "power_w": 1}', "write one of gpu, cpu"),
        ('{"power_w": "12 W"}', "none of power_w"),
        ('{"devices": {}}', "not a list"),
    ],
)
def test_a_line_that_is_no_reading_says_why(line: str, told: str) -> None:
    with pytest.raises(SourceError) as raised:
        readings_of_line(line, "here")
    assert raised.value.why == "not_readable"
    assert told in raised.value.detail
