"""The embedded engine's accelerators behind the names, units and errors of ``pynvml``, for samplers."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import plain_http

from pytest_llmbench.simulator.engine.power import ACCELERATOR, DeviceReading
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

Read = Callable[[], list[DeviceReading] | None]
_LINE = re.compile(r'^DCGM_FI_DEV_(\w+)\{gpu="(\d+)",.*\} (\S+)$', re.MULTILINE)
_FIELDS = {
    "POWER_USAGE": ("power_w", 1.0),
    "TOTAL_ENERGY_CONSUMPTION": ("energy_j", 1e-3),
    "GPU_UTIL": ("utilisation", 1e-2),
    "FB_USED": ("memory_bytes", 2**20),
    "GPU_TEMP": ("temperature_c", 1.0),
}


class NVMLError(Exception):
    """As pynvml's, with the number of the error in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.value = value

    def __str__(self) -> str:
        return {1: "Uninitialized", 10: "Timeout", 15: "GPU is lost"}[self.value]


def read_from(engine: EmbeddedEngine) -> Read:
    """Reads the accelerators of an engine that is served."""

    def read() -> list[DeviceReading] | None:
        found: dict[int, dict[str, Any]] = {}
        page = plain_http.get(engine.url.removesuffix("/v1") + "/sim/dcgm/metrics", timeout=1.0).text
        for series, number, value in _LINE.findall(page):
            name, unit = _FIELDS[series]
            found.setdefault(int(number), {"number": int(number)})[name] = float(value) * unit
        return [DeviceReading(**each) for each in found.values()]

    return read


def nvml_face(read: Read) -> ModuleType:
    """A module to stand for ``pynvml``. A device that has gone raises at every question, and is still
    counted, as a lost GPU is; where nothing answers, each question times out."""
    face: Any = ModuleType("pynvml")
    state = SimpleNamespace(begun=False, count=0)

    def devices() -> list[DeviceReading]:
        if not state.begun:
            raise NVMLError(1)
        found = read()
        if found is None:
            raise NVMLError(10)
        state.count = max(state.count, len(found))
        return found

    def of(handle: int) -> DeviceReading:
        found = devices()
        if handle >= len(found):
            raise NVMLError(15)
        return found[handle]

    def begin() -> None:
        state.begun = True

    def end() -> None:
        state.begun = False

    def count() -> int:
        devices()
        return int(state.count)

    def handle_of(index: int) -> int:
        return of(index).number

    def memory(handle: int) -> SimpleNamespace:
        used = int(of(handle).memory_bytes)
        return SimpleNamespace(total=2 * used, used=used, free=used)

    face.NVMLError, face.NVML_TEMPERATURE_GPU, face.NVML_CLOCK_SM = NVMLError, 0, 1
    face.nvmlInit, face.nvmlShutdown = begin, end
    face.nvmlDeviceGetCount, face.nvmlDeviceGetHandleByIndex = count, handle_of
    face.nvmlDeviceGetUUID = lambda handle: of(handle).uuid
    face.nvmlDeviceGetName = lambda handle: of(handle) and ACCELERATOR
    face.nvmlDeviceGetPowerUsage = lambda handle: round(of(handle).power_w * 1e3)
    face.nvmlDeviceGetTotalEnergyConsumption = lambda handle: round(of(handle).energy_j * 1e3)
    face.nvmlDeviceGetUtilizationRates = lambda handle: SimpleNamespace(
        gpu=round(of(handle).utilisation * 100), memory=0
    )
    face.nvmlDeviceGetMemoryInfo = memory
    face.nvmlDeviceGetTemperature = lambda handle, _: round(of(handle).temperature_c)
    face.nvmlDeviceGetClockInfo = lambda handle, _: 1980 * bool(of(handle))
    face.nvmlDeviceGetCurrentClocksEventReasons = lambda handle: 0 * of(handle).number
    return face
