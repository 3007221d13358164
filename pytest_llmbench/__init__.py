"""LLM-serving benchmarks as pytest test cases.

Public names are loaded on first use (PEP 562), so that having the plugin installed costs nothing to those
who have no load test.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_llmbench.errors import GeneratorError, LLMBenchError, StoreError, SuiteError, SUTError
    from pytest_llmbench.harness.bench import Bench
    from pytest_llmbench.harness.sut import SUT
    from pytest_llmbench.marks import llmbench
    from pytest_llmbench.methodology.warmup_policy import WarmupPolicy
    from pytest_llmbench.model.estimate import Estimate
    from pytest_llmbench.model.objective import (
        Objective,
        completion_rate,
        e2e,
        ms,
        output_token_throughput,
        percent,
        req_s,
        request_throughput,
        s,
        tok_s,
        tpot,
        ttft,
        ttft_scheduled,
        us,
    )
    from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop
    from pytest_llmbench.model.request import PlannedRequest, Workload
    from pytest_llmbench.model.result import TestResult
    from pytest_llmbench.workloads.lengths import Fixed, Uniform
    from pytest_llmbench.workloads.synthetic import SyntheticWorkload

_HOMES = {
    "errors": ("GeneratorError", "LLMBenchError", "SUTError", "StoreError", "SuiteError"),
    "harness.bench": ("Bench",),
    "harness.sut": ("SUT",),
    "marks": ("llmbench",),
    "methodology.warmup_policy": ("WarmupPolicy",),
    "model.estimate": ("Estimate",),
    "model.objective": (
        "Objective",
        "completion_rate",
        "e2e",
        "ms",
        "output_token_throughput",
        "percent",
        "req_s",
        "request_throughput",
        "s",
        "tok_s",
        "tpot",
        "ttft",
        "ttft_scheduled",
        "us",
    ),
    "model.plan": ("ClosedLoop", "Deadlines", "LoadPlan", "OpenLoop"),
    "model.request": ("PlannedRequest", "Workload"),
    "model.result": ("TestResult",),
    "workloads.lengths": ("Fixed", "Uniform"),
    "workloads.synthetic": ("SyntheticWorkload",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "SUT",
    "Bench",
    "ClosedLoop",
    "Deadlines",
    "Estimate",
    "Fixed",
    "GeneratorError",
    "LLMBenchError",
    "LoadPlan",
    "Objective",
    "OpenLoop",
    "PlannedRequest",
    "SUTError",
    "StoreError",
    "SuiteError",
    "SyntheticWorkload",
    "TestResult",
    "Uniform",
    "WarmupPolicy",
    "Workload",
    "completion_rate",
    "e2e",
    "llmbench",
    "ms",
    "output_token_throughput",
    "percent",
    "req_s",
    "request_throughput",
    "s",
    "tok_s",
    "tpot",
    "ttft",
    "ttft_scheduled",
    "us",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("pytest-llmbench")
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
