"""The definitions of all metrics that a result may hold and a limit may name: one row each, with title, unit,
formula and place in the draft.

A **family** is a distribution and is named with a statistic, ``ttft.p99``. A **scalar** stands alone,
``output_token_throughput``. Both take a qualifier in brackets that says which part of a test they belong to:
an input length bucket (``ttft[0-256].p99``), a load level (``itl[90%].p99``), a class of requests
(``starvation_rate[short]``), a configuration (``e2e[full@50%].p99``), the number of a turn in its session
(``turn_ttft[2+].p95``).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.input_lengths import LABELS
from pytest_llmbench.metrics.summary import STATISTICS
from pytest_llmbench.model.records import Records
from pytest_llmbench.registry import every, named, names

Unit = Literal["ms", "ratio", "tok/s", "req/s", "count", "tokens", "s", "us/token", "J", "W", "GiB"]
Direction = Literal["lower", "higher"]
SLOWDOWNS = ("job_slowdown", "job_llm_slowdown")
"""How many times as long a job takes under load as alone."""


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    name: str
    title: str
    unit: Unit
    better: Direction
    formula: str
    section: str
    """The section of the draft, or the decision that defines the metric."""
    statistics: tuple[str, ...] = ()
    """The statistics of a family; empty for a scalar."""
    by_input_length: bool = False
    """Whether the metric is also given for the buckets of AMB-04; their labels are known beforehand."""
    by_turn: bool = False
    """Whether the metric is given by the number of the turn in its session: ``turn_ttft[1]``,
    ``turn_ttft[2+]``."""
    values: Callable[[Records], npt.NDArray[np.float64]] | None = None
    """A metric of an extra that every test of one load gives: the value of each request that has one, in the
    unit, in order of submission. A family is their distribution, a scalar their mean."""
    of_machine: bool = False
    """Whether it is about the machine during the load, and every test with a load gives it."""

    @property
    def is_family(self) -> bool:
        return bool(self.statistics)

    def full_names(self) -> tuple[str, ...]:
        """All full metric names that this row defines."""
        labels = LABELS if self.by_input_length else ("1", "2+") if self.by_turn else ()
        stems = (*(() if self.by_turn else (self.name,)), *(f"{self.name}[{label}]" for label in labels))
        if not self.is_family:
            return stems
        return tuple(f"{stem}.{statistic}" for stem in stems for statistic in self.statistics)


SPREAD = (*STATISTICS[: STATISTICS.index("mean") + 1], "std")
_TAILS = ("p50", "p95", "p99")
_Row = MetricDefinition
_ROWS = (  # name, title, unit, better, formula, section, statistics of a family
    # Latencies
    _Row("ttft", "Time to first token", "ms", "lower",
         "T_first - T_submit, T_first the first non-whitespace content",
         "5.1.3", STATISTICS, by_input_length=True),
    _Row("ttft_scheduled", "Time to first token from the schedule", "ms", "lower",
         "T_first - T_scheduled", "5.1.3", STATISTICS),
    _Row("ttft_adjusted", "Time to first token without network time", "ms", "lower",
         "TTFT - network time, as declared in [network.ttft_adjustment] or as measured around the "
         "load",
         "4.7.3", STATISTICS, by_input_length=True),
    _Row("ttft_any", "Time to first output of any kind", "ms", "lower",
         "first output, whitespace and reasoning included, - T_submit", "5.1.3.1", STATISTICS),
    _Row("ttft_first_event", "Time to first event", "ms", "lower",
         "first event of any kind - T_submit", "5.1.3.1", STATISTICS),
    _Row("ttft_queue_wait", "Queue wait", "ms", "lower",
         "server: accepted until first scheduled", "5.1.4.2", STATISTICS),
    _Row("ttft_prefill", "Prefill latency", "ms", "lower",
         "server: first scheduled until first token", "5.1.4.2", STATISTICS),
    _Row("ttft_outside", "Time to the first output outside the engine", "ms", "lower",
         "first output of any kind - T_submit - what the server reports of it", "5.1.4.2", STATISTICS),
    _Row("tpot", "Time per output token", "ms", "lower",
         "(T_last - T_first) / (N_out - 1), N_out >= 2", "AMB-44", STATISTICS),
    _Row("e2e", "End-to-end latency", "ms", "lower", "T_last - T_submit", "AMB-45", STATISTICS),
    _Row("e2e_scheduled", "End-to-end latency from the schedule", "ms", "lower",
         "T_last - T_scheduled", "AMB-45", STATISTICS),
    _Row("jitter", "Jitter", "ms", "lower",
         "per request: standard deviation of its ITL", "5.4.3", STATISTICS),
    _Row("longest_pause", "Longest pause", "ms", "lower",
         "per request: its largest ITL", "5.4.3", STATISTICS),
    _Row("itl", "Inter-token latency", "ms", "lower", "T(token_i) - T(token_i-1), i from 2", "5.4.3", SPREAD),
    # Rates and shares
    _Row("output_token_throughput", "Output token throughput", "tok/s", "higher",
         "output tokens arrived in the window / duration", "5.2.4.1"),
    _Row("input_token_throughput", "Input token throughput", "tok/s", "higher",
         "input tokens (cached ones included) of requests with first content (without output: that "
         "ended) in the window / duration; of those alone that ended ok, so of none that users were "
         "to cut",
         "5.2.4.1"),
    _Row("request_throughput", "Request throughput", "req/s", "higher",
         "requests completed in the window / duration", "5.2.4.1"),
    _Row("total_token_throughput", "Total token throughput", "tok/s", "higher",
         "input and output tokens of the job / makespan", "job"),
    _Row("startup_time", "Startup", "s", "lower", "a launched server is healthy - its start", "startup"),
    _Row("makespan", "Makespan", "s", "lower", "end of the last reply - start of the job", "job"),
    _Row("completion_rate", "Completion rate", "ratio", "higher",
         "ok / submitted, without those that users were to cut", "AMB-46"),
    _Row("schema_violation_rate", "Schema violation rate", "ratio", "lower",
         "replies that break their schema / ok replies that were asked to keep to one", "structured output"),
    _Row("accuracy", "Accuracy", "ratio", "higher",
         "questions answered rightly / questions asked", "accuracy"),
    _Row("accuracy_of_set", "Accuracy of the set", "ratio", "higher",
         "the same of just the questions that were asked, which has no interval", "accuracy"),
    _Row("cut_share", "Cut by users", "ratio", "lower", "requests to be cut / requests", "cut requests"),
    _Row("cut_begun_share", "Begun before the cut", "ratio", "higher",
         "requests to be cut with content before that / requests to be cut", "cut requests"),
    # Goodput
    _Row("goodput_share", "SLO attainment rate", "ratio", "higher",
         "requests that meet every limit / all requests", "goodput"),
    _Row("goodput", "Goodput", "req/s", "higher", "requests that meet every limit / duration", "goodput"),
    _Row("output_token_goodput", "Output token goodput", "tok/s", "higher",
         "output tokens of requests that meet every limit / duration", "goodput"),
    # Reasoning
    _Row("ttot", "Time to output token", "ms", "lower",
         "first visible content - end of thinking", "reasoning", STATISTICS),
    _Row("ttfo", "Time to first output token", "ms", "lower",
         "first visible content - T_submit", "reasoning", STATISTICS),
    _Row("ttft_reasoning", "Time to first reasoning", "ms", "lower",
         "first reasoning - T_submit", "reasoning", STATISTICS),
    _Row("output_itl", "Inter-token latency of the output phase", "ms", "lower",
         "T(token_i) - T(token_i-1) after the first visible content", "reasoning", SPREAD),
    _Row("think_tokens", "Think tokens", "tokens", "lower",
         "reasoning tokens of a reply that reasoned", "reasoning", STATISTICS),
    _Row("think_share", "Think share", "ratio", "lower", "reasoning tokens / output tokens", "reasoning"),
    _Row("budget_force_rate", "Budget-force rate", "ratio", "lower",
         "replies whose reasoning the server ended / replies of which it says why it ended", "reasoning"),
    _Row("critical_evictions", "Critical evictions", "count", "lower",
         "evictions of requests in their output phase, as the server counts them", "reasoning"),
    # Throughput and capacity
    _Row("max_output_token_throughput", "Max output throughput", "tok/s", "higher",
         "output token throughput at the highest sustainable load", "5.2.4.1"),
    _Row("max_request_throughput", "Request throughput at the maximum", "req/s", "higher",
         "request throughput at the highest sustainable load", "5.2.4.1"),
    _Row("max_input_token_throughput", "Input throughput at the maximum", "tok/s", "higher",
         "input token throughput at the highest sustainable load", "5.2.4.1"),
    _Row("constrained_output_token_throughput", "Output throughput under the objectives", "tok/s", "higher",
         "output token throughput at the highest load that meets the latency objectives", "5.2.2.3"),
    _Row("tenfold_output_token_throughput", "Output throughput by the ten-fold rule", "tok/s", "higher",
         "output token throughput at the highest load with TTFT P99 <= 10 x P50 of the lowest", "5.2.3.1"),
    _Row("output_tokens_per_gpu_second", "Tokens per GPU-second", "tok/s", "higher",
         "max output token throughput / accelerators", "5.2.4.2"),
    _Row("sustainable_rate", "Sustainable load", "req/s", "higher", "highest load not saturated", "5.2.4.1"),
    _Row("sustainable_concurrency", "Sustainable load", "count", "higher",
         "highest requests in flight not saturated", "5.2.4.1"),
    _Row("batch_utilisation", "Batch utilisation", "ratio", "higher", "mean batch size / maximum", "5.2.4.2"),
    _Row("knee_rate", "Knee point", "req/s", "higher", "first level with P99 TTFT > 2 x lowest", "5.3.4"),
    _Row("saturation_rate", "Saturation point", "req/s", "higher",
         "first level with less throughput than the one before, beyond their intervals", "5.3.4"),
    _Row("operating_point_rate", "Operating point", "req/s", "higher",
         "level of highest throughput that meets the objectives", "5.3.4"),
    _Row("operating_point_throughput", "Throughput at the operating point", "tok/s", "higher",
         "output token throughput at the operating point", "5.3.4"),
    _Row("max_concurrency", "Maximum concurrent requests", "count", "higher",
         "highest concurrency that meets the criteria", "5.5.4"),
    _Row("max_sessions", "Maximum sessions at once", "count", "higher",
         "most sessions at once that meet the criteria", "5.5.4"),
    _Row("tokens_in_flight", "Tokens in flight", "tokens", "higher",
         "mean of input plus output so far over all concurrent requests", "5.5.4"),
    # Shape of ITL
    _Row("itl_tail_ratio", "P99/P50 ratio", "ratio", "lower", "ITL P99 / ITL P50", "5.4.4"),
    _Row("itl_modes", "Modes of ITL", "count", "lower", "peaks of the density of log ITL", "5.4.4"),
    _Row("itl_tail_variation", "Tail variation", "ratio", "lower",
         "coefficient of variation of the excesses over P90", "5.4.4"),
    # Fairness
    _Row("jain_index", "Jain's fairness index", "ratio", "higher",
         "(sum x)^2 / (n sum x^2), x = E2E / output tokens", "5.6.4"),
    _Row("class_jain_index", "Class-level fairness index", "ratio", "higher",
         "Jain's index over the classes' mean slowdowns", "AMB-09"),
    _Row("starvation_rate", "Starvation rate", "ratio", "lower",
         "share of requests that wait longer than 5 x the median of their class", "5.6.4"),
    _Row("ttft_inflation", "Latency inflation", "ratio", "lower",
         "TTFT in the mix / TTFT alone", "5.6.4", _TAILS),
    # Prefix cache
    _Row("ttft_reduction", "TTFT reduction", "ratio", "higher",
         "(TTFT without cache - TTFT with cache) / TTFT without cache", "5.7.4", _TAILS),
    _Row("cache_hit_rate", "Cache hit rate", "ratio", "higher",
         "sum min(cached, shared prefix) / sum shared prefix", "AMB-18"),
    _Row("cached_input_share", "Cached share of the input", "ratio", "higher",
         "cached tokens / input tokens", "AMB-18"),
    _Row("throughput_improvement", "Throughput improvement", "ratio", "higher",
         "(throughput with cache - without) / without", "5.7.4"),
    # Memory pressure
    _Row("preemption_rate", "Preemption rate", "ratio", "lower",
         "share of requests preempted at least once", "5.8.4"),
    _Row("preemption_recovery_rate", "Preemption recovery rate", "ratio", "higher",
         "share of preempted requests that finish", "5.8.4"),
    _Row("preemption_loss", "Preemption loss", "tokens", "lower", "mean tokens lost per preemption", "5.8.4"),
    _Row("preemptions_per_request", "Preemptions per request", "ratio", "lower",
         "preemption events / requests, from the engine's counter", "5.8.4"),
    _Row("pressed_levels", "Pressed levels", "ratio", "higher", "share of levels with memory short", "5.8.3"),
    _Row("fail_rate", "Fail rate", "ratio", "lower", "1 - completion rate", "5.8.5"),
    _Row("recovery_time", "Recovery time", "s", "lower",
         "from the end of the overload until probes are as fast as before it", "5.8.4"),
    # Scaling with the input length
    _Row("prefill_exponent", "Scaling exponent", "ratio", "lower", "k in TTFT ~ length^k", "5.9.4"),
    _Row("prefill_exponent_fit", "Fit of the power law", "ratio", "higher", "R^2 of the power law", "5.9.4"),
    _Row("prefill_slope", "TTFT per input token", "us/token", "lower",
         "slope of the straight line", "AMB-21"),
    _Row("prefill_linear_fit", "Fit of the straight line", "ratio", "higher", "R^2 of the line", "AMB-21"),
    # Guardrails
    _Row("input_filter_overhead", "Input filter overhead", "ms", "lower",
         "TTFT(input filter) - TTFT(baseline)", "5.10.4", (*_TAILS, "mean")),
    _Row("guardrail_overhead", "Total guardrail overhead", "ms", "lower",
         "E2E(full) - E2E(baseline)", "5.10.4", (*_TAILS, "mean")),
    _Row("throughput_reduction", "Throughput reduction", "ratio", "lower",
         "(throughput of the baseline - throughput) / throughput of the baseline", "5.10.4"),
    _Row("throughput_reduction_at_equal_load", "Throughput reduction at equal load", "ratio", "lower",
         "the same of the output tokens per second at one offered rate", "5.10.4"),
    # Adapters
    _Row("adapter_load", "Load of an adapter", "ms", "lower",
         "call sent until its answer ended, of loads that succeeded", "adapters", STATISTICS),
    _Row("adapter_unload", "Unload of an adapter", "ms", "lower",
         "call sent until its answer ended, of unloads that succeeded", "adapters", STATISTICS),
    _Row("adapter_call_failures", "Failed calls of adapters", "count", "lower",
         "calls that load or unload an adapter and were refused or had no answer in time", "adapters"),
    # Sessions
    _Row("turn_ttft", "Time to first token by turn", "ms", "lower",
         "TTFT of the turns of that number in their sessions", "sessions", STATISTICS, by_turn=True),
    _Row("turn_tpot", "Time per output token by turn", "ms", "lower",
         "TPOT of the turns of that number in their sessions", "sessions", STATISTICS, by_turn=True),
    _Row("turn_cached_share", "Cached share of the input by turn", "ratio", "higher",
         "cached tokens / input tokens of the turns of that number", "sessions", by_turn=True),
    _Row("turn_cacheable_share", "Cacheable share of the input by turn", "ratio", "higher",
         "tokens that an earlier prompt began with / input tokens", "sessions", by_turn=True),
    _Row("turn_cache_hit_rate", "Cache hit rate by turn", "ratio", "higher",
         "min(cached, cacheable) tokens / cacheable tokens", "sessions", by_turn=True),
    _Row("turn_ttft_reduction", "TTFT reduction by turn", "ratio", "higher",
         "(TTFT without cache - with) / without, of the same turns of that number",
         "sessions", _TAILS, by_turn=True),
    _Row("job_time", "Job completion time", "s", "lower",
         "end of the last turn - first turn due, of completed sessions", "sessions", STATISTICS),
    _Row("job_llm_time", "LLM time of a job", "s", "lower",
         "time with at least one turn in flight", "sessions", STATISTICS),
    _Row("job_pause_time", "Pauses of a job", "s", "lower",
         "job time - LLM time - wait in the generator", "sessions", STATISTICS),
    _Row("job_generator_wait", "Wait of a job in the generator", "s", "lower",
         "time with nothing in flight and a turn due", "sessions", STATISTICS),
    _Row("job_slowdown", "Slowdown of a job", "ratio", "lower",
         "job time under load / job time alone, of pairs of sessions of one shape", "sessions", STATISTICS),
    _Row("job_llm_slowdown", "Slowdown of the LLM time of a job", "ratio", "lower",
         "LLM time under load / LLM time alone, of pairs of sessions of one shape", "sessions", STATISTICS),
    _Row("jobs_per_hour", "Jobs per hour within the limits", "count", "higher",
         "highest rate of session starts at which every limit is kept", "sessions"),
    _Row("session_completion_rate", "Session completion rate", "ratio", "higher",
         "sessions all of whose turns ended well / all sessions", "sessions"),
    _Row("session_goodput", "Session goodput", "ratio", "higher",
         "sessions all of whose turns kept every limit / all sessions", "sessions"),
)  # fmt: skip

_NAME = re.compile(r"(?P<base>\w+)(?:\[(?P<qualifier>[^\]]*)\])?(?:\.(?P<statistic>\w+))?")
_RANGE = re.compile(r"\d+(-\d+|\+)")
_TURN = re.compile(r"[1-9]\d*\+?")


OWN: Final = {row.name: row for row in _ROWS}
"""The metrics of the core by name."""


class _Metrics(Mapping[str, MetricDefinition]):
    """The metrics by the name of their family or scalar, those of extras last."""

    def __getitem__(self, name: str) -> MetricDefinition:
        found: MetricDefinition | None = OWN.get(name) or named("metrics", name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter((*OWN, *names("metrics")))

    def __len__(self) -> int:
        return len(OWN) + len(names("metrics"))


METRICS: Final[Mapping[str, MetricDefinition]] = _Metrics()


def of_every_load() -> tuple[MetricDefinition, ...]:
    """The metrics of extras that every test of one load gives."""
    return tuple(row for row in every("metrics").values() if row.values is not None)


def of_the_machine() -> frozenset[str]:
    """The names of the metrics of extras about the machine of the system, which every test with a load
    gives."""
    return frozenset(row.name for row in every("metrics").values() if row.of_machine)


def definition(name: str) -> MetricDefinition:
    """The row of a full name such as ``ttft[0-256].p99``. SuiteError, with hints, for an unknown name."""
    found = _find(name)
    if found is None:
        close = suggestions(name)
        remedy = f"did you mean {' or '.join(close)}?" if close else f"metrics: {', '.join(METRICS)}"
        raise SuiteError(f"no metric is called {name!r}", remedy=remedy)
    return found


def metric_unit(name: str) -> Unit:
    """Unit of the metric with this full name. SuiteError, with hints, for an unknown one."""
    return definition(name).unit


def is_metric(name: str) -> bool:
    """Whether it is a full name: a family with a statistic, or a scalar."""
    return _find(name) is not None


def suggestions(name: str, most: int = 3) -> tuple[str, ...]:
    """The full names most similar to ``name``, best first; for the bare name of a family, its full names."""
    if name in METRICS and METRICS[name].is_family:
        return METRICS[name].full_names()[:most]
    every = [full for row in METRICS.values() for full in row.full_names()]
    return tuple(difflib.get_close_matches(name, every, n=most))


def _find(name: str) -> MetricDefinition | None:
    match = _NAME.fullmatch(name)
    row = METRICS.get(match["base"]) if match else None
    if match is None or row is None or not _takes(row, match["qualifier"]):
        return None
    statistic = match["statistic"]
    known = statistic in row.statistics if row.is_family else statistic is None
    return row if known else None


def _takes(row: MetricDefinition, qualifier: str | None) -> bool:
    """Whether the metric may have this qualifier. Names of levels, classes and configurations are free; a
    range of lengths has to be a bucket."""
    if row.by_turn:
        return qualifier is not None and _TURN.fullmatch(qualifier) is not None
    if qualifier is None:
        return True
    if _RANGE.fullmatch(qualifier):
        return row.by_input_length and qualifier in LABELS
    return bool(qualifier.strip())
