"""Machines elsewhere, by Prometheus pages: DCGM exporter (GPUs), node exporter, Kepler."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.telemetry.host import MIB, throttled_of
from pytest_llmbench.extras.telemetry.reading import Reading, SourceError
from pytest_llmbench.model.telemetry import Kind, Quantity
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import ControlPlane, without_query
from pytest_llmbench.probes.engine_metrics import samples_of, series_key

if TYPE_CHECKING:
    from prometheus_client.samples import Sample

ANSWER_S = 2.0
"""Longest wait for a page, in seconds."""
MOST_BYTES = 2 * MIB
"""Size of a page from which on it is not read: it may have been cut."""

_DCGM: Mapping[str, tuple[Quantity, Callable[[float], float]]] = {
    "DCGM_FI_DEV_POWER_USAGE": ("power_w", float),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("energy_j", lambda mj: mj / 1e3),
    "DCGM_FI_DEV_GPU_UTIL": ("utilisation", lambda percent: percent / 100),
    "DCGM_FI_DEV_FB_USED": ("memory_bytes", lambda mib: mib * MIB),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_c", float),
    "DCGM_FI_DEV_SM_CLOCK": ("clock_mhz", float),
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": ("throttled", throttled_of),
    "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS": ("throttled", throttled_of),
}
_JOULES: Mapping[str, tuple[str, Kind]] = {
    "node_rapl_package_joules": ("package", "cpu"),
    "node_rapl_core_joules": ("core", "cpu"),
    "node_rapl_dram_joules": ("dram", "memory"),
    "kepler_node_platform_joules": ("platform", "node"),
    "kepler_node_package_joules": ("package", "cpu"),
    "kepler_node_core_joules": ("core", "cpu"),
    "kepler_node_dram_joules": ("dram", "memory"),
    "kepler_node_gpu_joules": ("gpu", "gpu"),
    "kepler_node_cpu_joules": ("", "cpu"),  # its label zone says which
}
"""Counter of joules → the part of the host, and its kind."""
_WITHIN = {"core": "package", "uncore": "package"}
_CPU = "node_cpu_seconds"
_MEMORY = ("node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes")
_WATTS = ("node_hwmon_power_average_watt", "node_hwmon_power_input_watt")
_KEYS = frozenset({*_DCGM, *_JOULES, _CPU, *_MEMORY, *_WATTS})


class MachinePage:
    """One page, asked again and again."""

    def __init__(self, url: str) -> None:
        self.name = without_query(url)
        self._url = url
        self._control = ControlPlane(url, Access(connect_s=ANSWER_S, answer_s=ANSWER_S))
        self._idle: Idle | None = None

    def read(self) -> Sequence[Reading]:
        try:
            answer = self._control.get(self._url)
        except SUTError as error:
            raise SourceError("no_answer", error.what) from error
        if answer.status != 200:
            raise SourceError("no_answer", f"HTTP {answer.status}")
        if len(answer.body) > MOST_BYTES:
            raise SourceError("not_readable", f"a page of more than {MOST_BYTES // MIB} MiB")
        host = urlsplit(self._url).hostname or ""
        try:
            text = answer.body.decode(errors="replace")
            found, self._idle = readings_of(text, host, time.monotonic(), self._idle)
        except (ValueError, OverflowError) as error:
            raise SourceError("not_readable", str(error)) from error
        if not found:
            raise SourceError("no_figure", "none of the series of DCGM exporter, node exporter or Kepler")
        return found


Idle = tuple[float, float, float]
"""Instant, idle seconds and all seconds of the processors."""


def readings_of(
    text: str, host: str, now_s: float, before: Idle | None = None
) -> tuple[list[Reading], Idle | None]:
    """The devices of a page, and the seconds of the processors, from which the next one tells their use.

    ``host``: where the page is from, for devices that do not say it. Raises ValueError for a known series
    that cannot be read.
    """
    samples: dict[str, list[Sample]] = {}
    for sample in samples_of(text, _KEYS):
        samples.setdefault(series_key(sample.name), []).append(sample)
    idle, cpu = None, [(each.labels.get("mode"), each.value) for each in samples.get(_CPU, ())]
    if cpu:
        idle_s = sum(value for mode, value in cpu if mode in ("idle", "iowait"))
        idle = now_s, idle_s, sum(value for _, value in cpu)
    node = list(_node(samples, host, idle, before))
    whole = host if node and "power_w" in node[0].values else ""
    return [*_gpus(samples, host), *_counters(samples, host, whole), *node], idle


def _gpus(samples: Mapping[str, Sequence[Sample]], host: str) -> Iterable[Reading]:
    found: dict[str, tuple[Mapping[str, str], dict[Quantity, float]]] = {}
    for series, (quantity, in_our_unit) in _DCGM.items():
        for sample in samples.get(series, ()):
            labels: Mapping[str, str] = sample.labels
            number = f"{labels.get('Hostname') or host}/{labels.get('gpu', '?')}"
            instance = labels.get("GPU_I_ID", "")
            identifier = (labels.get("UUID") or number) + (f"/{instance}" if instance else "")
            # One that several pods share has a line for each, with one value.
            found.setdefault(identifier, (labels, {}))[1].setdefault(quantity, in_our_unit(sample.value))
    for identifier, (labels, values) in found.items():
        name, own_host = labels.get("modelName") or "GPU", labels.get("Hostname") or host
        yield Reading(identifier, "gpu", name, values, own_host)


def _counters(samples: Mapping[str, Sequence[Sample]], host: str, whole: str) -> Iterable[Reading]:
    """Counters of joules; of one in several modes their sum. ``whole``: the id of the host, where another
    series tells its power."""
    joules: dict[tuple[str, str, Kind], float] = {}
    for series, (part, kind) in _JOULES.items():
        for sample in samples.get(series, ()):
            labels = sample.labels
            zone = part or labels.get("zone", "package")
            own: Kind = kind if part else "memory" if zone == "dram" else "node" if zone == "psys" else "cpu"
            index = labels.get("index") or labels.get("package") or labels.get("id") or ""
            of = labels.get("instance") or labels.get("node_name") or labels.get("exported_instance") or host
            key = (of, f"{zone} {index}".strip(), own)
            joules[key] = joules.get(key, 0.0) + sample.value
    names = {f"{of} {name}" for of, name, _ in joules}
    wholes = {of: f"{of} {name}" for of, name, kind in joules if kind == "node"}
    for (of, name, kind), value in joules.items():
        zone, _, index = name.partition(" ")
        package = f"{of} {_WITHIN.get(zone, '')} {index}".strip()
        within = package if package in names else "" if kind == "node" else wholes.get(of, whole)
        yield Reading(f"{of} {name}", kind, name, {"energy_j": value}, of, within)


def _node(
    samples: Mapping[str, Sequence[Sample]], host: str, idle: Idle | None, before: Idle | None
) -> Iterable[Reading]:
    values: dict[Quantity, float] = {}
    if idle is not None and before is not None and idle[2] > before[2]:
        values["utilisation"] = min(1.0, max(0.0, 1 - (idle[1] - before[1]) / (idle[2] - before[2])))
    total, available = (next((each.value for each in samples.get(name, ())), None) for name in _MEMORY)
    if total is not None and available is not None:
        values["memory_bytes"] = total - available
    watts = next((samples[name] for name in _WATTS if name in samples), None)
    if watts is not None and len(watts) == 1:  # of several sensors nobody knows which is within which
        values["power_w"] = watts[0].value
    if values:
        yield Reading(host, "node", "host", values, host)
