"""The view that every renderer shares."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from pytest_llmbench.reports.document import (
    ReportView,
    TestView,
    fact_text,
    measured_text,
    metric_label,
    objective_text,
)

Entry = dict[str, Any]


@pytest.mark.parametrize(
    ("outcome", "validity", "gate", "measured", "word"),
    [
        ("passed", "valid", "pass", True, "PASS"),
        ("failed", "valid", "fail", True, "FAIL"),
        ("failed", "valid", "inconclusive", True, "INCONCLUSIVE"),
        ("passed", "valid", "inconclusive", True, "INCONCLUSIVE"),
        ("error", "invalid", "inconclusive", True, "INVALID"),
        ("error", "invalid", "inconclusive", False, "ERROR"),
        ("failed", "valid", "pass", True, "FAIL"),
        ("error", "valid", "pass", True, "ERROR"),
        ("skipped", "valid", "pass", False, "SKIPPED"),
    ],
)
def test_headline(entry: Entry, outcome: str, validity: str, gate: str, measured: bool, word: str) -> None:
    entry["outcome"] = outcome
    entry["validity"]["verdict"] = validity
    entry["gate"]["verdict"] = gate
    if not measured:
        entry["metrics"] = {}
    assert TestView(entry).headline == word


def test_texts_of_a_test(entry: Entry) -> None:
    test = TestView(entry)
    assert test.name == "test_first_token_is_quick"
    assert test.kind == "ttft (5.1 Time to First Token)"
    assert test.judgements == "valid · not compliant"
    assert test.completion == "998 of 1000 requests completed (99.8 %); 2 timeout"
    assert objective_text(test.objectives[0]) == "ttft.p99 <= 600 ms"
    assert measured_text(test.objectives[0]) == "468.3 ms [449.5, 491.7]"
    assert measured_text(test.objectives[1]) == "557.4 ms (> 535.1 ms)"


def test_tails_that_the_sample_does_not_carry(entry: Entry) -> None:
    test = TestView(entry)
    assert test.claim("ttft.p99") == "n < 1000, not reported"
    assert test.claim("ttft.p99_9") == "n < 10000, not reported"
    assert test.claim("ttft.p50") == "128.8 ms [123.7, 135.3]"
    assert test.claim("tpot.p99") == "14.5 ms [12, 15], indicative"
    assert test.claim("e2e.p99") == "not measured"


def test_only_percentiles_that_may_be_claimed_are_marked(
    entry: Entry, make_result: Callable[..., Any]
) -> None:
    assert list(TestView(entry).plots["ttft_cdf"]["marks"]) == ["P50", "limit P99"]
    whole = copy.deepcopy(entry)
    for metric in whole["metrics"].values():
        metric["n"] = 10_000
    assert list(TestView(whole).plots["ttft_cdf"]["marks"]) == ["P50", "P99", "limit P99"]
    assert list(entry["plots"]["ttft_cdf"]["marks"]) == ["limit P99"]


def test_missing_facts_are_those_one_can_declare(entry: Entry) -> None:
    assert TestView(entry).missing_facts == [
        "sut.boundary",
        "sut.hardware.accelerator_type",
        "sut.hardware.accelerator_count",
        "guardrails.input_filter",
    ]


def test_next_steps_name_the_number_of_requests(entry: Entry) -> None:
    assert TestView(entry).next_steps[0] == (
        "to decide the limits, measure about 9002 more requests (requests=10002)"
    )


def test_blocking_requirements_come_first(entry: Entry) -> None:
    effects = [requirement["effect"] for requirement in TestView(entry).unmet()]
    assert effects == ["blocks"] * 4 + ["downgrades"]


def test_voiding_findings_come_first(entry: Entry) -> None:
    entry["validity"]["findings"].append({"check": "x", "ok": False, "voids": True, "message": "void"})
    assert [finding["check"] for finding in TestView(entry).noteworthy_findings] == ["x", "client_cpu"]


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("ttft.p99_9", "TTFT P99.9"),
        ("ttft.mean", "TTFT Mean"),
        ("ttft_scheduled.p50", "TTFT (scheduled) P50"),
        ("ttft[0-256].p95", "TTFT[0-256] P95"),
        ("ttft", "TTFT"),
        ("output_token_throughput", "Output token throughput"),
    ],
)
def test_metric_label(name: str, label: str) -> None:
    assert metric_label(name) == label


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not declared"),
        (False, "no"),
        ([], "none"),
        (["a", 1], "a, 1"),
        ({"type": "x"}, '{"type": "x"}'),
        (0, "0"),
    ],
)
def test_fact_text(value: Any, text: str) -> None:
    assert fact_text(value) == text


def test_identification_from_facts(make_report: Callable[..., Entry]) -> None:
    facts = {
        "sut.model.name": "tiny-7b",
        "sut.model.version": "v2",
        "sut.model.quantization": "none",
        "sut.hardware.accelerator_type": "H200",
        "sut.hardware.accelerator_count": 4,
        "sut.software.engine": "vLLM",
        "sut.software.version": "0.9",
        "sut.boundary": "model_engine",
    }
    view = ReportView(make_report(**facts))
    assert (view.model, view.hardware) == ("tiny-7b v2", "H200 x 4")
    assert (view.software, view.boundary) == ("vLLM 0.9", "Model Engine")
    assert view.tally == "no test ran"


def test_undisclosed_hardware_is_said(make_report: Callable[..., Entry]) -> None:
    assert ReportView(make_report(**{"sut.hardware.disclosed": False})).hardware == "undisclosed"


def test_facts_of_a_run_are_not_facts_about_the_system(report: Entry) -> None:
    report["tests"][0]["facts"]["workload.seed"] = {"value": 1, "origin": "declared", "source": ""}
    assert list(ReportView(report).facts) == ["sut.prefix_caching"]
