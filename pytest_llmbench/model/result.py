"""The result of one test: metrics, levels, tables, plots, and the judgements on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from pytest_llmbench.model.estimate import Estimate, ReadEstimate
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.judgement import Comparison, Compliance, Finding, Gate, Overload, Validity
from pytest_llmbench.model.named_metrics import NamedMetrics
from pytest_llmbench.model.numbers import Cell, Figure, text_of, with_intervals
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.sentences import Note

BURST, PROBE = "burst", "probe"
"""Roles of the levels of a search. A burst is a rough estimate before it: it is no level of the test, and no
rule for levels applies to it."""
CHARACTERISATION = "characterisation"
"""Role of a short run that only shows how streams are cut into chunks."""
NOT_OFFERED = " (not offered)"
"""End of the role of a level that this machine spoiled: it says nothing about the SUT."""
GIVEN_UP = " (given up)"
"""End of the role of a level that was to be reported and did not hold."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of a sweep or a search, in the words of the evidence vocabulary (requirements.yaml).

    ``metrics`` holds the level's own estimates under plain names (``ttft.p99``, ``output_token_throughput``).
    The window is the part of the duration that counts: the first tenth is ramp-up (AMB-16), but for the
    states of a prefix cache, of which all requests count.
    """

    label: str
    """Names the level within its test: ``80%``, ``20 req/s``, ``64 in flight``, ``cache cold``."""
    load_model: str
    """``open`` or ``closed``."""
    duration_s: float
    """Duration of the offered load, ramp-up included, drain not included."""
    window_s: float
    n_submitted: int
    """Number of requests submitted over the whole level; the next two are over the whole level, too."""
    n_ok: int
    n_failed: int
    completion_ratio: float | None
    """ok / submitted, over the whole level."""
    metrics: Mapping[str, Estimate] = field(default_factory=dict)
    offered_rps: float | None = None
    concurrency: int | None = None
    percent_of_capacity: float | None = None
    variant: str = ""
    """SUT variant on which the level ran; empty for the SUT itself."""
    class_label: str = ""
    """The request class that ran alone; empty for all classes."""
    in_flight_means: tuple[float, ...] = ()
    """Mean requests in flight (or the server's waiting gauge) in each of five equal segments of the
    window."""
    queue_source: str = ""
    """What the means are of: ``requests in flight`` or ``server waiting gauge``."""
    queue_growing: bool | None = None
    throughput_slices: tuple[float, ...] = ()
    """Output tokens per second in each of ten equal slices of the window."""
    steady: bool | None = None
    """Whether the queue does not grow and the throughput is level; None where that cannot be said."""
    saturated: bool | None = None
    """Whether the level is saturated by any rule of section 5.2.3.1."""
    overloaded: bool | None = None
    """Whether the level is overloaded by the rules about work alone: the queue grows, or completions fall
    short of the arrivals. The ten-fold rule, which is about latency, is not one of them."""
    saturation_reasons: tuple[str, ...] = ()
    passed: bool | None = None
    """Whether the level met the criteria of the test (service-level objectives, completion …); None where
    there are none."""
    fail_reasons: tuple[str, ...] = ()
    errors: Mapping[str, int] = field(default_factory=dict)
    """Outcome → count, for outcomes other than ok."""
    role: str = ""
    """The role of the level in its test: ``probe``, ``reported``, ``baseline``, ``mix``, ``cold``,
    ``warm`` …"""
    observation: int | None = None
    """Index into the result's observations; None when the observation is not kept."""
    shared_from: str | None = None
    """Node id of the test that ran the level, if this test only used it."""

    @property
    def is_burst(self) -> bool:
        return self.role.removesuffix(NOT_OFFERED) == BURST


CONFIGURATION_ITEMS = (
    "SUT configuration and boundary",
    "Model and hardware",
    "Workload",
    "Load model",
    "Request count and test duration",
    "Warm-up",
    "Prefix caching",
    "Guardrails",
)
"""The eight items of the configuration summary, in the draft's order (section 5.1.5.1)."""


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the draft. ``id`` is its stable renderer id (appendix C)."""

    id: str
    title: str
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]

    @property
    def rows(self) -> tuple[tuple[str, ...], ...]:
        """The cells as text."""
        return tuple(tuple(map(text_of, row)) for row in self.cells)


def metric_table(table_id: str, title: str, rows: Iterable[tuple[str, Cell]]) -> Table:
    """A table of metrics with their intervals, a row each of a title and a value."""
    return Table(table_id, title, ("Metric", "Value", "95 % interval"), with_intervals(rows))


TTFT_OVER_TIME, REQUESTS_OVER_TIME, SLOWEST_REQUESTS = OVER_TIME = (
    "ttft_over_time",
    "requests_over_time",
    "slowest_requests",
)
"""The plots of one load over its time, which every test has in addition to its own."""


Line = tuple[tuple[float, ...], tuple[float, ...]]
"""A series of a plot: x, y."""
Band = tuple[tuple[float, ...], tuple[float, ...], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Plot:
    """The data of a plot, not its drawing. ``x`` and ``y`` of each series have equal lengths."""

    id: str
    """Stable name of the plot: ``ttft_cdf``, ``throughput_latency``, …"""
    title: str
    x_label: str
    y_label: str
    series: Mapping[str, Line]
    bands: Mapping[str, Band] = field(default_factory=dict)
    """Confidence bands of series with the same name: x, lower, upper."""
    marks: Mapping[str, float] = field(default_factory=dict)
    """Named positions on the x axis, for example limits."""
    step: bool = False
    x_log: bool = False
    y_log: bool = False
    rows: tuple[str, ...] = ()
    """Names of horizontal rows, the first on top. In a plot with rows every two points of a series are the
    ends of a bar, and y is the number of its row, from 0."""


@dataclass(frozen=True, slots=True)
class WarmupReport:
    """The warm-up that was done (section 4.5). ``None`` stands for a probe that did not succeed."""

    performed: bool = False
    requests_ok: int = 0
    output_tokens: int = 0
    drained: bool = False
    probe_before_ms: float | None = None
    probes_after_ms: tuple[float | None, ...] = ()
    stabilised: bool = False
    duration_s: float = 0.0
    description: str = "no warm-up"
    last_finished_ns: int | None = None
    """End of the last warm-up response, which has to lie before the first measured submission."""


@dataclass(frozen=True, slots=True)
class VoidLoad:
    """A load that was void for a cause on the load generator's own host, and was measured again."""

    label: str
    attempt: int
    """Number of the attempt, from 1."""
    requests: int
    """Number of requests that were sent in it; they are in the records."""
    causes: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class TestResult(NamedMetrics):
    """The result of a test and, after judging, its three judgements.

    Metrics are reached by their full name, ``result.metrics["ttft.p99"]``, or by attribute:
    ``result.ttft.p99``, ``result.output_token_throughput``.
    """

    __test__ = False  # pytest must not take it for a test class

    test: str
    section: str
    title: str
    metrics: Mapping[str, Estimate]
    tables: tuple[Table, ...]
    plots: tuple[Plot, ...]
    configuration: tuple[tuple[str, str], ...]
    """The configuration summary: (item, text) for each of ``CONFIGURATION_ITEMS``."""
    observations: tuple[Observation, ...]
    warmup: WarmupReport
    facts: Facts
    objectives: tuple[Objective, ...] = ()
    notes: tuple[Note, ...] = ()
    levels: tuple[Level, ...] = ()
    """Every load level or configuration of the test, in the order in which they ran."""
    findings: tuple[Finding, ...] = ()
    """Validity findings of the test itself, in addition to those that every run gets."""
    budgeted: tuple[int, ...] | None = None
    """Indices of the observations to which the error budget applies; None for all. A level beyond capacity is
    meant to fail requests: that is its result."""
    by_run: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    """Metric → its value in each independent run, in their order; None where a run has none. Empty for a
    single run."""
    comparisons: tuple[Comparison, ...] = ()
    """The comparisons with a baseline, or with other systems."""
    void_loads: tuple[VoidLoad, ...] = ()
    """The loads that do not count and are in the records; every other figure of the result is without
    them."""
    overload: Overload | None = None
    """How much more was offered than served; None where that is not known of the load, and for tests of
    several loads, whose levels tell it."""
    validity: Validity = field(default_factory=Validity)
    compliance: Compliance | None = None
    gate: Gate = field(default_factory=Gate)

    @cached_property
    def disclosure(self) -> Mapping[str, object]:
        """The facts about the SUT by their keys: results with equal facts are of the same system."""
        return {key: fact.value for key, fact in self.facts.under("sut").items()}

    def __repr__(self) -> str:
        return f"<result of {self.test}>"

    def judged(self, validity: Validity, compliance: Compliance | None, gate: Gate) -> TestResult:
        return replace(self, validity=validity, compliance=compliance, gate=gate)

    def with_metrics(self, metrics: Mapping[str, Estimate]) -> TestResult:
        """The result with these metrics, and with them in the cells of tables that show one of its own."""

        def renewed(cell: Cell) -> Cell:
            if not isinstance(cell, Figure) or cell.estimate is None:
                return cell
            own = self.metrics.get(cell.name) == cell.estimate
            return replace(cell, estimate=metrics.get(cell.name, cell.estimate)) if own else cell

        tables = (
            replace(table, cells=tuple(tuple(map(renewed, row)) for row in table.cells))
            for table in self.tables
        )
        return replace(self, metrics=metrics, tables=tuple(tables))

    def read_by(self, told: Callable[[str], None]) -> TestResult:
        """The result for a test to read. ``told`` is called with the reason whenever a missing number is
        read, such as an open end."""
        metrics = {name: ReadEstimate.of(each, name, told) for name, each in self.metrics.items()}
        return replace(self, metrics=metrics)
