"""LLM-serving benchmarks as pytest test cases.

Public names are loaded on first use (PEP 562), so that having the plugin installed costs nothing to those
who have no load test.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_llmbench.errors import (
        GeneratorError,
        LLMBenchError,
        RequestFailedError,
        StoreError,
        SuiteError,
        SUTError,
    )
    from pytest_llmbench.harness.analysis import load_report
    from pytest_llmbench.harness.client import LLMClient, Reply, ReplyStream
    from pytest_llmbench.harness.session import Bench
    from pytest_llmbench.harness.sut.launched import LaunchedServer, launched_server
    from pytest_llmbench.harness.sut.sut import SUT
    from pytest_llmbench.harness.workloads.factory import make_workload
    from pytest_llmbench.marks import llmbench
    from pytest_llmbench.methodology.procedure import WarmupPolicy
    from pytest_llmbench.model.estimate import Estimate
    from pytest_llmbench.model.messages import Message, MessageArray, ToolCall
    from pytest_llmbench.model.objective import (
        GiB,
        J,
        Objective,
        W,
        completion_rate,
        e2e,
        energy_per_output_token,
        energy_per_request,
        goodput,
        goodput_share,
        gpu_utilisation,
        itl,
        mean_power,
        metric,
        ms,
        output_token_goodput,
        output_token_throughput,
        peak_memory,
        percent,
        req_s,
        request_throughput,
        s,
        tok_s,
        tokens,
        tokens_per_dollar,
        tokens_per_joule,
        tpot,
        ttft,
        ttft_scheduled,
        us,
    )
    from pytest_llmbench.model.plan import (
        ClosedLoop,
        Deadlines,
        LoadPlan,
        OpenLoop,
        SessionSlots,
        SessionStarts,
        churn,
        ramp,
        spike,
        steps,
    )
    from pytest_llmbench.model.reply_checks import StructuredOutput
    from pytest_llmbench.model.request import PlannedRequest, Workload
    from pytest_llmbench.model.result import TestResult
    from pytest_llmbench.workloads.adapted import Salted, SharedPrefix, WithFixedOutput
    from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
    from pytest_llmbench.workloads.lengths import Choice, Empirical, Fixed, LogNormal, Normal, Uniform
    from pytest_llmbench.workloads.mixture import (
        ClassMix,
        Mixture,
        Part,
        RequestClass,
        chat_reasoning_mix,
        zipf,
    )
    from pytest_llmbench.workloads.sessions import SessionWorkload
    from pytest_llmbench.workloads.synthetic import SyntheticWorkload
    from pytest_llmbench.workloads.trace import TraceEntry, TraceWorkload
    from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

_HOMES: dict[str, tuple[str, ...]] = {
    "errors": (
        "GeneratorError",
        "LLMBenchError",
        "RequestFailedError",
        "SUTError",
        "StoreError",
        "SuiteError",
    ),
    "harness.analysis": ("load_report",),
    "harness.session": ("Bench",),
    "harness.client": ("LLMClient", "Reply", "ReplyStream"),
    "harness.sut.launched": ("LaunchedServer", "launched_server"),
    "harness.sut.sut": ("SUT",),
    "harness.workloads.factory": ("make_workload",),
    "marks": ("llmbench",),
    "methodology.procedure": ("WarmupPolicy",),
    "model.estimate": ("Estimate",),
    "model.messages": ("Message", "MessageArray", "ToolCall"),
    "model.plan": (
        "ClosedLoop",
        "Deadlines",
        "LoadPlan",
        "OpenLoop",
        "SessionSlots",
        "SessionStarts",
        "churn",
        "ramp",
        "spike",
        "steps",
    ),
    "model.reply_checks": ("StructuredOutput",),
    "model.request": ("PlannedRequest", "Workload"),
    "model.result": ("TestResult",),
    "workloads.adapted": ("Salted", "SharedPrefix", "WithFixedOutput"),
    "workloads.dataset": ("DatasetIdentity", "DatasetWorkload", "Prompt"),
    "workloads.lengths": ("Choice", "Empirical", "Fixed", "LogNormal", "Normal", "Uniform"),
    "workloads.mixture": ("ClassMix", "Mixture", "Part", "RequestClass", "chat_reasoning_mix", "zipf"),
    "workloads.sessions": ("SessionWorkload",),
    "workloads.synthetic": ("SyntheticWorkload",),
    "workloads.trace": ("TraceEntry", "TraceWorkload"),
    "workloads.trace_sessions": ("TraceSessionWorkload", "TracedSession", "TracedTurn"),
}
"""Module → the public names in it; all others are in ``model.objective``."""

__all__ = [
    "SUT",
    "Bench",
    "Choice",
    "ClassMix",
    "ClosedLoop",
    "DatasetIdentity",
    "DatasetWorkload",
    "Deadlines",
    "Empirical",
    "Estimate",
    "Fixed",
    "GeneratorError",
    "GiB",
    "J",
    "LLMBenchError",
    "LLMClient",
    "LaunchedServer",
    "LoadPlan",
    "LogNormal",
    "Message",
    "MessageArray",
    "Mixture",
    "Normal",
    "Objective",
    "OpenLoop",
    "Part",
    "PlannedRequest",
    "Prompt",
    "Reply",
    "ReplyStream",
    "RequestClass",
    "RequestFailedError",
    "SUTError",
    "Salted",
    "SessionSlots",
    "SessionStarts",
    "SessionWorkload",
    "SharedPrefix",
    "StoreError",
    "StructuredOutput",
    "SuiteError",
    "SyntheticWorkload",
    "TestResult",
    "ToolCall",
    "TraceEntry",
    "TraceSessionWorkload",
    "TraceWorkload",
    "TracedSession",
    "TracedTurn",
    "Uniform",
    "W",
    "WarmupPolicy",
    "WithFixedOutput",
    "Workload",
    "chat_reasoning_mix",
    "churn",
    "completion_rate",
    "e2e",
    "energy_per_output_token",
    "energy_per_request",
    "goodput",
    "goodput_share",
    "gpu_utilisation",
    "itl",
    "launched_server",
    "llmbench",
    "load_report",
    "make_workload",
    "mean_power",
    "metric",
    "ms",
    "output_token_goodput",
    "output_token_throughput",
    "peak_memory",
    "percent",
    "ramp",
    "req_s",
    "request_throughput",
    "s",
    "spike",
    "steps",
    "tok_s",
    "tokens",
    "tokens_per_dollar",
    "tokens_per_joule",
    "tpot",
    "ttft",
    "ttft_scheduled",
    "us",
    "zipf",
]
_HOME_OF = dict.fromkeys(__all__, "model.objective")
_HOME_OF |= {name: home for home, names in _HOMES.items() for name in names}


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
