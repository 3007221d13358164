"""What the embedded engine's accelerators tell of their power, as the page of NVIDIA's DCGM exporter."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence

from pytest_llmbench.simulator.engine.power import ACCELERATOR, DeviceReading, PowerMeter, read_devices

PATH = "/sim/dcgm/metrics"

# Names, types and sentences of the exporter. It gives the counter without Prometheus's suffix _total, which a
# client library would add.
_FAMILIES: Sequence[tuple[str, str, str, Callable[[DeviceReading], float]]] = (
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).", lambda each: round(each.temperature_c)),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).", lambda each: round(each.power_w, 3)),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "counter",
        "Total energy consumption since boot (in mJ).",
        lambda each: round(each.energy_j * 1e3),
    ),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).", lambda each: round(each.utilisation * 100)),
    (
        "DCGM_FI_DEV_FB_USED",
        "gauge",
        "Framebuffer memory used (in MiB).",
        lambda each: each.memory_bytes // 2**20,
    ),
)


def dcgm_page(meters: Sequence[PowerMeter], now_ns: int) -> bytes | None:
    """The page in Prometheus's text format. None: it does not answer."""
    devices = read_devices(meters, now_ns)
    if devices is None:
        return None
    host = socket.gethostname()
    lines = []
    for name, kind, meaning, value in _FAMILIES:
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
        lines += [
            f'{name}{{gpu="{each.number}",UUID="{each.uuid}",device="nvidia{each.number}",'
            f'modelName="{ACCELERATOR}",Hostname="{host}"}} {value(each)}'
            for each in devices
        ]
    return "\n".join([*lines, ""]).encode()
