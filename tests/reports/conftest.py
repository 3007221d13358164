"""A realistic report, built the way a session builds it: measured result → entry → plain dict."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import sample_results
from sample_report import make_report, make_result, passing

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.store import entries, schema

NODEID = "gates/test_chat.py::test_first_token_is_quick"


@pytest.fixture(scope="session")
def result() -> TestResult:
    return make_result()


@pytest.fixture(scope="session")
def judged(result: TestResult) -> schema.TestEntry:
    return entries.entry_from_result(
        result, nodeid=NODEID, outcome="failed", records_file="records/test_first_token_is_quick.jsonl"
    )


@pytest.fixture
def entry(judged: schema.TestEntry) -> dict[str, Any]:
    return judged.plain()


@pytest.fixture(scope="session")
def broken() -> schema.TestEntry:
    """A test that never measured."""
    return entries.entry_from_error(
        nodeid="gates/test_chat.py::test_unreachable[<b>|x]",
        test="ttft",
        section="5.1",
        title="Time to First Token",
        error="https://host/v1: connection refused\n  → start the server or correct --llm-endpoint",
        objectives=(Objective("ttft.p99", "<=", 500.0, "ms"),),
    )


@pytest.fixture(scope="session")
def three_tests(judged: schema.TestEntry, broken: schema.TestEntry, result: TestResult) -> dict[str, Any]:
    """Nobody changes it."""
    good = entries.entry_from_result(
        passing(result), nodeid="gates/test_chat.py::test_p99", outcome="passed", records_file=None
    )
    return make_report(judged, good, broken)


@pytest.fixture
def report(three_tests: dict[str, Any]) -> dict[str, Any]:
    return copy.deepcopy(three_tests)


@pytest.fixture(scope="session")
def every_entry(result: TestResult) -> dict[str, dict[str, Any]]:
    """By test name: an entry of each of the tests in sample_results, and of ``ttft``."""
    results = [result, *sample_results.all_of_them(result)]
    return {
        one.test: entries.entry_from_result(
            one,
            nodeid=f"gates/test_all.py::test_{one.test}",
            outcome="passed",
            records_file=f"records/{one.test}.jsonl",
        ).plain()
        for one in results
    }


@pytest.fixture(scope="session")
def base_report() -> dict[str, Any]:
    """A report without tests."""
    return make_report()


@pytest.fixture
def whole_report(every_entry: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """A report with every test."""
    return make_report() | {"tests": copy.deepcopy(list(every_entry.values()))}
