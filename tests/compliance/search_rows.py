"""How the entries of throughput, tradeoff, ITL and capacity are broken: entry → mutation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from complete_run import some
from level_mutations import (
    columns_of,
    long_tail,
    metric_times,
    only_levels,
    plan_of,
    records_of,
    run_of,
    with_level,
    with_listed,
    without_levels,
)
from mutations import (
    Mutation,
    stating,
    together,
    unable,
    with_metric,
    with_result,
    without,
    without_metrics,
    without_table,
)

from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES

TIMEOUT = OUTCOMES.index(Outcome.TIMEOUT)


@dataclass(frozen=True)
class Own:
    """A mutation, and the run that it starts from, where that is not the plain complete one."""

    mutation: Mutation
    options: str = ""
    keywords: Mapping[str, Any] = field(default_factory=dict)


def own(mutation: Mutation, options: str = "", **keywords: Any) -> Own:
    return Own(mutation, options, keywords)


def custom_without_stop() -> Mutation:
    return together(stating({"workload.standard": False}), without("workload.stop"))


SATURATION = {
    "P-5.2.3.1-saturation-queue-growth": own(with_level("probe", 0, queue_growing=True, saturated=False)),
    "P-5.2.3.1-saturation-completion-90": own(with_level("probe", 0, overloaded=True, saturated=False)),
    "P-5.2.3.1-saturation-p99-10x": own(long_tail("probe")),
}
CLOSED = {"min_rate": None, "max_rate": None, "rate_step": None, "arrival": None} | {
    "min_concurrency": 2, "max_concurrency": 24, "concurrency_step": 2,
}  # fmt: skip
THROUGHPUT = SATURATION | {
    "M-5.2.2.1-workload-defined": own(custom_without_stop()),
    "M-5.2.2.1-duration-defined": own(without("load.duration_s")),
    "P-5.2.2.1-min-duration-60s": own(
        together(records_of("probe", 0, count=20), run_of("probe", 0, stopped="early"))
    ),
    "S-5.2.2.1-duration-300s": own(without_levels("reported")),
    "M-5.2.2.2-load-model-defined": own(stating({"load.model": "ajar"})),
    "M-5.2.2.2-open-loop-range": own(stating({"load.rate_range": [0.5, 0.4, 0.25]})),
    "M-5.2.2.2-closed-loop-range": own(stating({"load.concurrency_range": [2, 24, 0]}), **CLOSED),
    "P-5.2.2.3-slo-semantics": own(
        stating({"load.slo": {"ttft_p99_ms": 1.0}}), ttft_p99_ms=150.0, rate_step=0.2
    ),
    "P-5.2.3-throughput-formula": own(without_metrics("output_token_throughput")),
    "P-5.2.3-binary-search": own(only_levels(lambda level: not level.saturated)),
    "P-5.2.3.2-steady-queue": own(with_level("reported", 0, queue_growing=True)),
    "P-5.2.3.2-steady-throughput": own(
        columns_of("reported", output_tokens=lambda tokens: tokens * np.linspace(0.5, 2, len(tokens)))
    ),
    "P-5.2.3.2-rampup-excluded": own(with_level("probe", 0, window_s=60.0)),
    "P-5.2.4.1-primary": own(without_metrics("max_input_token_throughput")),
    "P-5.2.4.2-tokens-per-gpu-second": own(without_metrics("output_tokens_per_gpu_second")),
    "P-5.2.4.3-latency-at-max": own(with_metric("tpot.p95", point=None, lower=None, upper=None)),
    "P-5.2.5-tables": own(without_table("throughput_summary")),
}
TRADEOFF = {
    "P-5.2.3.1-saturation-queue-growth": own(with_level("level", 0, queue_growing=True, saturated=False)),
    "P-5.2.3.1-saturation-completion-90": own(with_level("level", 0, overloaded=True, saturated=False)),
    "P-5.2.3.1-saturation-p99-10x": own(long_tail("level")),
    "P-5.3.2-workload-named": own(custom_without_stop()),
    "P-5.3.2-min-duration-60s": own(run_of("level", 9, stopped="early")),
    "P-5.3.2-min-10-levels": own(only_levels(lambda level: (level.percent_of_capacity or 0) < 95)),
    "P-5.3.2-span-to-saturation": own(only_levels(lambda level: level.percent_of_capacity != 10)),
    "M-5.3.2-open-loop-required": own(plan_of("level", 3, load=ClosedLoop(3))),
    "P-5.3.3-capacity-estimate": own(without("load.capacity_found")),
    "P-5.3.3-ascending": own(run_of("level", 4, started_ns=0)),
    "P-5.3.4-per-level": own(with_level("level", 2, completion_ratio=None)),
    "P-5.3.4-knee": own(without_metrics("knee_rate")),
    "P-5.3.4-saturation-point": own(without_metrics("saturation_rate")),
    "P-5.3.5-table-and-plot": own(with_result(plots=())),
}
SEVERAL = "&tokens_per_chunk=3"
ITL = {
    "S-4.2.1-timer-resolution-1us-itl": own(stating({"timing.clock_resolution_ns": 5_000})),
    "M-4.6.3-itl-option-declared": own(stating({"streaming.itl_option": "Z"}), SEVERAL, method="A"),
    "S-4.6.3-option-c-when-available": own(
        stating({"streaming.itl_option": "A"}), SEVERAL + "&server_timestamps=true", method="C"
    ),
    "P-4.6.3-option-a-label": own(without_table("chunk_sizes"), SEVERAL, method="A"),
    "P-4.6.3-option-b-rule": own(with_listed("itl.levels", 0, zero_gaps=None), SEVERAL, method="B"),
    "S-5.4.2-workload": own(stating({"workload.name": "synthetic-skewed"})),
    "M-5.4.2-min-50-output-tokens": own(columns_of("level", 1, requested_max_tokens=some(40, slice(0, 30)))),
    "P-5.4.2-min-100-requests": own(with_listed("itl.levels", 0, eligible=99)),
    "P-5.4.2-min-5000-samples": own(with_listed("itl.levels", 0, samples=4_999)),
    "S-5.4.2-load-levels": own(only_levels(lambda level: level.percent_of_capacity != 75)),
    "P-5.4.2-load-as-percentage": own(stating({"load.capacity_rps": 3.0})),
    "P-5.4.2-method-specified": own(stating({"streaming.itl_option_from": "90%"})),
    "P-5.4.3-itl-formula": own(without_metrics("itl[25%].mean")),
    "P-5.4.3-jitter": own(without_metrics("jitter[50%].p50")),
    "P-5.4.3-max-pause": own(unable("itl.per_request")),
    "M-5.4.3-exclude-ttft": own(unable("itl.without_ttft")),
    "P-5.4.4.1-aggregate": own(without_metrics("itl[90%].p99_9")),
    "P-5.4.4.2-per-request": own(without_metrics("longest_pause[75%].p99")),
    "P-5.4.4.3-modality": own(with_listed("itl.levels", 2, modality=None)),
    "P-5.4.4.3-tail": own(with_listed("itl.levels", 1, p99_over_p50=None)),
    "P-5.4.5-table": own(without_table("itl_results")),
}
CAPACITY = {
    "S-5.5.2-workload": own(stating({"workload.deviations": [{"what": "prompt"}]})),
    "P-5.5.2-fixed-output": own(columns_of("probe", 1, requested_max_tokens=some(100, slice(0, 1)))),
    "P-5.5.2-search-bounds": own(without("load.concurrency_range")),
    "P-5.5.2-criterion-completion-99": own(with_level("probe", 0, passed=True, completion_ratio=0.98)),
    "P-5.5.2-criterion-ttft-p99": own(stating({"load.slo": {"ttft_p99_ms": 1.0}})),
    "P-5.5.2-criterion-no-oom": own(without("load.out_of_memory_rule")),
    "P-5.5.3-simultaneous-start": own(
        columns_of("probe", 0, dispatched_ns=lambda at: at + np.arange(len(at)) * 200_000_000)
    ),
    "P-5.5.3-maintain-concurrency": own(columns_of("probe", 1, submitted_ns=lambda at: at + 3_000_000_000)),
    "P-5.5.3-level-duration": own(records_of("probe", 0, count=150)),
    "P-5.5.3-binary-search": own(metric_times("max_concurrency", 2.0)),
    "P-5.5.4-measurements": own(without_metrics("tokens_in_flight")),
    "P-5.5.5-table": own(without_table("capacity_search")),
}
ROWS: Mapping[str, Mapping[str, Own]] = {
    "throughput": THROUGHPUT,
    "tradeoff": TRADEOFF,
    "itl": ITL,
    "capacity": CAPACITY,
}
