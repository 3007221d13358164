"""Complete runs in different situations: boundary, load, workload, clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from complete_run import CHUNKS, CONCURRENCY, RATE, REQUESTS, complete, some, vouched
from mutations import (
    able,
    restated,
    stating,
    together,
    with_columns,
    with_published,
    with_result,
    without,
)

from pytest_llmbench.compliance.evidence import PUBLISHED_DIGESTS, Evidence
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

CUSTOM = SyntheticWorkload("our-traffic", Uniform(50, 600), Uniform(10, 100))
THE_STACK_SHA256 = "cd" * 32
"""As if one file of it had a published digest."""
(SHAREGPT_SHA256,) = PUBLISHED_DIGESTS["ShareGPT"]
BURSTY = OpenLoop(RATE, "gamma", 0.5)

CAN_GRPC = able(
    {
        "streaming": ("sse", "grpc"),
        "submit_points": ("last_request_byte", "message_sent"),
        "first_points": ("parsed_data_event", "first_token_message"),
    }
)


@dataclass(frozen=True)
class TextWorkload:
    """A reference workload with texts for prompts, drawn from nothing but the index and the seed."""

    name: str
    input_tokens: tuple[int, ...]
    max_tokens: int
    particulars: Callable[[], Mapping[str, Any]]
    standard: bool = True

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        lengths = self.input_tokens
        return [
            PlannedRequest(
                i,
                self.max_tokens,
                lengths[i % len(lengths)],
                text=f"prompt {i} of {seed}".ljust(lengths[i % len(lengths)]),
            )
            for i in range(count)
        ]

    def specification(self) -> Mapping[str, Any]:
        law = {
            "type": "empirical",
            "params": {"histogram": [1]},
            "unit": "tokens",
            "tokenizer": "cl100k_base",
        }
        return {
            "input_length": law,
            "output_length": law | {"control": "max_tokens"},
            "content": {
                "domain": "conversation",
                "language": "English",
                "system_prompt": {"present": True, "typical_tokens": 200},
            },
            "temperature": 0.0,
            "stop": [],
        } | self.particulars()  # fmt: skip


def _sharegpt() -> Mapping[str, Any]:
    return {
        "prefix_sharing": {"fraction": 0.5, "length": {"type": "fixed"}, "realised_fraction": 0.5},
        "dataset": {
            "name": "ShareGPT",
            "subset": "vicuna_cleaned",
            "version": "2023-04-12",
            "file_sha256": SHAREGPT_SHA256,
            "subset_method": "at least one assistant turn",
            "preprocessing": [],
        },
    }


def _the_stack() -> Mapping[str, Any]:
    weights = np.arange(1, 11) ** -1.5
    return {
        "output_length": {
            "type": "lognormal",
            "params": {"mu": 4.0, "sigma": 1.5, "min": 1, "max": 2048},
            "unit": "tokens",
            "tokenizer": "cl100k_base",
            "control": "max_tokens",
        },
        "prefix_sharing": {
            "fraction": 0.8,
            "length": {"type": "uniform"},
            "realised_fraction": 0.8,
            "contexts": [512, 600, 700, 800, 900, 1000, 1024, 640, 720, 960],
            "realised_by_rank": [round(8000 * share) for share in weights / weights.sum()],
        },
        "dataset": {
            "name": "The Stack",
            "version": "1.2",
            "file_sha256": THE_STACK_SHA256,
            "subset_method": "three languages",
            "preprocessing": ["function-level completions extracted"],
        },
    }


def _documents() -> Mapping[str, Any]:
    return {
        "content": {
            "domain": "general",
            "language": "English",
            "system_prompt": {"present": False, "typical_tokens": 0},
            "question_tokens": 100,
        },
        "prefix_sharing": {"fraction": 0.0, "length": {"type": "fixed"}},
        "dataset": {
            "name": "books",
            "version": "3",
            "file_sha256": "ef" * 32,
            "subset_method": "all",
            "preprocessing": [],
        },
    }


CONVERSATION = TextWorkload("conversation", (120, 300, 900), 200, _sharegpt)
CODE = TextWorkload("code-completion", (120, 300, 900), 200, _the_stack)
LONG = TextWorkload("long-context", (8192, 16384), 256, _documents)


@cache
def conversation_sibling() -> TestResult:
    return vouched(complete(workload=CONVERSATION, requests=50).result)


def gateway() -> Evidence:
    """Distributed, over SSE, with a production claim; Conversation ran as well."""
    return complete(siblings=[conversation_sibling()])


def closed_loop() -> Evidence:
    return complete(load=ClosedLoop(CONCURRENCY), siblings=[conversation_sibling()])


def bursty() -> Evidence:
    """Bursty arrivals, with a Poisson run at the same rate beside it."""
    poisson = vouched(complete(load=OpenLoop(RATE), requests=50).result)
    return complete(load=BURSTY, siblings=[conversation_sibling(), poisson])


_ENGINE = together(
    stating({"sut.boundary": "model_engine", "clock.topology": "single_machine"}),
    stating({"network.rtt_ms": {"p50": 0.05, "n": 11}}),
    stating({"guardrails.input_filter": "absent", "guardrails.systems": []}),
)


def engine_over_sse() -> Evidence:
    """The one situation here that is conditional only: gRPC is advised at this boundary (AMB-23)."""
    return _ENGINE(complete())


_OVER_GRPC = together(
    CAN_GRPC,
    stating(
        {
            "streaming.protocol": "grpc",
            "timing.submit_point": "message_sent",
            "timing.first_point": "first_token_message",
        }
    ),
)


def engine_over_grpc() -> Evidence:
    return _OVER_GRPC(engine_over_sse())


def engine_custom_workload() -> Evidence:
    """A custom workload at engine boundary, with Synthetic-Uniform beside it (AMB-06)."""
    base = complete(workload=CUSTOM)
    base = dataclasses.replace(base, siblings=(vouched(complete(requests=50).result),))
    return together(_ENGINE, _OVER_GRPC)(base)


def conversation() -> Evidence:
    return complete(workload=CONVERSATION)


def code_completion() -> Evidence:
    digests = {"The Stack": frozenset({THE_STACK_SHA256})}
    return with_published(digests)(complete(workload=CODE, siblings=[conversation_sibling()]))


def long_context() -> Evidence:
    return complete(workload=LONG, siblings=[conversation_sibling()])


_WARMUP_FACTS = (
    "requests_ok",
    "output_tokens",
    "model_loaded",
    "drained",
    "probe_before_ms",
    "probes_after_ms",
)


FROM_FIRST_BYTE = (
    *("first_byte_ns", "first_event_ns", "first_nonempty_ns", "first_content_ns"),
    *("last_content_ns", "finished_ns"),
)
"""The instants of a reply."""


def later_at_first(delay_ns: int, rows: int = 1) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """The first request was answered so much later: the system was cold."""

    def change(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column[:rows] += delay_ns
        return column

    return change


def cold_start() -> Evidence:
    """Its first reply takes seconds, the later ones do not."""
    slow_ns = 5_000_000_000
    return together(
        with_columns(
            **dict.fromkeys(FROM_FIRST_BYTE, later_at_first(slow_ns)),
            chunk_ns=later_at_first(slow_ns, CHUNKS),
        ),
        restated,
        stating({"cold_start": True, "warmup.performed": False}),
        without(*(f"warmup.{name}" for name in _WARMUP_FACTS)),
        with_result(title="Time to First Token (cold start)", warmup=WarmupReport()),
    )(gateway())


def reasoning() -> Evidence:
    """Every second reply begins with output that is no content."""
    early = slice(0, REQUESTS, 2)
    base = gateway()
    ahead = base.records.first_content_ns[early] - 5_000_000
    valid = base.records.ok
    share = float(valid[early].sum() / valid.sum())
    return together(
        with_columns(
            first_nonempty_ns=some(ahead, early),
            first_byte_ns=some(ahead, early),
            first_event_ns=some(ahead, early),
        ),
        stating({"timing.noncontent_share": share}),
    )(base)


def network_time_subtracted() -> Evidence:
    adjustment = {"applied": True, "amount_ms": 2.0, "method": "median RTT"}
    base = gateway()
    raw = base.result.metrics["ttft.p50"]
    adjusted = dataclasses.replace(raw, point=(raw.point or 0.0) - 2.0)
    return together(
        stating({"network.ttft_adjustment": adjustment}),
        with_result(metrics={**base.result.metrics, "ttft_adjusted.p50": adjusted}),
    )(base)


def filter_disabled() -> Evidence:
    return together(
        stating({"guardrails.output_filter": "disabled", "guardrails.disabled_note": "output filter off"}),
    )(gateway())


def clocks_by_ptp() -> Evidence:
    return stating({"clock.sub_ms_required": True, "clock.method": "ptp"})(gateway())


def server_instrumented() -> Evidence:
    base = gateway()
    queue_wait = {f"ttft.{name}.p50": base.result.metrics["ttft.p50"] for name in ("queue_wait", "prefill")}
    return together(
        stating({"timing.server_side": ["queue_wait", "prefill"]}),
        with_result(metrics={**base.result.metrics, **queue_wait}),
    )(base)


SITUATIONS: Mapping[str, Callable[[], Evidence]] = {
    build.__name__: cache(build)
    for build in (
        gateway,
        closed_loop,
        bursty,
        engine_over_grpc,
        engine_custom_workload,
        conversation,
        code_completion,
        long_context,
        cold_start,
        reasoning,
        network_time_subtracted,
        filter_disabled,
        clocks_by_ptp,
        server_instrumented,
    )
}
