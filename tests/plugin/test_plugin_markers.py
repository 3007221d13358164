"""Marks as pytest users expect them, and their mistakes, all at once and before any traffic."""

from __future__ import annotations

import pytest
from plugin_suite import Suite, refused

MARKED = """
import pytest
@llmbench.ttft(p99_ms=500)
def test_function(): ...

@llmbench.ttft(p99_ms=400)
class TestClass:
    def test_method(self): ...

@pytest.mark.parametrize("rate", [pytest.param(5, marks=llmbench.ttft(rate=5), id="slow")])
def test_param(rate): ...

def test_plain(): ...
"""


def test_marked_tests_select_by_keyword(suite: Suite) -> None:
    suite.write(MARKED)
    result = suite.run("--collect-only", "-q", "-m", "llmbench(test='ttft')")
    result.stdout.fnmatch_lines(
        ["*::test_function", "*::TestClass::test_method", "*::test_param*slow*", "3/4 tests collected*"]
    )


def test_module_mark(suite: Suite) -> None:
    suite.write("""
        pytestmark = llmbench.ttft(p99_ms=500)
        def test_a(): ...
        def test_b(): ...
    """)
    suite.run("-rs").assert_outcomes(skipped=2)


def test_without_endpoint_marked_tests_are_skipped_with_one_summary_line(suite: Suite) -> None:
    suite.write(MARKED)
    result = suite.run("-rs")
    result.assert_outcomes(passed=1, skipped=3)
    result.stdout.fnmatch_lines(["*3 load tests skipped, no --llm-endpoint*"])
    result.stdout.fnmatch_lines(["*SKIPPED*no --llm-endpoint: give the URL of a server, or sim*"])


def test_require_makes_the_skip_an_error(suite: Suite) -> None:
    suite.write(MARKED)
    result = suite.run("--llm-require")
    result.assert_outcomes(passed=1, errors=3)
    result.stdout.fnmatch_lines(["*--llm-require: no --llm-endpoint*"])


MISTAKEN = """
import pytest
@llmbench.ttft(p99ms=500, requests=0)
def test_misspelt(): ...

@llmbench.ttft(500)
def test_positional(): ...

@llmbench.ttft(rate=5, concurrency=4)
def test_contradictory(): ...

@pytest.mark.llmbench(test="tftt")
def test_unknown(): ...

@llmbench.ttft(workload="synthetic-unifrom")
def test_workload(): ...

@llmbench.ttft(rate=5)
@llmbench.ttft(rate=6)
def test_twice(): ...

@pytest.mark.llmbench
def test_bare(): ...
"""


def test_all_mistakes_of_all_markers_at_collection(suite: Suite) -> None:
    suite.write(MISTAKEN)
    refused(suite.run("--llm-endpoint=http://127.0.0.1:1/v1")).fnmatch_lines(
        [
            "*test_suite.py:*@llmbench on test_misspelt: 2 mistakes",
            "*unknown parameter 'p99ms'; did you mean p99_ms?",
            "*requests must be at least 1*",
            "*on test_positional: takes keywords only, got 500*",
            "*on test_contradictory: rate (open loop) and concurrency (closed loop) exclude each other*",
            "*on test_unknown: unknown test 'tftt'; did you mean ttft?",
            "*on test_workload: workload 'synthetic-unifrom'*synthetic-uniform*",
            "*on test_twice: has 2 llmbench markers*",
            "*on test_bare: names no test*",
        ]
    )


def test_a_mistake_in_a_parametrised_test_is_said_once(suite: Suite) -> None:
    suite.write("""
        import pytest
        @llmbench.ttft(p99ms=1)
        @pytest.mark.parametrize("n", range(30))
        def test_many(n): ...
    """)
    result = suite.run("--collect-only")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert str(result.stderr).count("p99ms") == 1


def test_a_mark_of_a_param_stands_before_one_of_the_function(suite: Suite) -> None:
    suite.write("""
        import pytest
        @llmbench.ttft(requests=111, rate=10)
        @pytest.mark.parametrize("x", [1, pytest.param(2, marks=llmbench.ttft(requests=222, rate=10))])
        def test_x(x): ...
    """)
    result = suite.run("--llm-plan", "--llm-endpoint=http://127.0.0.1:1/v1")
    result.stdout.fnmatch_lines(["*test_x?1?", "*", "*215 requests*", "*test_x?2?", "*", "*222 requests,*"])


def test_a_broken_workload_file_is_told_alone(suite: Suite) -> None:
    """Its names are not unknown: they are in the file."""
    suite.write("""
        @llmbench.ttft(workload="mine")
        def test_one(): ...
        @llmbench.ttft(workload={"mine": 1, "synthetic-uniform": (2)})
        def test_parts(): ...
        @llmbench.sessions(workload="mine", arrival="trace")
        def test_sessions(): ...
        @llmbench.ttft(requests=0)
        def test_other_mistakes_are_told(): ...
    """)
    (suite.path / "loads.toml").write_text("[workloads.mine]\nkind = 'trace'\n")
    result = suite.run("--llm-endpoint=replay:fast", "--llm-workloads=loads.toml")
    said = "\n".join(result.errlines)
    assert "path is missing" in said
    assert "unknown workload" not in said
    assert "test_one" not in said
    assert "test_sessions" not in said
    assert "test_other_mistakes_are_told" in said
