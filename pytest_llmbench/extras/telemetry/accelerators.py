"""Accelerators of this host, by the libraries of their makers: NVML, AMD SMI."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Sequence
from typing import Any

from pytest_llmbench.extras.telemetry.reading import Reading, SourceError, finite, told
from pytest_llmbench.model.telemetry import THROTTLES

_NVML_REASONS = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal",
    0x40: "hardware thermal",
    0x80: "power brake",
}
MIB = 2**20


def throttled_of(nvml_bits: float) -> float:
    """NVML's and DCGM's reasons of clocks as ours."""
    return float(sum(THROTTLES[name] for bit, name in _NVML_REASONS.items() if int(nvml_bits) & bit))


class Nvml:
    """GPUs of NVIDIA. Needs ``nvidia-ml-py``, and the driver."""

    name = "nvml"

    def __init__(self) -> None:
        self._library = _imported("pynvml")
        self._host = socket.gethostname()
        try:
            self._library.nvmlInit()
        except self._library.NVMLError as error:
            raise SourceError("no_answer", str(error)) from error

    def read(self) -> Sequence[Reading]:
        library, found = self._library, []
        try:
            count = library.nvmlDeviceGetCount()
        except library.NVMLError as error:
            raise SourceError("no_answer", str(error)) from error
        for number in range(count):
            handle = self._asked(library.nvmlDeviceGetHandleByIndex, number)
            identifier = None if handle is None else self._asked(library.nvmlDeviceGetUUID, handle)
            if identifier is not None:  # else it is lost: its series ends
                found.append(self._reading(handle, _text(identifier)))
        return found

    def _reading(self, handle: Any, identifier: str) -> Reading:
        library, ask = self._library, self._asked
        use, memory = ask(library.nvmlDeviceGetUtilizationRates, handle), None
        memory = ask(library.nvmlDeviceGetMemoryInfo, handle)
        reasons = getattr(library, "nvmlDeviceGetCurrentClocksEventReasons", None)
        reasons = reasons or library.nvmlDeviceGetCurrentClocksThrottleReasons
        bits = ask(reasons, handle)
        values = told(
            power_w=finite(ask(library.nvmlDeviceGetPowerUsage, handle), 1e-3),
            energy_j=finite(ask(library.nvmlDeviceGetTotalEnergyConsumption, handle), 1e-3),
            utilisation=None if use is None else finite(use.gpu, 1e-2),
            memory_bytes=None if memory is None else finite(memory.used),
            temperature_c=finite(ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)),
            clock_mhz=finite(ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM)),
            throttled=None if bits is None else throttled_of(bits),
        )
        named = ask(library.nvmlDeviceGetName, handle)
        return Reading(identifier, "gpu", "GPU" if named is None else _text(named), values, self._host)

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the library says; None for what a device does not support, and for one that is lost."""
        try:
            return function(*arguments)
        except self._library.NVMLError:
            return None


class AmdSmi:
    """GPUs of AMD, by the library that comes with ROCm."""

    name = "amdsmi"

    def __init__(self) -> None:
        self._library = _imported("amdsmi")
        self._host = socket.gethostname()
        try:
            self._library.amdsmi_init()
        except self._library.AmdSmiException as error:
            raise SourceError("no_answer", str(error)) from error

    def read(self) -> Sequence[Reading]:
        library = self._library
        try:
            handles = library.amdsmi_get_processor_handles()
        except library.AmdSmiException as error:
            raise SourceError("no_answer", str(error)) from error
        return [each for each in map(self._reading, handles) if each is not None]

    def _reading(self, handle: Any) -> Reading | None:
        library = self._library
        identifier = self._asked(library.amdsmi_get_gpu_device_uuid, handle)
        if identifier is None:
            return None
        power = self._asked(library.amdsmi_get_power_info, handle) or {}
        energy = self._asked(library.amdsmi_get_energy_count, handle) or {}
        activity = self._asked(library.amdsmi_get_gpu_activity, handle) or {}
        memory = self._asked(library.amdsmi_get_gpu_vram_usage, handle) or {}
        watts = (finite(power.get(name)) for name in ("current_socket_power", "average_socket_power"))
        count, step_uj = finite(energy.get("energy_accumulator")), finite(energy.get("counter_resolution"))
        values = told(
            power_w=next((each for each in watts if each is not None), None),
            energy_j=None if count is None or step_uj is None else count * step_uj / 1e6,
            utilisation=finite(activity.get("gfx_activity"), 1e-2),
            memory_bytes=finite(memory.get("vram_used"), MIB),
        )
        chip = self._asked(library.amdsmi_get_gpu_asic_info, handle) or {}
        return Reading(str(identifier), "gpu", chip.get("market_name") or "AMD GPU", values, self._host)

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._library.AmdSmiException:
            return None


def _imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except Exception as error:  # amdsmi raises what it likes where there is no driver
        raise SourceError("not_installed", str(error)) from error


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
