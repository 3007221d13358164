"""How the entries of the other five tests are broken: entry → mutation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from complete_run import some
from level_mutations import (
    columns_of,
    only_levels,
    plan_of,
    records_of,
    run_of,
    with_level,
    with_listed,
    without_levels,
)
from mutations import (
    alone,
    stating,
    together,
    with_field,
    without,
    without_metrics,
    without_table,
)
from search_rows import Own, own

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES

REFUSED = OUTCOMES.index(Outcome.REFUSED)


def without_search(evidence: Evidence) -> Evidence:
    return together(alone, without_levels("probe"))(evidence)


FAIRNESS = {
    "M-5.6.2-workload-synthetic-skewed": own(stating({"workload.name": "synthetic-uniform"})),
    "P-5.6.2-classes": own(with_listed("workload.classes", 0, input=[10, 256])),
    "P-5.6.2-class-mix": own(stating({"workload.class_mix": {"short": 0.7, "long": 0.3}})),
    "S-5.6.2-load-70-90": own(with_level("mix", percent_of_capacity=95.0)),
    "P-5.6.2-500-per-class": own(records_of("mix", count=900)),
    "P-5.6.3-isolated-baseline": own(with_level("baseline", 1, class_label="medium")),
    "P-5.6.3-min-duration-300s": own(together(records_of("mix", count=100), run_of("mix", stopped="early"))),
    "P-5.6.3-per-request-record": own(columns_of("mix", class_label=lambda names: ["", *names[1:]])),
    "P-5.6.4-per-class-latency": own(without_metrics("ttft[long].p95")),
    "P-5.6.4-inflation": own(without_metrics("ttft_inflation[short].p50")),
    "P-5.6.4-jain": own(without_metrics("jain_index")),
    "P-5.6.4-starvation": own(without_metrics("starvation_rate[long]")),
    "P-5.6.5-tables": own(without_table("fairness_metrics")),
}
PREFIX_CACHE = {
    "M-4.5.1-prefixes-populated": own(stating({"warmup.prefixes_populated": 3})),
    "S-5.7.2-workload": own(stating({"workload.name": "shared-contexts"})),
    "P-5.7.2-prefix-parameters": own(with_field("workload.prefix_sharing", "fraction", 0.5)),
    "M-5.7.2-two-configurations": own(plan_of("disabled", variant="cache_enabled")),
    "P-5.7.3-identical-workload": own(run_of("warm", sequence_sha256="0" * 64)),
    "P-5.7.3-baseline-warmup": own(
        columns_of("cold", cached_tokens=lambda tokens: np.full_like(tokens, 600))
    ),
    "P-5.7.4-ttft-both": own(without_metrics("ttft[cold].p95")),
    "P-5.7.4-reduction": own(without_metrics("ttft_reduction.p50")),
    "P-5.7.4-hit-rate": own(without_metrics("cache_hit_rate")),
    "P-5.7.4-throughput-gain": own(without_metrics("throughput_improvement")),
    "P-5.7.5-table": own(without_table("prefix_cache")),
}
MEMORY_PRESSURE = {
    "S-5.8.2-workload": own(stating({"workload.name": "synthetic-uniform"})),
    "P-5.8.2-levels": own(plan_of("overload", 0, load=ClosedLoop(1))),
    "P-5.8.3-capacity-first": own(without_search),
    "P-5.8.3-min-duration-120s": own(records_of("overload", 0, count=5)),
    "P-5.8.3-monitor": own(with_level("overload", 0, errors={"timeout": 3})),
    "P-5.8.4-completion": own(without_metrics("fail_rate[150%]")),
    "P-5.8.4-preemption-rate": own(without_metrics("preemption_rate[110%]")),
    "P-5.8.4-preemption-recovery": own(without_metrics("preemption_recovery_rate[125%]")),
    "P-5.8.4-preemption-loss": own(without_metrics("preemption_loss[125%]")),
    "P-5.8.5-table": own(without_levels("baseline")),
    "S-7.4-isolated-system": own(stating({"isolation.isolated_system": False})),
    "S-7.4-recovery-ready": own(without("isolation.recovery_plan")),
    "S-7.4-cascade-monitoring": own(without_metrics("recovery_time[110%]")),
}
LONG_CONTEXT = {
    "M-4.3.2.5-long-context-for-scaling": own(stating({"workload.name": "our documents"})),
    "M-5.9.2-workload-long-context": own(with_field("workload.content", "question_tokens", 10)),
    "P-5.9.2-length-sequence": own(stating({"sut.context_limit_tokens": 65_536})),
    "P-5.9.2-output-256": own(columns_of("length", 2, requested_max_tokens=some(128, slice(0, 2)))),
    "P-5.9.2-closed-loop-1-4": own(plan_of("length", 3, load=ClosedLoop(2))),
    "P-5.9.2-20-per-length": own(records_of("length", 1, count=19)),
    "P-5.9.3-short-warmup": own(stating({"warmup.longest_input_tokens": 4096})),
    "P-5.9.3-ascending": own(run_of("length", 4, started_ns=0)),
    "P-5.9.4-per-length": own(without_metrics("ttft[4096].p50")),
    "P-5.9.4-prefill-scaling": own(with_listed("long_context.lengths", 0, ms_per_1k_tokens=None)),
    "P-5.9.4-scaling-exponent": own(with_field("long_context.fit", "linear", {"r2": 1.0})),
    "P-5.9.4-throughput-at-length": own(with_listed("long_context.lengths", 1, output_tok_s=None)),
    "P-5.9.5-table": own(without_table("long_context")),
}
GUARDRAIL = {
    "S-5.10.2-workload": own(stating({"workload.name": "synthetic-uniform"})),
    "P-5.10.2-benign-content": own(columns_of("full", 0, outcome=some(REFUSED, slice(0, 20)))),
    "P-5.10.2-configurations": own(without_levels("output_filter")),
    "P-5.10.2-load-levels": own(only_levels(lambda level: level.percent_of_capacity != 50)),
    "P-5.10.3-sequence": own(stating({"warmup.count": 1})),
    "P-5.10.4-per-config": own(without_metrics("e2e[full@50%].p99")),
    "P-5.10.4-overheads": own(without_metrics("guardrail_overhead[75%].p50")),
    "P-5.10.4-throughput-reduction": own(without_metrics("throughput_reduction[full]")),
    "P-5.10.5-tables": own(without_table("guardrail_throughput")),
}
ROWS: Mapping[str, Mapping[str, Own]] = {
    "fairness": FAIRNESS,
    "prefix_cache": PREFIX_CACHE,
    "memory_pressure": MEMORY_PRESSURE,
    "long_context": LONG_CONTEXT,
    "guardrail": GUARDRAIL,
}
