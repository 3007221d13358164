"""From measurement to pytest outcome, on the embedded engine, in virtual time."""

from __future__ import annotations

import html
import re

import pytest
from plugin_suite import Suite


def test_the_summary_says_what_was_judged(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.write("""
        @llmbench.ttft(p50_ms=0.01, p99_ms=0.01, rate=20)
        def test_bad(): ...

        @llmbench.ttft(p99_9_ms=2000, rate=20)
        def test_undecided(): ...

        @llmbench.ttft(rate=20, compliance="unconditional")
        def test_class(): ...

        @llmbench.ttft(rate=20, max_error_share=0.0)
        def test_void(): ...

        @llmbench.ttft(rate=20)
        def test_own(): assert 1 == 2
    """)
    monkeypatch.setenv("COLUMNS", "300")
    result = suite.run(
        "--llm-endpoint=replay:fast?fault=http_error&fault_rate=0.1", "--llm-scale=quick", "-k void"
    )
    result.stdout.re_match_lines([r"ERROR test_suite.py::test_void - INVALID: \w"])
    result = suite.run("--llm-endpoint=replay", "--llm-scale=quick", "-k not void")
    result.stdout.re_match_lines(
        [
            r"FAILED test_suite.py::test_bad - ttft\.p50 [\d.]+ ms \[.*\], limit <= 0\.01 ms; and 1 more$",
            r"FAILED test_suite.py::test_undecided - INCONCLUSIVE ttft\.p99_9 .*, limit <= 2000 ms$",
            r"FAILED test_suite.py::test_class - NOT COMPLIANT ENOUGH: unconditional asked for, the run is ",
            r"FAILED test_suite.py::test_own - assert 1 == 2",
        ]
    )


def test_pass_fail_and_inconclusive(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(p50_ms=2000, rate=20)
        def test_good(llm_result):
            assert llm_result.ttft.p50.upper < 2000
            assert llm_result.gate.verdict == "pass"

        @llmbench.ttft(p50_ms=0.01, rate=20)
        def test_bad():
            raise AssertionError("the body of a failed gate does not run")

        @llmbench.ttft(p99_9_ms=2000, rate=20)
        def test_undecided(): ...

        @llmbench.ttft(rate=20)
        def test_body(llm_result):
            assert llm_result.ttft.p50.point < 0, "impossible"
    """)
    result = suite.measure("replay")
    result.assert_outcomes(passed=1, failed=3)
    result.stdout.fnmatch_lines(
        [
            "*FAIL: ttft on 1 of 1 objectives*",
            "*FAIL ttft.p50 <= 0.01 ms: *",
            "*INCONCLUSIVE: ttft on 1 of 1 objectives*",
            "*INCONCLUSIVE ttft.p99_9 <= 2000 ms:*in all would decide this limit*",
        ]
    )
    entries = suite.entries
    assert {name: entry["gate"]["verdict"] for name, entry in entries.items()} == {
        "test_good": "pass",
        "test_bad": "fail",
        "test_undecided": "inconclusive",
        "test_body": "pass",
    }
    assert {name: entry["outcome"] for name, entry in entries.items()} == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_undecided": "failed",
        "test_body": "failed",
    }
    assert all(entry["validity"]["verdict"] == "valid" for entry in entries.values())
    lenient = suite.measure("replay", "--llm-inconclusive=pass", "-k", "undecided")
    lenient.assert_outcomes(passed=1, deselected=3)
    assert suite.entry["gate"]["verdict"] == "inconclusive"


def test_an_invalid_run_is_an_error_at_setup(suite: Suite) -> None:
    # Prompts of more tokens than the engine's context: it refuses them all, which is beyond any error budget.
    suite.write("""
        from pytest_llmbench import Fixed, SyntheticWorkload, WarmupPolicy, llmbench
        import pytest

        @pytest.fixture(scope="session")
        def llm_warmup():
            return WarmupPolicy.none()

        HUGE = SyntheticWorkload("huge", Fixed(200_000), Fixed(8))

        @llmbench.ttft(p50_ms=500, rate=50, workload=HUGE, requests=6)
        def test_refused(): ...
    """)
    result = suite.measure("replay")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*INVALID: this run is not judged", "*6 of 6 requests failed*"])
    entry = suite.report["tests"][0]
    assert entry["validity"]["verdict"] == "invalid"
    assert entry["outcome"] == "error"
    assert entry["counts"]["http_error"] == 6
    assert entry["metrics"]["ttft.p99"]["point"] is None
    assert entry["gate"]["verdict"] != "pass"


def test_compliance_fails_only_when_asked(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(rate=20, compliance="conditional")
        def test_asked(): ...

        @llmbench.ttft(rate=20)
        def test_not_asked(): ...
    """)
    result = suite.measure("replay")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*NOT COMPLIANT ENOUGH: conditional asked for, the run is not_compliant*",
            "*M-4.5.1-warmup-volume: 10 requests and * output tokens; both 100 and 10000*",
        ]
    )


