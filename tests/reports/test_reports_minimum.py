"""Appendix C.1: fields, order and words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import sample_results
from sample_report import make_report, make_result

from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.numbers import estimate
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.store import entries

Entry = dict[str, Any]
FACTS = {
    "sut.model.version": "2026-01",
    "sut.hardware.accelerator_type": "H200",
    "sut.hardware.accelerator_count": 4,
    "sut.software.engine": "vLLM",
    "sut.software.version": "0.9.1",
    "sut.boundary": "application_gateway",
    "guardrails.input_filter": "enabled",
    "guardrails.output_filter": "absent",
    "guardrails.systems": ["filter-x"],
}


def test_every_field_in_its_place() -> None:
    entry = entries.entry_from_result(
        make_result(failed=0), nodeid="g.py::t", outcome="passed", records_file=None
    )
    report = make_report(entry, **FACTS)
    met = [r for r in report["tests"][0]["compliance"]["requirements"] if r["status"] == "met"]
    report["tests"][0]["compliance"]["requirements"] = met
    assert minimum_report(report) == (
        """\
=== LLM Benchmark Report (Minimum) ===

System Identification:
- Model: tiny-7b 2026-01
- Hardware: H200 x 4
- Software: vLLM 0.9.1
- SUT Boundary: Gateway

Test Configuration:
- Workload: synthetic-uniform
- Load Model: open loop, poisson arrivals at 20 req/s
- Request Count: 1000
- Test Duration: 51.2 seconds

Key Results:
- TTFT P50: 128.9 ms [123.8, 135.4]
- TTFT P99: 468.2 ms [449.5, 491.6]
- TPOT P50: 13.5 ms [12, 15]
- TPOT P99: 14.5 ms [12, 15]
- Max Throughput: not measured
- Throughput at P99 TTFT < 500ms: not measured

Notes:
- Deviations: none
- Failures: none
- Warnings:
  - t: the measuring process used 95 % of a core
- Guardrails: input filter enabled, output filter absent, systems: filter-x

