"""The descriptors and local ports that a plan needs of this machine, and whether there are enough of them.

A closed loop needs as many connections as it has slots. How many an open loop needs is the server's doing;
here a reply is taken to last 0.5 s and 10 ms for each output token asked for (never longer than its deadline
allows), and arrivals to bunch up by four standard deviations of a Poisson count:

    needed = λ + 4 √λ,  λ = rate x assumed duration,  at most the number of requests
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.stats.failing import PATIENT_NS

KEPT = 64
"""Descriptors that are not for connections: modules, files, the event loop."""
_BASE_S = 0.5
_PER_TOKEN_S = 0.01
_SPREAD = 4.0
_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_ASK_DESCRIPTORS = "raise the limit of open files before pytest starts (ulimit -n 65536)"
_ASK_PORTS = 'give out more local ports (sudo sysctl -w net.ipv4.ip_local_port_range="1024 65535")'
_ASK_LESS = "lower rate or concurrency"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of this process and host. None means not known, or without limit."""

    descriptors: int | None = None
    ports: int | None = None


@dataclass(frozen=True, slots=True)
class LoadLimits:
    """What a load generator tolerates before it refuses a load, ends it, or ends one of its requests."""

    host: Limits | None = None
    """The limits of this process and host; None: those found when a load begins."""
    most_behind_ns: int = 5_000_000_000
    """How far sending may fall behind the schedule, in nanoseconds. What was missed is sent without pause, so
    there must be an end to that."""
    patient_ns: int = PATIENT_NS
    """The time without an answer that ends a load (:class:`~pytest_llmbench.stats.failing.FailureWatch`)."""
    most_reply_bytes: int = 64 * 1024 * 1024
    """The most bytes of one reply, plus what comes in until the next look. A reply is kept until it has
    ended, so one without an end would take all memory. 100,000 tokens in events of 300 bytes are half of
    it."""


def peak_connections(plan: LoadPlan, mean_tokens: float = 0.0) -> int:
    """The most connections that the plan is expected to have open at once. ``mean_tokens``: output tokens of
    a reply."""
    load = plan.load
    if isinstance(load, ClosedLoop):
        return min(load.concurrency, plan.most_requests)
    lasts_s = min(_BASE_S + _PER_TOKEN_S * mean_tokens, plan.deadlines.total_s)
    mean = load.peak_rate * lasts_s
    return min(
        plan.requests, load.most_in_flight or plan.requests, math.ceil(mean + _SPREAD * math.sqrt(mean))
    )


def mean_tokens(planned: Collection[PlannedRequest]) -> float:
    """The mean of the output tokens that the requests ask for."""
    return sum(request.max_tokens for request in planned) / len(planned) if planned else 0.0


def refuse_too_much(connections: int, limits: Limits, where: str) -> None:
    """Raise SuiteError, before anything is sent, if a load needs more than this machine can have open at
    once."""
    found = []
    if limits.descriptors is not None and connections + KEPT > limits.descriptors:
        found.append(
            f"{connections} connections need {connections + KEPT} open files, the limit is "
            f"{limits.descriptors}: {_ASK_DESCRIPTORS}"
        )
    if limits.ports is not None and connections > limits.ports:
        found.append(
            f"{connections} connections to one server need as many local ports, there are "
            f"{limits.ports}: {_ASK_PORTS}"
        )
    if found:
        raise SuiteError.from_mistakes(found, where=where, remedy=f"or {_ASK_LESS}")


def own_limits() -> Limits:
    """The limits of this process and host as they are now."""
    descriptors = ports = None
    with suppress(ImportError):  # not a Unix
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        descriptors = None if soft == resource.RLIM_INFINITY else soft
    with suppress(OSError, ValueError):
        low, high = map(int, _PORTS.read_text("ascii").split())
        ports = max(0, high - low + 1)
    return Limits(descriptors, ports)


def raise_descriptors() -> None:
    """Raise the descriptor limit of this whole process to the hard limit.

    Only for a process that is ours.
    """
    with suppress(ImportError, OSError, ValueError):
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def exhaustion_remedy(error: str) -> str:
    """What to do about the system's refusal of another connection, by its own words."""
    ask = _ASK_PORTS if os.strerror(errno.EADDRNOTAVAIL) in error else _ASK_DESCRIPTORS
    return f"{ask}, or {_ASK_LESS}"


def give_back_unused_memory() -> None:
    """Give the system the pages that glibc holds and nobody uses (``malloc_trim``); elsewhere do nothing.

    A load of many short requests leaves tens of MiB of them: prompts where they were drawn, records where
    they were made. It takes some milliseconds, so it has no place where something is being sent.
    """
    with suppress(OSError, AttributeError):  # musl, macOS, Windows: no such function, or library
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
