"""Limits on metrics, written as Python comparisons that can be inspected.

    ttft.p99 <= 500 * ms          # an Objective, not a bool

An Objective has no truth value, so ``assert ttft.p99 <= 500 * ms`` is a TypeError and never a silent pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NoReturn

from pytest_llmbench.errors import LimitError, as_python
from pytest_llmbench.model.numbers import trimmed

_BARE = ("ratio", "count")
"""Units that need not be written."""

Op = Literal["<=", "<", ">=", ">"]


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit with its factor to the canonical unit of its dimension (ms for time, 1 for the rest)."""

    symbol: str
    dimension: str
    factor: float = 1.0

    def __rmul__(self, value: float) -> Quantity:
        return Quantity(float(value) * self.factor, self.dimension)

    __mul__ = __rmul__


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value in the canonical unit of its dimension."""

    value: float
    dimension: str


ms = Unit("ms", "ms")
s = Unit("s", "ms", 1000.0)
us = Unit("µs", "ms", 0.001)
percent = Unit("%", "ratio", 0.01)
tok_s = Unit("tok/s", "tok/s")
req_s = Unit("req/s", "req/s")
tokens = Unit("tokens", "tokens")
J = Unit("J", "J")
W = Unit("W", "W")
GiB = Unit("GiB", "GiB")


@dataclass(frozen=True, slots=True)
class Objective:
    """One limit on one metric. ``limit`` is in ``unit``, the metric's canonical unit."""

    metric: str
    op: Op
    limit: float
    unit: str

    def __bool__(self) -> NoReturn:
        raise LimitError(
            f"an objective ({self}) has no truth value: hand it to a marker as slo=[{self}], "
            "or compare llm_result's estimate (its .upper or .lower) in an assert"
        )

    def __str__(self) -> str:
        unit = "" if self.unit in _BARE else f" {self.unit}"
        return f"{self.metric} {self.op} {trimmed(self.limit)}{unit}"

    @property
    def is_ceiling(self) -> bool:
        return self.op in ("<=", "<")

    def holds(self, value: float) -> bool:
        """Whether ``value`` meets the limit."""
        limit = self.limit
        return {"<=": value <= limit, "<": value < limit, ">=": value >= limit, ">": value > limit}[self.op]

    def decided(self, lower: float | None, upper: float | None) -> bool | None:
        """Whether a whole interval keeps the limit (True) or breaks it (False); None: it straddles the limit,
        or is open towards it."""
        worst, best = (upper, lower) if self.is_ceiling else (lower, upper)
        if worst is not None and self.holds(worst):
            return True
        return False if best is not None and not self.holds(best) else None


@dataclass(frozen=True, slots=True, eq=False)
class MetricRef:
    """The name of a metric; comparing it with a quantity gives an Objective."""

    name: str
    unit: str

    def _objective(self, op: Op, limit: object) -> Objective:
        limit = as_python(limit)
        if isinstance(limit, Quantity):
            if self.unit == "s" and limit.dimension == "ms":  # times of whole jobs
                return Objective(self.name, op, limit.value / 1000.0, self.unit)
            if limit.dimension != self.unit:
                raise LimitError(f"{self.name} is measured in {self.unit}, the limit is in {limit.dimension}")
            return Objective(self.name, op, limit.value, self.unit)
        if self.unit in _BARE and isinstance(limit, int | float):
            return Objective(self.name, op, float(limit), self.unit)
        raise LimitError(f"{self.name} {op} {limit!r} lacks a unit: write {limit!r} * {self.unit}")

    def __le__(self, limit: object) -> Objective:
        return self._objective("<=", limit)

    def __lt__(self, limit: object) -> Objective:
        return self._objective("<", limit)

    def __ge__(self, limit: object) -> Objective:
        return self._objective(">=", limit)

    def __gt__(self, limit: object) -> Objective:
        return self._objective(">", limit)

    def __getitem__(self, qualifier: str) -> MetricRef:
        """The metric of one level, class or configuration: ``starvation_rate["short"]``."""
        return MetricRef(f"{self.name}[{qualifier}]", self.unit)

    def __bool__(self) -> NoReturn:
        raise LimitError(f"{self.name} is the name of a metric and has no truth value")


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """A distribution: ``ttft.p99``, ``ttft.mean``. The metric catalogue says which statistics exist."""

    name: str
    unit: str

    def __getattr__(self, statistic: str) -> MetricRef:
        if statistic.startswith("_"):
            raise AttributeError(statistic)
        return MetricRef(f"{self.name}.{statistic}", self.unit)

    def __getitem__(self, qualifier: str) -> MetricFamily:
        """The distribution of one bucket, level, class or configuration: ``itl["90%"].p99``."""
        return MetricFamily(f"{self.name}[{qualifier}]", self.unit)

    def _no_figure(self, limit: object) -> NoReturn:  # noqa: ARG002 - Python gives both sides
        raise LimitError(
            f"{self.name} is a distribution, and no limit holds for one; "
            f"compare one of its statistics, such as {self.name}.p99 or {self.name}.mean"
        )

    __le__ = __lt__ = __ge__ = __gt__ = _no_figure


def metric(name: str, unit: str) -> MetricRef:
    """Any metric by its full name, for metrics that this package exports no name for."""
    return MetricRef(name, unit)


ttft = MetricFamily("ttft", "ms")
ttft_scheduled = MetricFamily("ttft_scheduled", "ms")
tpot = MetricFamily("tpot", "ms")
e2e = MetricFamily("e2e", "ms")
itl = MetricFamily("itl", "ms")
output_token_throughput = MetricRef("output_token_throughput", "tok/s")
request_throughput = MetricRef("request_throughput", "req/s")
completion_rate = MetricRef("completion_rate", "ratio")
# What a good request is, the limits of ``@llmbench.goodput`` say: no other test yields these.
goodput = MetricRef("goodput", "req/s")
goodput_share = MetricRef("goodput_share", "ratio")
output_token_goodput = MetricRef("output_token_goodput", "tok/s")
# Of a machine that is sampled: [telemetry] in the SUT file.
energy_per_output_token = MetricRef("energy_per_output_token", "J")
energy_per_request = MetricRef("energy_per_request", "J")
mean_power = MetricRef("mean_power", "W")
tokens_per_joule = MetricRef("tokens_per_joule", "tokens")
tokens_per_dollar = MetricRef("tokens_per_dollar", "tokens")
gpu_utilisation = MetricRef("gpu_utilisation", "ratio")
peak_memory = MetricRef("peak_memory", "GiB")
