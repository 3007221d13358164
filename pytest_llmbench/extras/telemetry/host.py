"""This host: its processors and memory, the processes of a launched system, RAPL's energy counters, and its
accelerators by the libraries of their makers, NVML and AMD SMI."""

from __future__ import annotations

import importlib
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from pytest_llmbench.extras.telemetry.reading import Reading, SourceError, finite, told
from pytest_llmbench.model.telemetry import THROTTLES, Kind

POWERCAP = Path("/sys/class/powercap")


class Host:
    """The host as a whole, without power; with ``pid`` also that process and all that came of it."""

    name = "psutil"

    def __init__(self, pid: int | None = None) -> None:
        self._host, self._pid = socket.gethostname(), pid
        self._known: dict[int, psutil.Process] = {}
        psutil.cpu_percent(None)

    def read(self) -> Sequence[Reading]:
        used = told(
            utilisation=min(1.0, psutil.cpu_percent(None) / 100),
            memory_bytes=float(psutil.virtual_memory().used),
        )
        found = [Reading(self._host, "node", "this host", used, self._host)]
        return found if self._pid is None else [*found, *self._processes(self._pid)]

    def _processes(self, pid: int) -> Iterator[Reading]:
        """The processes of the system together; none where they have ended."""
        try:
            root = self._known.setdefault(pid, psutil.Process(pid))
            for child in root.children(recursive=True):
                self._known.setdefault(child.pid, child)
        except psutil.Error:
            return
        percent = memory = 0.0
        for number, process in list(self._known.items()):
            try:  # the first percentage of a process is 0: it is since the one before
                percent += process.cpu_percent(None)
                memory += process.memory_info().rss
            except psutil.Error:
                del self._known[number]
        share = min(1.0, percent / 100 / (psutil.cpu_count() or 1))
        values = told(utilisation=share, memory_bytes=memory)
        yield Reading(f"processes of {pid}", "process", "the system's processes", values, self._host)


class Rapl:
    """Energy counters of the processors and their memory, where the kernel lets this user read them."""

    name = "rapl"

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._host = socket.gethostname()
        self._zones: list[tuple[Path, str, Kind]] = []
        for path in sorted(folder.glob("intel-rapl:*")):
            try:
                name = (path / "name").read_text().strip()
            except OSError:
                name = path.name
            kind: Kind = "memory" if name == "dram" else "node" if name.startswith("psys") else "cpu"
            self._zones.append((path, name, kind))
        if not self._zones:
            raise SourceError("no_figure", f"{folder} has no counters")

    def read(self) -> Sequence[Reading]:
        found, why = [], ""
        whole = next((path.name for path, name, _ in self._zones if name.startswith("psys")), "")
        for path, name, kind in self._zones:
            try:
                joules = int((path / "energy_uj").read_text()) / 1e6
                wraps_j = int((path / "max_energy_range_uj").read_text()) / 1e6
            except (OSError, ValueError) as error:
                why = str(error)
                continue
            parent = path.name.rpartition(":")[0]
            part = kind == "cpu" and parent != "intel-rapl"
            within = parent if part else whole if path.name != whole else ""
            values = told(energy_j=joules)
            found.append(Reading(path.name, kind, name, values, self._host, within, wraps_j))
        if not found:
            raise SourceError("not_readable", why)
        return found


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


class _Library:
    """GPUs by the library of their maker, which needs its driver."""

    def __init__(self, module: str, begin: str, error: str) -> None:
        """``begin``, ``error``: its function that is called first, and what it raises."""
        try:
            self._library: Any = importlib.import_module(module)
        except Exception as failure:  # amdsmi raises what it likes where there is no driver
            raise SourceError("not_installed", str(failure)) from failure
        self._error: type[Exception] = getattr(self._library, error)
        self._host = socket.gethostname()
        self._required(getattr(self._library, begin))

    def _required(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except self._error as error:
            raise SourceError("no_answer", str(error)) from error

    def _asked(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the library says; None for what a device does not support, and for one that is lost."""
        try:
            return function(*arguments)
        except self._error:
            return None


class Nvml(_Library):
    """GPUs of NVIDIA. Needs ``nvidia-ml-py``, and the driver."""

    name = "nvml"

    def __init__(self) -> None:
        super().__init__("pynvml", "nvmlInit", "NVMLError")

    def read(self) -> Sequence[Reading]:
        library, found = self._library, []
        for number in range(self._required(library.nvmlDeviceGetCount)):
            handle = self._asked(library.nvmlDeviceGetHandleByIndex, number)
            identifier = None if handle is None else self._asked(library.nvmlDeviceGetUUID, handle)
            if identifier is not None:  # else it is lost: its series ends
                found.append(self._reading(handle, _text(identifier)))
        return found

    def _reading(self, handle: Any, identifier: str) -> Reading:
        library, ask = self._library, self._asked
        use = ask(library.nvmlDeviceGetUtilizationRates, handle)
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


class AmdSmi(_Library):
    """GPUs of AMD, by the library that comes with ROCm."""

    name = "amdsmi"

    def __init__(self) -> None:
        super().__init__("amdsmi", "amdsmi_init", "AmdSmiException")

    def read(self) -> Sequence[Reading]:
        handles = self._required(self._library.amdsmi_get_processor_handles)
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


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