def test_llm_result_without_a_marker_is_refused(suite: Suite) -> None:
    suite.write("def test_x(llm_result): ...")
    result = suite.measure("replay")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*llm_result needs a marker*"])


def test_async_bodies_and_hand_made_plans(suite: Suite) -> None:
    suite.write("""
        import pytest
        from pytest_llmbench import ClosedLoop, LoadPlan, llmbench

        @pytest.mark.asyncio
        @llmbench.ttft(rate=20)
        async def test_async(llm_result):
            assert llm_result.completion_rate.point == 1

        def plan(llm_workload):
            workload = llm_workload(input_tokens=32, output_tokens=(4, 8))
            return LoadPlan("by hand", workload, ClosedLoop(2), 10, seed=1)

        def test_by_hand(llm_bench, llm_workload):
            seen = llm_bench.run(plan(llm_workload))
            assert seen.records.ok.all() and len(seen.records) == 10

        @pytest.mark.asyncio
        async def test_by_hand_async(llm_bench, llm_workload):
            seen = await llm_bench.run_async(plan(llm_workload))
            assert seen.records.counts()["ok"] == 10

        def test_whole_test_by_hand(llm_bench):
            result = llm_bench.measure("ttft", rate=20, p50_ms=2000, requests=60)
            assert result.gate.verdict == "pass"
    """)
    suite.measure("replay").assert_outcomes(passed=4)


def test_an_overridden_sut_needs_no_endpoint(suite: Suite) -> None:
    suite.write(
        """
        @llmbench.ttft(rate=20)
        def test_x(llm_result):
            assert llm_result.completion_rate.point == 1
            assert llm_result.facts.value("sut.boundary") == "application_gateway"
        """,
        conftest="""
        import pytest
        from pytest_llmbench import SUT

        @pytest.fixture(scope="session")
        def llm_sut():
            return SUT("replay", disclosure={"sut.boundary": "application_gateway"})
        """,
    )
    suite.run("--llm-scale=quick").assert_outcomes(passed=1)


@pytest.mark.slow
@pytest.mark.parametrize("plugins", [["-p", "no:html"], ["-n2"], ["-W", "error"], ["--timeout=60"]], ids=str)
def test_beside_other_plugins(suite: Suite, plugins: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    summary = suite.path / "step_summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    suite.write(
        """
        @llmbench.ttft(rate=20, requests=20)
        def test_a(): ...

        @llmbench.ttft(rate=20, requests=20)
        def test_b(): ...
        """
    )
    result = suite.measure("replay", *plugins)
    result.assert_outcomes(passed=2)
    assert len(suite.report["tests"]) == 2
    result.stdout.fnmatch_lines(["*LLM serving benchmarks*"])
    assert summary.read_text("utf-8").count("LLM benchmark: ") == 1, "one process tells of the session"


