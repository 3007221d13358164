"""Result files of SGLang's ``bench_serving``: an object a line, one line a run.

Format and definitions: ``benchmark`` and ``calculate_metrics`` of ``python/sglang/benchmark/serving.py``
(sgl-project/sglang at 00f9ec4). The file states no version, no failures and, unless the server is SGLang, no
model. Percentiles are NumPy's, linear, as ours are. Nothing is read of ``server_info`` but the model's path:
it holds the arguments of the server, its key among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, completion_rate, mean, rates
from pytest_llmbench.extras.foreign.foreign_run import ForeignRun, ResultFormat, open_loop_of

DIFFERENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ttft": "theirs runs from before the client's call, with a new connection for each request, to the "
        "first chunk with text or reasoning, white space included",
        "tpot": "theirs begins at that first chunk, ends with the stream, and takes the length that was "
        "asked for where the server tells none",
        "e2e": "theirs runs from before the client's call, with a new connection for each request, to the "
        "end of the stream",
        "output_token_throughput": "theirs divides by the time from the first task to the last return and "
        "one request for server information",
        "request_throughput": "theirs divides by the time from the first task to the last return and one "
        "request for server information",
    }
)
LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "itl": "gaps between chunks, or shares of them, depending on the backend",
        "input_throughput": "counts the prompts of all requests over the whole time, ours those in the "
        "window",
        "concurrency": "a mean over the time, not the requested load",
    }
)
_STATISTICS = {"p50": "median", "p90": "p90", "p95": "p95", "p99": "p99", "mean": "mean"}
_SETUP = (
    "backend", "tag", "dataset_name", "sharegpt_output_len", "random_input_len", "random_output_len",
    "random_range_ratio",
)  # fmt: skip
_MARKS = ("backend", "request_rate", "completed", "duration", "mean_e2e_latency_ms", "output_throughput")


def recognised(content: Mapping[str, Any]) -> bool:
    return all(name in content for name in _MARKS) and "model_id" not in content


def runs(content: Mapping[str, Any]) -> list[ForeignRun]:
    """The run of one line. WrongShapeError for a trace, and for a line that is not as SGLang writes it."""
    fields = Fields(content)
    if content["request_rate"] == "trace":
        raise WrongShapeError("request_rate is 'trace': the file does not say when requests were sent")
    rate = fields.number("request_rate", endless=True)
    if rate is None:
        raise WrongShapeError("request_rate is missing")
    completed = fields.count("completed")
    values = completion_rate(completed, None)
    for family, key in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2e_latency")):
        values |= fields.latencies(family, {ours: f"{their}_{key}_ms" for ours, their in _STATISTICS.items()})
    values |= rates(
        {
            "output_token_throughput": fields.number("output_throughput"),
            "request_throughput": fields.number("request_throughput"),
        }
    )
    server = fields.section("server_info")
    return [
        ForeignRun(
            open_loop_of(rate, None, fields.count("max_concurrency")),
            values,
            model=server.text("model_path"),
            setup=fields.as_text(_SETUP),
            mean_input_tokens=mean(fields.number("total_input_tokens"), completed),
            mean_output_tokens=mean(fields.number("total_output_tokens"), completed),
        )
    ]


FORMAT: Final = ResultFormat("SGLang bench_serving", recognised, runs, DIFFERENCES, LEFT_OUT)
