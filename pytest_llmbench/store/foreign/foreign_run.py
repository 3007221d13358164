"""What a result file of another load generator says, whichever it is: runs, their load, figures under our
names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_llmbench.model.plan import ClosedLoop, Load, OpenLoop

_RATE_TOLERANCE = 1e-6
"""Rates are written as decimal numbers: 0.1 + 0.2 is meant to be 0.3."""


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """The load of a run, as far as its file tells."""

    rate: float | None = None
    """Requests per second; infinite where all are sent at once."""
    arrival: str | None = None
    """``poisson``, ``uniform`` or ``gamma``; None where the file does not say."""
    burstiness: float | None = None
    """Shape of gamma arrivals."""
    concurrency: int | None = None
    """The most requests in flight; with a finite rate a cap on the open loop."""

    def is_like(self, load: Load) -> bool:
        """Whether it is the same load. One that the file leaves open in its arrivals is like any at its
        rate."""
        if isinstance(load, ClosedLoop):
            return self.rate in (None, math.inf) and self.concurrency == load.concurrency
        if not isinstance(load, OpenLoop):
            return False
        if self.rate is None or self.concurrency is not None or load.arrival == "trace":
            return False
        if not math.isclose(self.rate, load.rate, rel_tol=_RATE_TOLERANCE):
            return False
        if self.arrival is None:
            return True
        shape = load.arrival != "gamma" or self.burstiness == load.burstiness
        return self.arrival == load.arrival and shape

    def describe(self) -> str:
        """The load in words, those of our own loads where there is an equal."""
        if self.rate is None or math.isinf(self.rate):
            if self.concurrency is None:
                return "all requests at once"
            return ClosedLoop(self.concurrency).describe()
        if self.arrival is None:
            words = f"open loop, arrivals that the file does not name at {self.rate:g} req/s"
        else:
            shape = f", burstiness {self.burstiness:g}" if self.arrival == "gamma" else ""
            words = f"open loop, {self.arrival} arrivals at {self.rate:g} req/s{shape}"
        return words if self.concurrency is None else f"{words}, at most {self.concurrency} in flight"


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One run: the unit of comparison."""

    load: ForeignLoad
    values: Mapping[str, float]
    """Our full metric name to its value in our unit, ``ttft.p99`` in ms. What the file lacks is not in it."""
    model: str | None = None
    version: str | None = None
    """The version of the tool."""
    setup: Mapping[str, str] = field(default_factory=dict)
    """What else the file says of how it was made. Runs that differ in it are not runs of one thing."""
    mean_input_tokens: float | None = None
    mean_output_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class ForeignResults:
    """The content of a file, or of several put one after another."""

    tool: str
    """The tool's name as its users write it."""
    runs: tuple[ForeignRun, ...]
    differences: Mapping[str, str]
    """Metric family to how the tool defines it, where that is not our definition."""
    left_out: Mapping[str, str]
    """Their names of what has no equal here, with the reason."""

    @property
    def title(self) -> str:
        versions = dict.fromkeys(run.version for run in self.runs if run.version is not None)
        return " ".join([self.tool, ", ".join(versions)]).strip()

    def difference(self, metric: str) -> str | None:
        """How the tool defines the family of a full metric name otherwise; None where it is ours."""
        return self.differences.get(metric.partition(".")[0])


def open_loop_of(rate: float, burstiness: float | None, concurrency: int | None) -> ForeignLoad:
    """Arrivals as vLLM describes them: gamma of a shape, of which 1 is Poisson and infinity is even."""
    if math.isinf(rate):
        return ForeignLoad(rate, concurrency=concurrency)
    if burstiness is None or burstiness == 1.0:
        return ForeignLoad(rate, "poisson", None, concurrency)
    if math.isinf(burstiness):
        return ForeignLoad(rate, "uniform", None, concurrency)
    return ForeignLoad(rate, "gamma", burstiness, concurrency)