def test_an_expected_failure_is_told_as_such(suite: Suite) -> None:
    suite.write("""
        import pytest
        @pytest.mark.xfail(reason="known to be slow")
        @llmbench.ttft(p99_ms=0.001, rate=40)
        def test_expected(): ...

        @pytest.mark.xfail(reason="was slow")
        @llmbench.ttft(p50_ms=1000, rate=40)
        def test_better(): ...
    """)
    result = suite.measure("replay")
    result.assert_outcomes(xfailed=1, xpassed=1)
    assert [entry["outcome"] for entry in suite.report["tests"]] == ["xfailed", "xpassed"]
    result.stdout.fnmatch_lines(["  test_* XFAIL *", "  test_* XPASS *"])
    assert "1 XFAIL, 1 XPASS" in (suite.path / "out" / "summary.md").read_text("utf-8")


def test_a_marker_of_one_parameter_is_not_that_of_its_siblings(suite: Suite) -> None:
    suite.write("""
        import pytest
        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=llmbench.ttft(rate=40)), 3])
        def test_some(x): ...
    """)
    suite.measure("replay", "--llm-inconclusive=pass").assert_outcomes(passed=3)
    assert [entry["nodeid"] for entry in suite.report["tests"]] == ["test_suite.py::test_some[2]"]


def test_a_run_too_short_for_its_queue_is_told_everywhere(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """16 places complete some 11.6 requests per second, and 11 when lengths are unlucky."""
    suite.write("""
        @llmbench.ttft(rate=11.5, requests=1000)
        def test_busy(): ...

        @llmbench.ttft(rate=4, requests=1000)
        def test_calm(): ...
    """)
    monkeypatch.setenv("COLUMNS", "400")
    result = suite.measure("replay:h100-8b?max_num_seqs=16", scale="standard")
    result.assert_outcomes(passed=2)
    busy, calm = (
        next((one for one in test["validity"]["findings"] if one["check"] == "run_length"), {"ok": True})
        for test in suite.report["tests"]
    )
    assert calm["ok"]
    assert not busy["ok"]
    assert not busy["voids"]
    told = re.compile(
        r"1000 requests span about [.\d]+ relaxation times of the queue: with 16 requests in flight the "
        r"server is 9\d[.\d]* % busy at this rate: upper ends of percentiles beyond the median are open; "
    )
    assert told.match(busy["message"])
    assert busy["value"] < busy["limit"]
    printed = " ".join(str(result.stdout).split())
    assert f"warning: run_length: {busy['message']}" in printed
    assert printed.count("run_length") == 1
    page = html.unescape((suite.path / "out" / "report.html").read_text("utf-8"))
    assert page.count(busy["message"]) >= 1
    assert told.search((suite.path / "out" / "summary.md").read_text("utf-8").replace("\\", ""))


@pytest.mark.parametrize(
    ("order", "style"),
    [
        ("", "wrapper"),
        ("tryfirst=True, ", "wrapper"),
        ("tryfirst=True, ", "hookwrapper"),
        ("trylast=True, ", "hookwrapper"),
    ],
)
def test_a_verdict_is_raised_within_the_wrappers_of_others(suite: Suite, order: str, style: str) -> None:
    suite.write(
        """
        @llmbench.ttft(p50_ms=0.01, rate=20)
        def test_bad(): raise AssertionError("the body of a failed gate does not run")

        def test_after(): ...
        """,
        f"""
        import pytest
        from pathlib import Path

        def note(text):
            with Path("noted.txt").open("a") as file:
                print(text, file=file)

        @pytest.hookimpl({order}{style}=True)
        def pytest_runtest_call(item):
            note("begins " + item.name)
            try:
                return (yield)
            finally:
                note("ends " + item.name)

        class Plain:
            def pytest_runtest_call(self, item):
                note("plain " + item.name)

        def pytest_configure(config):
            config.pluginmanager.register(Plain())
        """,
    )
    result = suite.measure("replay")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*FAIL ttft.p50 <= 0.01 ms: *"])
    noted = (suite.path / "noted.txt").read_text().splitlines()
    steps = ("begins", "plain", "ends")
    assert noted == [f"{step} {name}" for name in ("test_bad", "test_after") for step in steps]
