"""The state of this host's clock, as chrony or ntpd report it (METHODOLOGY §8, appendix B.3.1 of the
draft)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_llmbench.model.facts import Facts, Origin

CHRONY = ("chronyc", "-n", "-c", "tracking")
NTPD = ("ntpq", "-c", "rv 0 leap,offset,rootdelay,rootdisp,refid")

_CHRONY_LEAP = ("Normal", "Insert second", "Delete second")
"""Leap states of a synchronised clock; the remaining one is ``Not synchronised``."""

Run = Callable[[Sequence[str]], str | None]


@dataclass(frozen=True, slots=True)
class ClockSync:
    """State of the time synchronisation of this host."""

    method: str
    """``ntp`` or ``ptp``."""
    offset_ms: float
    """Estimated offset to the time server."""
    accuracy_ms: float
    """Bound of the clock error: offset, half the delay to the root of the hierarchy, and its dispersion."""
    server: str
    source: str

    def facts(self) -> Facts:
        values = {
            "clock.method": self.method,
            "clock.offset_ms": self.offset_ms,
            "clock.accuracy_ms": self.accuracy_ms,
            "clock.ntp_server": self.server,
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
    values = dict(re.findall(r"(\w+)=([^\s,]+)", answer))
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
