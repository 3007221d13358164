"""Result files of other load generators as they write them, cut down to what is read and a little of the
rest."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

CANARY = "sk-canary-of-a-server-4711"


def vllm(**changed: Any) -> dict[str, Any]:
    """``vllm bench serve --save-result --percentile-metrics ttft,tpot,itl,e2el``."""
    return {
        "date": "20260801-101500",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": None,
        "model_id": "sim-fast",
        "tokenizer_id": "sim-fast",
        "num_prompts": 200,
        "request_rate": 20.0,
        "burstiness": 1.0,
        "max_concurrency": None,
        "duration": 12.5,
        "completed": 198,
        "failed": 2,
        "total_input_tokens": 198 * 1024,
        "total_output_tokens": 198 * 128,
        "request_throughput": 15.84,
        "request_goodput": None,
        "output_throughput": 2027.52,
        "total_token_throughput": 18247.68,
        "mean_ttft_ms": 31.0,
        "median_ttft_ms": 30.0,
        "std_ttft_ms": 4.0,
        "p99_ttft_ms": 45.0,
        "mean_tpot_ms": 8.0,
        "median_tpot_ms": 7.5,
        "std_tpot_ms": 1.0,
        "p99_tpot_ms": 12.0,
        "mean_itl_ms": 8.1,
        "median_itl_ms": 7.4,
        "p99_itl_ms": 30.0,
        "mean_e2el_ms": 1000.0,
        "median_e2el_ms": 980.0,
        "p99_e2el_ms": 1500.0,
    } | changed


def sglang(**changed: Any) -> dict[str, Any]:
    """A line of SGLang's ``bench_serving``."""
    found = {
        "tag": None,
        "backend": "sglang",
        "dataset_name": "random",
        "request_rate": 8.0,
        "max_concurrency": None,
        "sharegpt_output_len": None,
        "random_input_len": 1024,
        "random_output_len": 128,
        "random_range_ratio": 0.0,
        "server_info": {"model_path": "meta-llama/Llama-3.1-8B-Instruct", "api_key": CANARY},
        "duration": 25.0,
        "completed": 200,
        "total_input_tokens": 100_000,
        "total_output_tokens": 20_000,
        "total_output_tokens_retokenized": 19_990,
        "request_throughput": 8.0,
        "input_throughput": 4000.0,
        "output_throughput": 800.0,
        "total_throughput": 4800.0,
        "concurrency": 3.2,
    }
    for key, at in (("e2e_latency", 400.0), ("ttft", 40.0), ("tpot", 4.0), ("itl", 3.0)):
        steps = {"mean": 1.1, "median": 1.0, "std": 0.2, "p90": 1.4, "p95": 1.5, "p99": 2.0}
        found |= {f"{name}_{key}_ms": at * share for name, share in steps.items()}
    return found | changed


def _aiperf_metric(unit: str, at: float) -> dict[str, Any]:
    steps = {"avg": 1.1, "p1": 0.5, "p50": 1.0, "p90": 1.4, "p95": 1.5, "p99": 2.0, "min": 0.4, "max": 2.2}
    return {"unit": unit} | {name: at * share for name, share in steps.items()}


def aiperf(**changed: Any) -> dict[str, Any]:
    """``profile_export_aiperf.json`` of AIPerf 0.13."""
    return {
        "schema_version": "1.4",
        "aiperf_version": "0.13.0",
        "request_throughput": {"unit": "requests/sec", "avg": 10.0},
        "request_latency": _aiperf_metric("ms", 900.0),
        "request_count": {"unit": "requests", "avg": 190.0},
        "error_request_count": {"unit": "requests", "avg": 10.0},
        "time_to_first_token": _aiperf_metric("ms", 50.0),
        "inter_token_latency": _aiperf_metric("ms", 6.0),
        "inter_chunk_latency": _aiperf_metric("ms", 6.0),
        "output_token_throughput": {"unit": "tokens/sec", "avg": 1280.0},
        "input_sequence_length": _aiperf_metric("tokens", 1000.0),
        "output_sequence_length": _aiperf_metric("tokens", 100.0),
        "input_config": {
            "models": {"items": [{"name": "sim-fast"}]},
            "endpoint": {"urls": ["http://host"], "api_key": CANARY},
            "phases": [
                {"name": "warmup", "type": "concurrency", "concurrency": 4, "exclude_from_results": True},
                {"name": "profiling", "type": "poisson", "rate": 10.0, "requests": 200},
            ],
        },
        "was_cancelled": False,
        "is_complete": True,
    } | changed


