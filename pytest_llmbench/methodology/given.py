"""The metrics that each test gives, so that a limit on any other is a mistake of the author, found before
anything is sent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from pytest_llmbench.metrics.definitions import OWN, of_every_load, of_the_machine
from pytest_llmbench.model.objective import Objective

_RATES = frozenset({
    "completion_rate", "request_throughput", "input_token_throughput", "output_token_throughput",
    "schema_violation_rate", "cut_share", "cut_begun_share", "accuracy", "accuracy_of_set",
})  # fmt: skip
_USUAL = _RATES | {"ttft", "ttft_adjusted", "tpot", "e2e"}
MEASURED_IF_LIMITED = frozenset(
    {"ttft_any", "ttft_first_event", "ttft_scheduled", "e2e_scheduled", "itl"}
)  # fmt: skip
"""What a test of one load measures besides, where a limit asks for it."""
OF_CHURN = frozenset({"adapter_load", "adapter_unload", "adapter_call_failures"})
"""What a test of one load gives of adapters that come and go meanwhile."""
_ONE_LOAD = _USUAL | MEASURED_IF_LIMITED | OF_CHURN
_SESSIONS = frozenset(name for name, row in OWN.items() if row.section == "sessions")
_REASONING = frozenset(name for name, row in OWN.items() if row.section == "reasoning")
_LARGEST = frozenset({
    "max_output_token_throughput", "max_request_throughput", "max_input_token_throughput",
    "constrained_output_token_throughput", "tenfold_output_token_throughput", "output_tokens_per_gpu_second",
    "sustainable_rate", "sustainable_concurrency", "batch_utilisation",
})  # fmt: skip

GIVES: Mapping[str, frozenset[str]] = MappingProxyType({
    "job": _ONE_LOAD | {"makespan", "total_token_throughput"},
    "ttft": _ONE_LOAD | {"ttft_queue_wait", "ttft_prefill", "ttft_outside"},
    "goodput": _ONE_LOAD | {"goodput_share", "goodput", "output_token_goodput"},
    "reasoning": _ONE_LOAD | _REASONING,
    "throughput": _USUAL | _LARGEST,
    "tradeoff": _USUAL | {
        "knee_rate", "saturation_rate", "operating_point_rate", "operating_point_throughput",
        "max_output_token_throughput",
    },
    "itl": _USUAL | {
        "itl", "itl_tail_ratio", "itl_modes", "itl_tail_variation", "jitter", "longest_pause",
    },
    "capacity": _USUAL | _SESSIONS | {"max_concurrency", "max_sessions", "tokens_in_flight"},
    "fairness": _USUAL | _SESSIONS | {"jain_index", "class_jain_index", "starvation_rate", "ttft_inflation"},
    "prefix_cache": _USUAL | _SESSIONS | {
        "ttft_reduction", "cache_hit_rate", "cached_input_share", "throughput_improvement",
    },
    "memory_pressure": _USUAL | _SESSIONS | {
        "preemption_rate", "preemption_recovery_rate", "preemption_loss", "preemptions_per_request",
        "pressed_levels", "fail_rate", "recovery_time",
    },
    "long_context": _USUAL | {
        "prefill_exponent", "prefill_exponent_fit", "prefill_slope", "prefill_linear_fit",
    },
    "guardrail": _USUAL | {
        "input_filter_overhead", "guardrail_overhead", "throughput_reduction",
        "throughput_reduction_at_equal_load", "max_output_token_throughput",
    },
    "sessions": _USUAL | _SESSIONS | {"cache_hit_rate", "cached_input_share"},
})  # fmt: skip
"""Test → the families and scalars that it gives, some of them only of a system that tells them."""
BY_LEVEL = {"tradeoff": "50%", "long_context": "8192"}
"""Tests that give the usual metrics of each level alone, with an example of a level."""
_OF_ALL = ("job", "ttft", "goodput", "reasoning")
_SHOWN = 8


def not_given(test: str, limits: Iterable[Objective]) -> list[str]:
    """Mistakes: limits on metrics that the test does not give."""
    gives = GIVES.get(test)
    if gives is None:
        return []
    gives |= {"startup_time"}
    of_extras = bool({each.metric.partition("[")[0].partition(".")[0] for each in limits} - set(OWN))
    machine = of_the_machine() if of_extras else frozenset[str]()
    gives |= machine
    if test in _OF_ALL and of_extras:
        gives |= {row.name for row in of_every_load()}
    found = []
    for limit in limits:
        family, _, statistic = limit.metric.partition("[")[0].partition(".")
        if family not in gives:
            others = [name for name in GIVES if family in GIVES[name]]
            where = f"use @llmbench.{' or '.join(others[:3])}" if others else "no test does"
            own = sorted(gives, key=lambda name: (name in _USUAL, name))[:_SHOWN]
            found.append(
                f"slo limits {limit.metric}, which {test} does not measure: {where}; "
                f"{test} measures {', '.join(own)} …"
            )
        elif "[" in limit.metric and family in MEASURED_IF_LIMITED and test in _OF_ALL:
            found.append(
                f"slo limits {limit.metric}: {test} measures {family} only over all requests together"
            )
        elif "[" not in limit.metric and test in BY_LEVEL and family in _USUAL | machine:
            name = f'{family}["{BY_LEVEL[test]}"]' + (f".{statistic}" if statistic else "")
            found.append(f"slo limits {limit.metric}, which {test} measures only by level: write {name}")
    return found
