"""The content of a result file of any other load generator: runs, their load, figures under our names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.plan import ClosedLoop, Load

_RATE_TOLERANCE = 1e-6
"""Relative difference up to which rates are equal: they are decimal numbers, and 0.1 + 0.2 is meant to be
0.3."""


@dataclass(frozen=True, slots=True)
class ForeignLoad:
    """The load of a run, as far as its file states it."""

    rate: float | None = None
    """Requests per second, infinite if all are sent at once; None if the file does not say."""
    arrival: str | None = None
    """The arrival process, ``poisson``, ``uniform`` or ``gamma``; None if the file does not say."""
    burstiness: float | None = None
    """Shape of gamma arrivals; None for other arrivals."""
    concurrency: int | None = None
    """Most requests in flight, with a finite rate a cap on the open loop; None: no cap."""

    def is_like(self, load: Load) -> bool:
        """Whether it is the same load. If the file does not state the arrivals, any with its rate are the
        same."""
        if load.of_sessions:
            return False
        if isinstance(load, ClosedLoop):
            return self.rate in (None, math.inf) and self.concurrency == load.concurrency
        if self.rate is None or self.concurrency != load.most_in_flight or load.is_trace or load.stages:
            return False
        if not math.isclose(self.rate, load.rate, rel_tol=_RATE_TOLERANCE):
            return False
        if self.arrival is None:
            return True
        shape = load.arrival != "gamma" or self.burstiness == load.burstiness
        return self.arrival == load.arrival and shape

    def describe(self) -> str:
        """The load in words, those for our own loads if there is an equivalent."""
        if self.rate is None or math.isinf(self.rate):
            if self.concurrency is None:
                return "all requests at once"
            return ClosedLoop(self.concurrency).describe()
        if self.arrival is None:
            words = f"open loop, arrivals that the file does not name at {trimmed(self.rate)} req/s"
        else:
            words = f"open loop, {self.arrival} arrivals at {trimmed(self.rate)} req/s"
            if self.arrival == "gamma" and self.burstiness is not None:
                words += f", burstiness {trimmed(self.burstiness)}"
        return words if self.concurrency is None else f"{words}, at most {self.concurrency} in flight"


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """One run: the unit of comparison."""

    load: ForeignLoad
    values: Mapping[str, float]
    """Our full metric name → its value in our unit, ``ttft.p99`` in ms, for the metrics that the file has."""
    model: str | None = None
    version: str | None = None
    """The version of the tool; None if the file does not say."""
    setup: Mapping[str, str] = field(default_factory=dict)
    """Further statements of the file on how the run was made. Runs with different ones are not runs of one
    thing."""
    mean_input_tokens: float | None = None
    mean_output_tokens: float | None = None


class ResultFormat(NamedTuple):
    """How the result files of another load generator are read; an extra may name one of its own."""

    tool: str
    """Its name as its users write it."""
    recognised: Callable[[Mapping[str, Any]], bool]
    """Whether a JSON object is a result of it."""
    runs: Callable[[Mapping[str, Any]], list[ForeignRun]]
    """The runs in such an object. WrongShapeError, which names the field, where it is not as the tool writes
    it."""
    differences: Mapping[str, str]
    """Metric family → how the tool defines it, if its definition is not ours."""
    left_out: Mapping[str, str]
    """The tool's name for a figure without an equivalent here → the reason."""

    def difference(self, metric: str) -> str | None:
        """How the tool defines the family of a metric otherwise; None if its definition is ours."""
        return self.differences.get(metric.partition(".")[0])


def open_loop_of(rate: float, burstiness: float | None, concurrency: int | None) -> ForeignLoad:
    """An open loop as vLLM describes it: gamma arrivals with a shape, where 1 is Poisson and infinity is
    uniform."""
    if math.isinf(rate):
        return ForeignLoad(rate, concurrency=concurrency)
    if burstiness is None or burstiness == 1.0:
        return ForeignLoad(rate, "poisson", None, concurrency)
    if math.isinf(burstiness):
        return ForeignLoad(rate, "uniform", None, concurrency)
    return ForeignLoad(rate, "gamma", burstiness, concurrency)