def _guidellm_metric(at: float) -> dict[str, Any]:
    percentiles = {"p50": at, "p90": at * 1.4, "p95": at * 1.5, "p99": at * 2.0, "p999": at * 2.1}
    summary = {"mean": at * 1.1, "median": at, "max": at * 2.2, "count": 100, "percentiles": percentiles}
    return {"successful": summary, "errored": None, "incomplete": None, "total": summary}


def _guidellm_benchmark(strategy: dict[str, Any]) -> dict[str, Any]:
    return {
        "type_": "generative_benchmark",
        "config": {"strategy": strategy, "backend": {"type_": "openai_http", "model": "sim-fast"}},
        "metrics": {
            "request_totals": {"successful": 99, "errored": 1, "incomplete": 3, "total": 103},
            "requests_per_second": _guidellm_metric(10.0),
            "request_concurrency": _guidellm_metric(20.0),
            "request_latency": _guidellm_metric(0.9),
            "prompt_token_count": _guidellm_metric(1000.0),
            "output_token_count": _guidellm_metric(100.0),
            "time_to_first_token_ms": _guidellm_metric(50.0),
            "time_per_output_token_ms": _guidellm_metric(9.0),
            "inter_token_latency_ms": _guidellm_metric(8.0),
            "output_tokens_per_second": _guidellm_metric(1000.0),
        },
    }


def guidellm(**changed: Any) -> dict[str, Any]:
    """``benchmarks.json`` of GuideLLM 0.8: a sweep of three loads."""
    return {
        "metadata": {"version": 2, "guidellm_version": "0.8.1"},
        "config": {},
        "benchmarks": [
            _guidellm_benchmark({"type_": "throughput", "max_concurrency": 512}),
            _guidellm_benchmark({"type_": "constant", "rate": 10.0, "max_concurrency": 10240}),
            _guidellm_benchmark({"type_": "concurrent", "streams": 16}),
        ],
    } | changed


def _inference_perf_metric(at_s: float) -> dict[str, float]:
    steps = {
        "mean": 1.1,
        "min": 0.5,
        "max": 2.2,
        "median": 1.0,
        "p90": 1.4,
        "p95": 1.5,
        "p99": 2.0,
        "p99.9": 2.1,
    }
    return {name: at_s * share for name, share in steps.items()}


def inference_perf(**changed: Any) -> dict[str, Any]:
    """``stage_0_lifecycle_metrics.json`` of inference-perf."""
    return {
        "benchmark_time_seconds": 60.0,
        "load_summary": {"count": 300, "send_duration": 59.9, "requested_rate": 5.0, "achieved_rate": 5.01},
        "successes": {
            "count": 297,
            "latency": {
                "request_latency": _inference_perf_metric(0.9),
                "normalized_time_per_output_token": _inference_perf_metric(0.009),
                "time_per_output_token": _inference_perf_metric(0.008),
                "time_to_first_token": _inference_perf_metric(0.05),
                "inter_token_latency": _inference_perf_metric(0.007),
            },
            "throughput": {"output_tokens_per_sec": 495.0, "requests_per_sec": 4.95},
            "prompt_tokens": {"total": 297_000.0, "cached": 0.0, "uncached": 297_000.0},
            "output_len": {"mean": 100.0},
        },
        "failures": {"count": 3, "request_latency": None, "by_label": {}},
    } | changed


Maker = Callable[..., dict[str, Any]]

MAKERS: dict[str, Maker] = {
    "vllm": vllm,
    "sglang": sglang,
    "aiperf": aiperf,
    "guidellm": guidellm,
    "inference_perf": inference_perf,
}


def text(*contents: dict[str, Any]) -> str:
    """Objects one after another, a line each."""
    return "\n".join(map(json.dumps, contents))