=== End Report ===
"""
    )


def test_deviations_are_all_unmet_requirements_with_the_names_of_their_tests(report: Entry) -> None:
    text = minimum_report(report)
    statement = (
        "M-5.1.4.1-percentiles: Statement of M-5.1.4.1-percentiles. (998 samples, P99.9 needs 10000)\n"
    )
    (line,) = (line for line in text.splitlines(keepends=True) if statement in line)
    assert line.startswith("  - test_")
    assert "S-4.6.1-grpc, advised: " in text
    assert text.count("M-4.8-input-filter:") == 1
    assert "- TTFT P99: n < 1000, not reported\n" in text
    assert "test_unreachable[<b>|x] was not measured: https://host/v1: connection refused → start" in text


def test_the_end_of_a_range_and_a_changed_workload_are_deviations(report: Entry) -> None:
    test = report["tests"][0]
    ended = {"upper": None, "kind": "bound", "reason": "range_ended"}
    test["metrics"]["ttft.p50"] |= ended
    shown = estimate(test["metrics"]["ttft.p50"])
    change = {"what": "output_length", "instead_of": "uniform", "rule": "AMB-11"}
    test["facts"] = {"workload.deviations": {"value": [change], "origin": "declared", "source": ""}}
    text = minimum_report(report)
    assert shown.startswith("at least ")
    assert f"TTFT P50 is {shown}: the search ended with its range\n" in text
    assert "changed workload: " in text
    assert "output_length" in text


def test_a_replay_says_that_nothing_was_sent(report: Entry) -> None:
    for test in report["tests"]:
        test["compliance"]["simulated"] = True
    assert "  - Simulated: nothing was sent, the embedded engine ran in virtual time.\n" in minimum_report(
        report
    )


def test_a_void_run_reports_no_number(report: Entry) -> None:
    report["tests"] = report["tests"][:1]
    report["tests"][0]["validity"] = {
        "verdict": "invalid",
        "findings": [{"check": "send_lag", "ok": False, "voids": True, "message": "late by 80 ms"}],
    }
    text = minimum_report(report)
    assert "- TTFT P50: not measured\n" in text
    assert "- Workload: not measured\n" in text
    assert "is void and its numbers are not reported: late by 80 ms" in text


def test_without_an_audit_nothing_is_said_to_be_in_order(report: Entry) -> None:
    report["tests"] = report["tests"][:1]
    report["tests"][0]["compliance"]["requirements"] = []
    assert "- Deviations: not audited\n" in minimum_report(report)


def test_no_test_at_all() -> None:
    lines = minimum_report(make_report()).splitlines()
    assert lines[0] == "=== LLM Benchmark Report (Minimum) ==="
    assert lines[-1] == "=== End Report ==="
    assert sum(line.endswith(": not measured") for line in lines) == 10


def _key_results(text: str) -> list[str]:
    return text.split("Key Results:\n")[1].split("\n\n")[0].splitlines()


def _entry(result: TestResult) -> Any:
    return entries.entry_from_result(result, nodeid=f"g.py::{result.test}", outcome="passed")


def test_all_six_key_results() -> None:
    base = make_result(failed=0)
    constrained = sample_results.throughput(base, {"ttft_p99_ms": 500, "tpot_p99_ms": 60})
    loose = sample_results.throughput(base, {"ttft_p99_ms": 1000})
    tests = [sample_results.throughput(base), loose, constrained, base]
    text = minimum_report(make_report(*map(_entry, tests)))
    assert _key_results(text) == [
        "- TTFT P50: 128.9 ms [123.8, 135.4]",
        "- TTFT P99: 468.2 ms [449.5, 491.6]",
        "- TPOT P50: 13.5 ms [12, 15]",
        "- TPOT P99: 14.5 ms [12, 15]",
        "- Max Throughput: 2847 tok/s [2733, 2961]",
        "- Throughput at P99 TTFT < 500ms: 2847 tok/s [2733, 2961]",
    ]
    assert "- Throughput at P99 TTFT < 500ms: also constrained to tpot_p99_ms = 60\n" in text
    assert "- Latencies:" not in text


def test_a_lower_bound_is_said_to_be_one() -> None:
    result = sample_results.throughput(make_result())
    known = result.metrics["max_output_token_throughput"]
    bound = known.at_least(Reason.RANGE_ENDED, "every tested load held")
    entry = _entry(replace(result, metrics={**result.metrics, "max_output_token_throughput": bound}))
    assert "- Max Throughput: at least 2847 tok/s (> 2733 tok/s)" in _key_results(
        minimum_report(make_report(entry))
    )


def test_a_maximum_within_limits_on_latency_is_called_that() -> None:
    known = sample_results.throughput(make_result()).metrics["max_output_token_throughput"]
    result = sample_results.throughput(make_result(), {"ttft_p99_ms": 1000})
    result = replace(result, metrics={**result.metrics, "max_output_token_throughput": known})
    told = _key_results(minimum_report(make_report(_entry(result))))
    assert told[4] == "- Max Throughput: 2847 tok/s [2733, 2961], within the limits on latency"


def test_another_constraint_is_not_the_one_asked_for() -> None:
    loose = sample_results.throughput(make_result(), {"ttft_p99_ms": 1000})
    results = _key_results(minimum_report(make_report(_entry(loose))))
    assert results[4:] == ["- Max Throughput: not measured", "- Throughput at P99 TTFT < 500ms: not measured"]


def test_without_a_ttft_test_a_reported_level_stands_in() -> None:
    capacity = sample_results.capacity(make_result())
    text = minimum_report(make_report(_entry(sample_results.itl(make_result())), _entry(capacity)))
    assert (
        "- Load Model: closed loop, 64 in flight\n- Request Count: 400\n- Test Duration: 60 seconds\n" in text
    )
    assert _key_results(text)[:3] == [
        "- TTFT P50: 124 ms [119.0, 129.0]",
        "- TTFT P99: 514 ms [493.4, 534.6], indicative",
        "- TPOT P50: 46 ms [44.2, 47.8]",
    ]
    assert "- Latencies: from the test capacity, at 64 in flight (reported)\n" in text


def test_an_invalid_throughput_test_reports_nothing() -> None:
    report = make_report(_entry(sample_results.throughput(make_result(), {"ttft_p99_ms": 500})))
    report["tests"][0]["validity"]["verdict"] = "invalid"
    assert all(line.endswith(": not measured") for line in _key_results(minimum_report(report)))


def test_failures_deadlines_and_a_raised_budget_stand_in_it(report: Entry) -> None:
    test = report["tests"][0]
    test["counts"] |= {"submitted": 1000, "ok": 600, "disconnected": 400}
    test["parameters"] = {"timeout_s": 0.036}
    test["validity"]["findings"] = [
        {"check": check, "ok": False, "voids": False, "message": message}
        for check, message in (("raised_error_budget", "raised to 90 %"), ("loop_lag", "late by 12 ms"))
    ]
    text = minimum_report(report)
    deviations, rest = text.split("- Failures:\n")
    assert ": raised to 90 %\n" in deviations
    assert "600 of 1000 requests completed (60 %)" in rest
    assert "- Deadlines: 0.036 s for the first byte and between chunks (" in rest
    assert ": late by 12 ms\n" in rest.split("- Warnings:\n")[1]
