"""``stage_N_lifecycle_metrics.json`` of inference-perf.

Format and definitions: ``summarize_requests`` and ``compute_request_latency_metrics`` of
``inference_perf/reportgen/base.py`` (kubernetes-sigs/inference-perf at 010d12f). The file states neither
version nor model. Percentiles are NumPy's, linear, as ours are; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, completion_rate, mean, rates
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, ForeignRun, ResultFormat

DIFFERENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ttft": "theirs runs from before the client's call to the first content, white space included, and "
        "leaves out replies of a single token",
        "tpot": "theirs counts tokens with the client's tokenizer unless set otherwise",
        "e2e": "theirs runs from before the client's call to the end of the stream",
        "output_token_throughput": "theirs counts with the client's tokenizer unless set otherwise, from "
        "the first start to the last end",
        "request_throughput": "theirs counts from the first start to the last end",
        "completion_rate": "theirs counts as completed what ended without an error that the client noticed",
    }
)
LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "inter_token_latency": "zero between the tokens of a chunk, by the client's tokenizer",
        "normalized_time_per_output_token": "includes the time to the first token",
        "goodput_metrics": "its limits are not compared with those of a test",
    }
)
_STATISTICS = {"p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "p99_9": "p99.9", "mean": "mean"}
_LATENCIES = {"ttft": "time_to_first_token", "tpot": "time_per_output_token", "e2e": "request_latency"}
_MS_PER_S = 1e3


def recognised(content: Mapping[str, Any]) -> bool:
    return "load_summary" in content and "successes" in content


def runs(content: Mapping[str, Any]) -> list[ForeignRun]:
    """The one run of a stage. WrongShapeError for a summary of several, which does not say its load."""
    fields = Fields(content)
    successes = fields.section("successes")
    values: dict[str, float] = {}
    for family, name in _LATENCIES.items():
        values |= successes.section("latency").section(name).latencies(family, _STATISTICS, _MS_PER_S)
    throughput = successes.section("throughput")
    values |= rates(
        {
            "output_token_throughput": throughput.number("output_tokens_per_sec"),
            "request_throughput": throughput.number("requests_per_sec"),
        }
    )
    completed = successes.count("count")
    values |= completion_rate(completed, fields.section("failures").count("count"))
    return [
        ForeignRun(
            _load(fields.section("load_summary")),
            values,
            mean_input_tokens=mean(successes.section("prompt_tokens").number("total"), completed),
            mean_output_tokens=successes.section("output_len").number("mean"),
        )
    ]


def _load(summary: Fields) -> ForeignLoad:
    """The load of a stage: the number of its slots, else its rate. The file does not say how requests
    arrive."""
    concurrency, rate = summary.count("concurrency"), summary.number("requested_rate")
    if concurrency:
        return ForeignLoad(concurrency=concurrency)
    if not rate:
        raise WrongShapeError(
            "load_summary.requested_rate is missing, as in a summary of all stages: give "
            "stage_N_lifecycle_metrics.json"
        )
    return ForeignLoad(rate)


FORMAT: Final = ResultFormat("inference-perf", recognised, runs, DIFFERENCES, LEFT_OUT)
