"""A load generator whose Observations carry what the machine told, sampled by a process of its own."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import IO, Any

import numpy as np

from pytest_llmbench.errors import StoreError
from pytest_llmbench.extras.telemetry.reading import SourceError
from pytest_llmbench.extras.telemetry.sampler import sources
from pytest_llmbench.harness.execution import Around, Stoppable
from pytest_llmbench.harness.sut.endpoint import SampledMachine
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.telemetry import DeviceSeries, Lost, Telemetry
from pytest_llmbench.own_folder import own_folder
from pytest_llmbench.store.records_file import not_on_disk

TELEMETRY_SCHEMA = "pytest-llmbench/telemetry/1.0"
_START_S = 10.0
"""Longest wait for the first reading of each source, in seconds."""
_ANSWER_S = 2.5
"""Longest wait for the last one, beside two intervals: a page may take as long to answer."""
_PAUSE_S = 0.02
_NUMBERS = count()
_OPTIONAL = ("nvml", "amdsmi", "rapl")
"""Sources of this host that few hosts have all of: that one is missing is told where no other gives power."""
Line = Mapping[str, Any]


class Sampler:
    """The sampling process, and the lines that it has written."""

    def __init__(self, wanted: SampledMachine) -> None:
        self._wanted = wanted
        self._child: subprocess.Popen[str] | None = None
        self._file: IO[str] | None = None
        self._rest = ""
        self._lines: list[Line] = []
        self._sources: tuple[str, ...] | None = None

    def ready(self) -> None:
        """Start the process, also where an earlier one has ended; return when each source has told
        something."""
        if self._child is not None and self._child.poll() is None:
            return
        self.close()
        path = own_folder() / f"telemetry-{next(_NUMBERS)}.jsonl"
        path.touch()
        self._file = path.open(encoding="utf-8")
        self._rest, self._lines, self._sources = "", [], None
        # Of its output nobody reads anything; a session of its own, so that Ctrl-C is for this process alone.
        self._child = subprocess.Popen(
            [sys.executable, "-m", "pytest_llmbench.extras.telemetry.sampler"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        wanted = {name: own for name, own in asdict(self._wanted).items() if name in _ASKED}
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(wanted | {"out": str(path)}) + "\n")
        self._child.stdin.flush()
        self._wait(0, _START_S)

    def during(self, from_ns: int, to_ns: int) -> Telemetry:
        """What was told from the last reading before an instant to the first one after another."""
        longest_s = 2 * self._wanted.interval_s + _ANSWER_S
        self._wait(to_ns, longest_s)
        lines, died = self._lines, self._died()
        kept_ns = to_ns - round(longest_s * 1e9)  # the next load needs the reading before it
        self._lines = [line for line in lines if line["at_ns"] > kept_ns or line.get("last")]
        inside = _around(lines, from_ns, to_ns)
        devices = tuple(_series(inside))
        return Telemetry(
            devices,
            self._wanted.interval_s,
            (*_lost(inside, devices, from_ns), *died),
            self._wanted.price_per_hour,
            self._wanted.currency,
        )

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            assert child.stdin is not None
            child.stdin.close()
            child.wait()
            with contextlib.suppress(ProcessLookupError):  # what a killed one leaves
                os.killpg(child.pid, signal.SIGTERM)
        if self._file is not None:
            Path(self._file.name).unlink(missing_ok=True)
            self._file.close()
            self._file = None

    def _wait(self, after_ns: int, most_s: float) -> None:
        """Read lines until each source has told something after an instant, or ``most_s`` have passed."""
        until = time.monotonic() + most_s
        assert self._file is not None
        while True:
            *whole, self._rest = (self._rest + self._file.read()).split("\n")
            for line in map(json.loads, whole):
                if "sources" in line:
                    self._sources = tuple(line["sources"])
                else:
                    self._lines.append(line)
            told = {line["source"] for line in self._lines if line["at_ns"] > after_ns}
            silent = {line["source"] for line in self._lines if line.get("last")}
            if self._sources is not None and set(self._sources) <= told | silent:
                return
            if self._died() or time.monotonic() > until:
                return
            time.sleep(_PAUSE_S)

    def _died(self) -> tuple[Lost, ...]:
        status = None if self._child is None else self._child.poll()
        if status is None:
            return ()
        last_ns = max((line["at_ns"] for line in self._lines), default=None)
        return (Lost("sampler", "sampler_died", f"its status is {status}", last_ns),)


_ASKED = ("urls", "command", "this_host", "pid", "interval_s")


def _around(lines: Iterable[Line], from_ns: int, to_ns: int) -> list[Line]:
    """The lines of each source inside, with the reading before them and that after."""
    found: list[Line] = []
    by_source: dict[str, list[Line]] = {}
    for line in lines:
        by_source.setdefault(line["source"], []).append(line)
    for own in by_source.values():
        own.sort(key=lambda line: line["at_ns"])
        before = [line for line in own if line["at_ns"] <= from_ns][-1:]
        after = [line for line in own if line["at_ns"] >= to_ns][:1]
        found += [*before, *(line for line in own if from_ns < line["at_ns"] < to_ns), *after]
    return found


def _series(lines: Sequence[Line]) -> Iterator[DeviceSeries]:
    """The series of each device; one that its source leaves out in the end has vanished."""
    told: dict[tuple[str, str], list[tuple[int, Mapping[str, Any]]]] = {}
    for line in lines:
        for device in line.get("devices", ()):
            told.setdefault((line["source"], device["id"]), []).append((line["at_ns"], device))
    for (source, identifier), own in told.items():
        missed = [line["at_ns"] for line in lines if line["source"] == source and line.get("whole")]
        missed = [at_ns for at_ns in missed if at_ns > own[-1][0]]
        first = own[-1][1]
        names = dict.fromkeys(name for _, device in own for name in device["values"])
        yield DeviceSeries(
            id=identifier,
            kind=first["kind"],
            name=first["name"],
            at_ns=np.array([at_ns for at_ns, _ in own], dtype=np.int64),
            values={
                name: np.array([device["values"].get(name, np.nan) for _, device in own], dtype=np.float64)
                for name in names
            },
            host=first["host"],
            source=source,
            within=first["within"],
            energy_wraps_at_j=first["wraps_at_j"],
            vanished_ns=missed[0] if missed else None,
        )


def _lost(lines: Sequence[Line], devices: Sequence[DeviceSeries], from_ns: int) -> Iterator[Lost]:
    """The first failure of each source."""
    powered = any({"power_w", "energy_j"} & each.values.keys() for each in devices)
    seen = set[str]()
    for line in lines:
        source = line["source"]
        if (
            "why" not in line
            or source in seen
            or (powered and source in _OPTIONAL and not _told(lines, source))
        ):
            continue
        seen.add(source)
        at_ns = line["at_ns"] if line["at_ns"] > from_ns and _told(lines, source) else None
        yield Lost(source, line["why"], line["detail"], at_ns)


def _told(lines: Sequence[Line], source: str) -> bool:
    return any("devices" in line and line["source"] == source for line in lines)


def accelerator(wanted: SampledMachine) -> str | None:
    """The model of the accelerators that the sources see now, in this process; None where they tell none, or
    several."""
    found = set[str]()
    for _, make in sources(asdict(wanted)):
        with contextlib.suppress(SourceError):
            found |= {each.name for each in make().read() if each.kind == "gpu"}
    return found.pop() if len(found) == 1 else None


def sampled(inner: Stoppable, wanted: SampledMachine) -> Around:
    """The executor; Observations of measured load carry the telemetry of the machine that is asked for."""
    sampler = Sampler(wanted)

    def around(plan: LoadPlan) -> Procedure[Observation]:
        if plan.phase is not Phase.MEASURE:
            return (yield plan)
        sampler.ready()
        seen = yield plan
        return replace(seen, telemetry=sampler.during(seen.started_ns, seen.ended_ns))

    return Around(inner, around, sampler.close)


@dataclass
class TelemetryFile:
    """``telemetry.jsonl``: a line for each reading of a device, in seconds from the start of its load."""

    path: Path
    findings: tuple[Finding, ...] = ()
    """The finding that it could not be written, if it could not."""

    def write(self, nodeid: str, plan: LoadPlan, seen: Observation) -> None:
        """Append the readings of a load."""
        head = [] if self.path.exists() else [{"schema": TELEMETRY_SCHEMA}]
        try:
            with self.path.open("a", encoding="utf-8") as out:
                for line in (*head, *_lines_of(nodeid, plan, seen)):
                    out.write(json.dumps(line, ensure_ascii=False) + "\n")
        except OSError as error:
            self.findings = (not_on_disk(StoreError(str(error), where=str(self.path))),)


def _lines_of(nodeid: str, plan: LoadPlan, seen: Observation) -> Iterator[dict[str, Any]]:
    assert seen.telemetry is not None
    load = {"nodeid": nodeid, "load": plan.title}
    for lost in seen.telemetry.lost:
        yield {**load, "source": lost.source, "lost": lost.why, "detail": lost.detail}
    for series in seen.telemetry.devices:
        for number, at_ns in enumerate(series.at_ns.tolist()):
            values = {str(name): float(own[number]) for name, own in series.values.items()}
            line: dict[str, Any] = {**load, "device": series.id, "s": (at_ns - seen.started_ns) / 1e9}
            line["at_ns"] = at_ns
            yield line | {name: value for name, value in values.items() if math.isfinite(value)}
