"""``benchmarks.json`` of GuideLLM: a report with a benchmark for each load.

Format: ``GenerativeBenchmarksReport`` of ``guidellm/benchmark/schemas/report.py``, versions 1 and 2 of its
metadata, loads as ``guidellm/scheduler/strategies.py`` has them; definitions:
``guidellm/schemas/base/request_stats.py`` and ``statistics.py`` (vllm-project/guidellm, wheel 0.8.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, completion_rate, rates
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, ForeignRun, ResultFormat

KNOWN: Final = (1, 2)

_PERCENTILE = "percentiles are observed values, ours lie between them"
DIFFERENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ttft": f"theirs runs from the head of the request to the first content or reasoning, white space "
        f"included, by the wall clock, and is 0 for a request without one; {_PERCENTILE}",
        "tpot": f"theirs, called inter-token latency, weights each request by its tokens; {_PERCENTILE}",
        "e2e": f"theirs runs from the head of the request to the end of its stream, by the wall clock; "
        f"{_PERCENTILE}",
        "output_token_throughput": "theirs spreads the tokens of a request evenly over it, between warm-up "
        "and cool-down",
        "request_throughput": "theirs counts between warm-up and cool-down",
        "completion_rate": "theirs leaves out what had not ended when the benchmark did",
    }
)
LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "time_per_output_token_ms": "includes the time to the first token",
        "output_tokens_per_iteration": "describes chunks",
        "slo_attainment": "its limits are not compared with those of a test",
    }
)
_STATISTICS = {"p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "p99_9": "p999"}
_LATENCIES = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "e2e": ("request_latency", 1e3),
}
_RATES = {"output_token_throughput": "output_tokens_per_second", "request_throughput": "requests_per_second"}


def recognised(content: Mapping[str, Any]) -> bool:
    return "benchmarks" in content and "metadata" in content


def runs(content: Mapping[str, Any]) -> list[ForeignRun]:
    """A run for each benchmark whose load is a rate or a number of streams; the others are left out.

    WrongShapeError for another version, and where no benchmark is left.
    """
    fields = Fields(content)
    metadata = fields.section("metadata")
    known = metadata.number("version")
    if known not in KNOWN:
        raise WrongShapeError(f"metadata.version is {known!r}: known are {', '.join(map(str, KNOWN))}")
    found = [(benchmark, _load(benchmark)) for benchmark in fields.sections("benchmarks")]
    version = metadata.text("guidellm_version")
    made = [_run(benchmark, load, version) for benchmark, load in found if load is not None]
    if not made:
        raise WrongShapeError("no benchmark in it has a rate or a number of streams")
    return made


def _load(benchmark: Fields) -> ForeignLoad | None:
    strategy = benchmark.section("config").section("strategy")
    kind, rate = strategy.text("type_"), strategy.number("rate")
    if kind == "synchronous":
        return ForeignLoad(concurrency=1)
    if kind == "concurrent":
        return ForeignLoad(concurrency=strategy.count("streams"))
    if rate is None or kind not in ("constant", "poisson") or strategy.number("rampup_duration"):
        return None
    return ForeignLoad(rate, "uniform" if kind == "constant" else "poisson", None, _cap(benchmark, strategy))


def _cap(benchmark: Fields, strategy: Fields) -> int | None:
    """Most requests in flight, if that many were reached; else None. GuideLLM always writes one, 10240 by
    default."""
    most = strategy.count("max_concurrency")
    seen = benchmark.section("metrics").section("request_concurrency").section("total").number("max")
    return None if most is None or (seen is not None and seen < most) else most


def _run(benchmark: Fields, load: ForeignLoad, version: str | None) -> ForeignRun:
    metrics = benchmark.section("metrics")
    values: dict[str, float] = {}
    for family, (name, factor) in _LATENCIES.items():
        found = metrics.section(name).section("successful")
        values |= found.section("percentiles").latencies(family, _STATISTICS, factor)
        values |= found.latencies(family, {"mean": "mean"}, factor)
    values |= rates({ours: _mean(metrics, their) for ours, their in _RATES.items()})
    totals = metrics.section("request_totals")
    values |= completion_rate(totals.count("successful"), totals.count("errored"))
    return ForeignRun(
        load,
        values,
        model=benchmark.section("config").section("backend").text("model"),
        version=version,
        mean_input_tokens=_mean(metrics, "prompt_token_count"),
        mean_output_tokens=_mean(metrics, "output_token_count"),
    )


def _mean(metrics: Fields, name: str) -> float | None:
    return metrics.section(name).section("successful").number("mean")


FORMAT: Final = ResultFormat("GuideLLM", recognised, runs, DIFFERENCES, LEFT_OUT)
