"""Tests that another plugin runs again, in each of the ways in which plugins do that."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.store.journal import Course, judged

LIKE_RERUNFAILURES = """
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for attempt in range(3):
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        again = any(report.failed for report in reports) and attempt < 2
        for report in reports:
            if report.failed and again:
                report.outcome = "rerun"
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if not again:
            return True

def pytest_report_teststatus(report):
    if report.outcome == "rerun":
        return "rerun", "R", "RERUN"
"""
LIKE_RETRY = """
from _pytest.runner import CallInfo

@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when != "call" or not report.failed:
        return report
    report.outcome = "retried"
    item.ihook.pytest_runtest_logreport(report=report)
    for _ in range(2):
        item.ihook.pytest_runtest_teardown(item=item, nextitem=None)
        item._initrequest()
        CallInfo.from_call(lambda: item.ihook.pytest_runtest_setup(item=item), when="setup")
        called = CallInfo.from_call(lambda: item.ihook.pytest_runtest_call(item=item), when="call")
        again = pytest.TestReport.from_item_and_call(item, called)
        report.outcome, report.longrepr = again.outcome, again.longrepr
        if again.passed:
            break
    return report

def pytest_report_teststatus(report):
    if report.outcome == "retried":
        return "retried", "R", "RETRIED"
"""
LIKE_FLAKY = """
from _pytest.runner import runtestprotocol

@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    for attempt in range(3):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if attempt == 2 or not any(report.failed for report in reports):
            break
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    return True
"""
every_way = pytest.mark.parametrize(
    "way", [LIKE_RERUNFAILURES, LIKE_RETRY, LIKE_FLAKY], ids=["rerun", "retry", "flaky"]
)


@every_way
def test_the_report_is_of_the_last_attempt_and_lists_the_others(
    suite: Suite, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", "true")
    suite.write(
        """
        attempts = []

        @llmbench.ttft(rate=20)
        def test_flaky():
            attempts.append(1)
            assert len(attempts) > 2, "not yet"
        """,
        conftest=SMALL_WARMUP + way,
    )
    result = suite.measure("replay", "--junitxml=junit.xml")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*PASS*test_flaky (attempt 3)*"])
    (entry,) = suite.report["tests"]
    assert (entry["attempts"], entry["outcome"]) == (3, "passed")
    first, second = entry["earlier_attempts"]
    assert (first["status"], second["status"]) == ("FAIL", "FAIL")
    assert first["reason"].startswith("AssertionError: not yet")
    files = [each["records_file"] for each in (first, second, entry)]
    assert len({*files}) == len([file for file in files if (suite.path / "out" / file).exists()]) == 3
    for case in ET.parse(suite.path / "junit.xml").iter("testcase"):
        names = [each.get("name") for each in case.iter("property")]
        assert names.count("llmbench.verdict") <= 1
    for name in ("report.html", "summary.md"):
        text = (suite.path / "out" / name).read_text("utf-8")
        assert "attempt 3 of this test, after attempt 1: FAIL, AssertionError: not yet" in text
    (told,) = json.loads((suite.path / "out" / "ci" / "ctrf-report.json").read_text("utf-8"))["results"][
        "tests"
    ]
    assert (told["flaky"], told["retries"]) == (True, 2)


@pytest.mark.parametrize("way", [LIKE_RERUNFAILURES, LIKE_RETRY], ids=["rerun", "retry"])
def test_a_void_last_attempt_is_no_pass(suite: Suite, way: str) -> None:
    """pytest-retry calls a test also if its set-up failed."""
    suite.write(
        """
        import pytest
        attempts = []

        @pytest.fixture
        def llm_sut():
            attempts.append(1)
            if len(attempts) == 2:
                raise ConnectionError("no server")
            return "replay" if len(attempts) == 1 else "replay:fast?fault=reset&fault_rate=0.9"

        @llmbench.ttft(rate=20)
        def test_void():
            assert len(attempts) > 1
        """,
        conftest=SMALL_WARMUP + way,
    )
    result = suite.measure("replay", "--llm-exit-codes")
    assert result.ret == 12
    (entry,) = suite.report["tests"]
    assert (entry["attempts"], entry["validity"]["verdict"]) == (3, "invalid")
    told = [(each["status"], each["reason"]) for each in entry["earlier_attempts"]]
    assert told == [("FAIL", "AssertionError: assert 1 > 1"), ("ERROR", "ConnectionError: no server")]


def test_tests_of_one_name_that_are_no_attempts_are_all_kept() -> None:
    """Of two workers under --dist=each; and what one of them runs again replaces one entry."""
    course = Course()
    for attempts in (1, 1, 2):
        course.apply(judged({"nodeid": "t.py::t", "attempts": attempts}))
    assert [entry["attempts"] for entry in course.entries] == [1, 2]
