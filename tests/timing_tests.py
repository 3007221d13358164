"""Tests whose subject is timing: run again where the machine was taken away from one that failed.

Such a test says nothing then, as a load says nothing that was sent late: what it is about was not measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from pytest_llmbench.generator.host_watch import HostCpu

ATTEMPTS = 4
PAUSE_S = 15.0
STOLEN_SHARE = 0.02
"""Of the time of all cores, what the hypervisor took."""
WAITING_SHARE = 0.5
"""Of the time, that in which some program was ready to run and had no core."""
RUN_AGAIN = "run again"
PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True)
class Disturbance:
    """What others did to this machine between two instants, as shares of the time."""

    stolen: float
    waiting: float

    @classmethod
    def since(cls, before: Instant, now: Instant | None = None) -> Disturbance:
        now = now or Instant.now()
        waiting = (now.waiting_s - before.waiting_s) / max(now.at_s - before.at_s, 1e-3)
        return cls(now.host.stolen_share(before.host) or 0.0, waiting)

    @property
    def excuses(self) -> bool:
        return self.stolen > STOLEN_SHARE or self.waiting > WAITING_SHARE

    def __str__(self) -> str:
        return f"{self.stolen:.0%} of the CPU stolen, {self.waiting:.0%} of the time a program without a core"


@dataclass(frozen=True)
class Instant:
    """Counters of the kernel."""

    at_s: float
    waiting_s: float
    host: HostCpu

    @classmethod
    def now(cls, pressure: Path = PRESSURE) -> Instant:
        waiting = 0.0
        with suppress(OSError):  # a kernel that does not count it
            waiting = int(pressure.read_text("ascii").split("total=")[1].split()[0]) / 1e6
        return cls(time.monotonic(), waiting, HostCpu.now())


class TimingTests:
    """The plugin; ``since``: what was done to this machine since an instant."""

    def __init__(
        self, pause_s: float = PAUSE_S, since: Callable[[Instant], Disturbance] = Disturbance.since
    ) -> None:
        self._pause_s, self._since = pause_s, since

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item.get_closest_marker("timing") is None:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._attempts(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name what was run again, and why; under pytest-xdist the reports carry it."""
        kinds = (terminalreporter.getreports(kind) for kind in ("passed", "failed", "error"))
        told = {
            f"{name}, for {value}: {report.nodeid}"
            for reports in kinds
            for report in reports
            for name, value in getattr(report, "user_properties", ())  # a collection's has none
            if name == RUN_AGAIN
        }
        for line in sorted(told):
            terminalreporter.write_line(line)

    def _attempts(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """The reports of the last attempt."""
        for attempt in range(1, ATTEMPTS + 1):
            before = Instant.now()
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            if attempt == ATTEMPTS or not any(report.failed for report in reports):
                break
            found = self._since(before)
            if not found.excuses:
                break
            # Forgets what fixtures of wider scopes made, or how they failed.
            item.session._setupstate.teardown_exact(None)
            item.user_properties.append((RUN_AGAIN, str(found)))
            time.sleep(self._pause_s)
        return reports
