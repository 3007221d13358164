"""This host: its processors and memory, the processes of a launched system, and RAPL's energy counters."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from pytest_llmbench.extras.telemetry.reading import Reading, SourceError, told
from pytest_llmbench.model.telemetry import Kind

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
        self._zones = [(path, *_kind_of(path)) for path in sorted(folder.glob("intel-rapl:*"))]
        if not self._zones:
            raise SourceError("no_figure", f"there are no counters in {folder}")

    def read(self) -> Sequence[Reading]:
        found, why = [], ""
        whole = next((_id(path) for path, name, _ in self._zones if name.startswith("psys")), "")
        for path, name, kind in self._zones:
            try:
                joules = int((path / "energy_uj").read_text()) / 1e6
                wraps_j = int((path / "max_energy_range_uj").read_text()) / 1e6
            except (OSError, ValueError) as error:
                why = str(error)
                continue
            parent = path.name.rpartition(":")[0]
            part = kind == "cpu" and parent != "intel-rapl"
            within = parent if part else whole if _id(path) != whole else ""
            values = told(energy_j=joules)
            found.append(Reading(_id(path), kind, name, values, self._host, within, wraps_j))
        if not found:
            raise SourceError("not_readable", why)
        return found


def _id(path: Path) -> str:
    return path.name


def _kind_of(path: Path) -> tuple[str, Kind]:
    try:
        name = (path / "name").read_text().strip()
    except OSError:
        name = path.name
    kind: Kind = "memory" if name == "dram" else "node" if name.startswith("psys") else "cpu"
    return name, kind
