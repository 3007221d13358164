"""What a procedure wants done: a load, a workload and how many requests. A pure, hashable value."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.request import Workload

Arrival = Literal["poisson", "uniform", "gamma"]
ARRIVALS: tuple[Arrival, ...] = ("poisson", "uniform", "gamma")


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Arrivals that do not depend on responses (METHODOLOGY §3).

    ``burstiness`` is the shape k of gamma inter-arrival times (as in vLLM's bench): coefficient of
    variation 1/√k, so 1 is Poisson and smaller is burstier. Only read when ``arrival`` is ``gamma``.
    """

    rate: float
    """Requests per second."""
    arrival: Arrival = "poisson"
    burstiness: float = 1.0

    @property
    def model(self) -> str:
        return "open"

    def describe(self) -> str:
        shape = f", burstiness {self.burstiness:g}" if self.arrival == "gamma" else ""
        return f"open loop, {self.arrival} arrivals at {self.rate:g} req/s{shape}"


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """A fixed number of requests in flight; each end, success or not, triggers the next at once."""

    concurrency: int

    @property
    def model(self) -> str:
        return "closed"

    def describe(self) -> str:
        return f"closed loop, {self.concurrency} in flight"


Load = OpenLoop | ClosedLoop


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Every wait is bounded. Seconds. A request that runs into one ends as ``timeout``."""

    connect_s: float = 10.0
    first_byte_s: float = 120.0
    """From submission to the first byte of the response."""
    between_chunks_s: float = 60.0
    """Between two reads of one response: tells a hung server from a slow answer."""
    total_s: float = 600.0
    """From submission to the end of the response."""
    drain_s: float = 120.0
    """From the last submission of a plan to the end of all responses; what is left is cancelled."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One stretch of load on the SUT, yielded by a procedure and answered by an Observation."""

    label: str
    """For people: progress line, report (``measure``, ``warm-up``, ``probe 2``)."""
    workload: Workload
    load: Load
    requests: int
    seed: int
    """Seed of the workload; the arrival schedule draws from its own seed derived from it."""
    phase: Phase = Phase.MEASURE
    first: int = 0
    """Index of the first request within the workload's sequence, and within the arrival schedule."""
    deadlines: Deadlines = field(default_factory=Deadlines)
    ignore_eos: bool = False

    @property
    def key(self) -> str:
        """SHA-256 of everything that decides what is sent and when; equal keys mean the same load."""
        content = {
            "workload": {"name": self.workload.name, **self.workload.specification()},
            "load": {"model": self.load.model, **asdict(self.load)},
            "requests": self.requests,
            "seed": self.seed,
            "phase": self.phase,
            "first": self.first,
            "deadlines": asdict(self.deadlines),
            "ignore_eos": self.ignore_eos,
        }
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def with_(self, **changes: Any) -> LoadPlan:
        """A copy with some fields changed."""
        return replace(self, **changes)


__all__ = ["ARRIVALS", "Arrival", "ClosedLoop", "Deadlines", "Load", "LoadPlan", "OpenLoop"]
