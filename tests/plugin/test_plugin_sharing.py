"""One measurement for many gates, workloads of a file, variants by hook, the audit of the whole report."""

from __future__ import annotations

import pytest
from plugin_suite import Suite, refused
from test_plugin_hooks import example

TWO_GATES = """
@llmbench.ttft(p50_ms=500, rate=20)
def test_median(): ...

@llmbench.ttft(p50_ms=900, rate=20)
def test_tail(llm_result):
    assert llm_result.observations[0].shared_from.endswith("::test_median")

@llmbench.ttft(p50_ms=900, rate=20, fresh=True)
def test_anew(llm_result):
    assert llm_result.observations[0].shared_from is None
"""

LATER = """
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

SHORT = SyntheticWorkload("short", Fixed(16), Fixed(16))  # ten thousand of them are replayed soon

@llmbench.ttft(rate=200, arrival="uniform", workload=SHORT)
def test_uniform(): ...

@llmbench.ttft(rate=200, workload=SHORT)
def test_poisson(): ...
"""


def poisson_status(suite: Suite, name: str) -> list[str]:
    (entry,) = [test for test in suite.report["tests"] if test["nodeid"].endswith(name)]
    return [
        requirement["status"]
        for requirement in entry["compliance"]["requirements"]
        if "poisson" in requirement["id"] and requirement["id"].startswith("M-5.1")
    ]


def test_two_gates_on_one_run(suite: Suite) -> None:
    suite.write(TWO_GATES)
    suite.measure("replay").assert_outcomes(passed=3)
    first, second, third = suite.report["tests"]
    assert [test["shared"] for test in (first, second, third)] == [False, True, False]
    assert first["metrics"]["ttft.p50"] == second["metrics"]["ttft.p50"]


def test_the_plan_says_what_is_shared(suite: Suite) -> None:
    suite.write(TWO_GATES)
    suite.run("--llm-plan", "--llm-endpoint=replay").stdout.fnmatch_lines(
        [
            "*::test_median",
            "*1,104 requests *",
            "*::test_tail",
            "*no requests of its own",
            "*1 of 1 loads shared with test_suite.py::test_median",
            "*warm-up shared with test_suite.py::test_median",
            "*::test_anew",
            "*1,104 requests *",
            "*total of 3 tests: 2,208 requests *",
        ]
    )


@pytest.mark.parametrize("of_a_worker", [[], pytest.param(["-n1"], marks=pytest.mark.slow)], ids=str)
def test_the_audit_sees_later_tests_also_of_the_same_worker(suite: Suite, of_a_worker: list[str]) -> None:
    if of_a_worker:
        pytest.importorskip("xdist")
    suite.write(LATER)
    suite.measure("replay", *of_a_worker, scale="full").assert_outcomes(passed=2)
    assert poisson_status(suite, "test_uniform") == poisson_status(suite, "test_poisson") != []
    assert "unmet" not in poisson_status(suite, "test_uniform")


@pytest.mark.parametrize(("selected", "passed"), [("uniform or poisson", 2), ("uniform", 1)])
def test_without_a_later_test_of_many_requests_the_clause_is_unmet(
    suite: Suite, selected: str, passed: int
) -> None:
    suite.write(LATER)
    suite.measure("replay", "-k", selected).assert_outcomes(passed=passed, deselected=2 - passed)
    assert "unmet" in poisson_status(suite, "test_uniform")


def test_workloads_of_a_file(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(concurrency=2, workload="tiny")
        def test_x(llm_result):
            assert llm_result.facts.value("workload.name") == "tiny"
    """)
    (suite.path / "w.toml").write_text("[workloads.tiny]\ninput_tokens = 8\noutput_tokens = 2\n")
    suite.measure("replay", "--llm-workloads=w.toml", "--llm-records=sequence").assert_outcomes(passed=1)
    (file,) = (suite.path / "out" / "sequence").iterdir()
    assert file.name.startswith("tiny-")
    (suite.path / "w.toml").write_text("[workloads.tiny]\ninput_tokens = 8\n")
    refused(suite.measure("replay", "--llm-workloads=w.toml")).fnmatch_lines(
        ["*w.toml: workloads.tiny: output_tokens is missing*"]
    )


def test_variants_by_hook(suite: Suite) -> None:
    suite.write(
        """
        import pytest
        from pytest_llmbench import ClosedLoop, LoadPlan, SUTError, SuiteError

        def plan(llm_workload, variant):
            workload = llm_workload(input_tokens=8, output_tokens=2)
            return LoadPlan("by hand", workload, ClosedLoop(1), 3, seed=1, variant=variant)

        def test_declared(llm_bench, llm_workload):
            seen = llm_bench.run(plan(llm_workload, "low_priority"))
            assert seen.records.counts()["ok"] == 3

        def test_unknown(llm_bench, llm_workload):
            with pytest.raises(SuiteError, match="it has cache_disabled, .*, low_priority"):
                llm_bench.run(plan(llm_workload, "high_priority"))
        """,
        conftest=example("pytest_llmbench_variants"),
    )
    suite.measure("sim").assert_outcomes(passed=2)


def test_a_test_that_misses_something_says_all_of_it_before_any_load(suite: Suite) -> None:
    suite.write(
        "@llmbench.ttft(concurrency=2)\ndef test_x(): ...\n",
        conftest="""
        from dataclasses import replace
        import pytest
        from pytest_llmbench.plugin.collection import MARKED

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(items):
            for item in items:
                marked = item.stash[MARKED]
                test = replace(marked.definition, needs=lambda p, s: ["a variant warm", "a tokenizer"])
                item.stash[MARKED] = replace(marked, definition=test)
        """,
    )
    result = suite.measure("replay")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*Time to First Token: cannot be measured here*", "*- a variant warm*", "*- a tokenizer*"]
    )
    assert not list((suite.path / "out").glob("records/*"))
