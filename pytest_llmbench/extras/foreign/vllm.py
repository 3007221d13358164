"""Result files of ``vllm bench serve --save-result`` and ``--append-result``.

Format: the dictionary that ``vllm/benchmarks/serve.py`` writes (vllm-project/vllm at 009e6d4, ``main_async``
and ``benchmark``), definitions: ``calculate_metrics`` there and
``vllm/benchmarks/lib/endpoint_request_func.py`` (at 02cfb53). The file states no version; percentiles are
NumPy's, linear, as ours are.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, completion_rate, mean, rates
from pytest_llmbench.extras.foreign.foreign_run import ForeignRun, ResultFormat, open_loop_of

STATISTICS: Final = {
    "p50": "median",
    "p90": "p90",
    "p95": "p95",
    "p99": "p99",
    "p99_9": "p99.9",
    "mean": "mean",
}
"""Our statistic → beginning of their key; those that were not asked for are not in the file."""

DIFFERENCES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "ttft": "theirs runs from before the client's call, connecting included, to the first chunk with "
        "choices, which over the chat API may hold a role and no text",
        "tpot": "theirs begins at that first chunk and ends at the last chunk with choices",
        "e2e": "theirs runs from before the client's call to the last chunk with choices",
        "output_token_throughput": "theirs divides by the time from the first task to the last return",
        "request_throughput": "theirs divides by the time from the first task to the last return",
        "completion_rate": "theirs counts as completed what ended early, or with an error in its stream",
    }
)
LEFT_OUT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "itl": "gaps between chunks of all requests pooled, whatever number of tokens is in a chunk",
        "request_goodput": "the file does not say for which limits",
        "max_output_tokens_per_s": "the busiest second, not a rate over the load",
    }
)
_SETUP = ("backend", "label", "tokenizer_id", "num_prompts", "ramp_up_strategy")
_MARKS = ("model_id", "num_prompts", "request_rate", "completed", "duration")


def recognised(content: Mapping[str, Any]) -> bool:
    return all(name in content for name in _MARKS)


def runs(content: Mapping[str, Any]) -> list[ForeignRun]:
    """The one run of a file. WrongShapeError for embeddings, and for a file that is not as vLLM writes it."""
    fields = Fields(content)
    if "output_throughput" not in fields:
        raise WrongShapeError(
            "output_throughput is missing: a result of embeddings, which have no tokens to wait for"
        )
    rate = fields.number("request_rate", endless=True)
    if rate is None or "ramp_up_strategy" in fields:
        raise WrongShapeError(
            "the rate changed while the load ran, or is missing: no load of ours matches it"
        )
    completed, failed = fields.count("completed"), fields.count("failed")
    values = completion_rate(completed, failed)
    for family, key in (("ttft", "ttft"), ("tpot", "tpot"), ("e2e", "e2el")):
        values |= fields.latencies(family, {ours: f"{their}_{key}_ms" for ours, their in STATISTICS.items()})
    values |= rates(
        {
            "output_token_throughput": fields.number("output_throughput"),
            "request_throughput": fields.number("request_throughput"),
        }
    )
    burstiness = fields.number("burstiness", endless=True)
    most, sent = fields.count("max_concurrency"), fields.count("num_prompts")
    if most is not None and sent is not None and most >= sent:
        most = None  # a cap that holds nothing back, as vLLM's own scripts give it
    return [
        ForeignRun(
            open_loop_of(rate, burstiness, most),
            values,
            model=fields.text("model_id"),
            setup=fields.as_text(_SETUP),
            mean_input_tokens=mean(fields.number("total_input_tokens"), completed),
            mean_output_tokens=mean(fields.number("total_output_tokens"), completed),
        )
    ]


FORMAT: Final = ResultFormat("vllm bench serve", recognised, runs, DIFFERENCES, LEFT_OUT)
