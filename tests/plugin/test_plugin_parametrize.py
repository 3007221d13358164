"""Parametrized names that are keywords of a marker: they reach the load, or are refused before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from plugin_suite import Suite

HEAD = "import pytest\nfrom pytest_llmbench import SyntheticWorkload, Fixed, llmbench\n\n"


Write = Callable[[str], None]


@pytest.fixture
def write(suite: Suite) -> Write:
    """Writes a suite below that head."""
    return lambda body: suite.write(HEAD + body)


def refused(suite: Suite, body: str) -> pytest.LineMatcher:
    suite.write(HEAD + body)
    result = suite.run("--llm-endpoint=replay")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not result.parseoutcomes().get("passed")
    return result.stderr


def test_a_rate_goes_into_the_marker_and_is_a_run_of_its_own(suite: Suite, write: Write) -> None:
    write("""
@pytest.mark.parametrize("rate", [10, 80])
@llmbench.ttft(rate=20)
def test_x(rate, llm_result):
    run = llm_result.observations[0]
    assert run.plan.load.rate == rate
    assert run.shared_from is None
""")
    suite.measure("replay").assert_outcomes(passed=2)
    ten, eighty = suite.report["tests"]
    assert ten["shared"] is eighty["shared"] is False
    assert (
        eighty["metrics"]["request_throughput"]["point"] > 4 * ten["metrics"]["request_throughput"]["point"]
    )


def test_a_limit_is_judged_and_the_run_is_shared(suite: Suite, write: Write) -> None:
    write("""
@pytest.mark.parametrize("p50_ms", [0.001, 5_000])
@llmbench.ttft(rate=20, p50_ms=9_000)
def test_x(p50_ms): ...
""")
    suite.measure("replay").assert_outcomes(passed=1, failed=1)
    broken, kept = suite.report["tests"]
    assert (broken["outcome"], kept["outcome"]) == ("failed", "passed")
    assert kept["shared"] is True


def test_marks_of_classes_params_and_several_parametrize(suite: Suite, write: Write) -> None:
    write("""
@pytest.mark.parametrize("requests", [150, pytest.param(250, marks=llmbench.ttft(rate=5))])
@llmbench.ttft(rate=20, requests=111)
class TestIt:
    @pytest.mark.parametrize("workload", [SyntheticWorkload("w", Fixed(8), Fixed(2)), "synthetic-uniform"])
    def test_x(self, requests, workload): ...
""")
    result = suite.run("--llm-plan", "--llm-endpoint=replay")
    result.stdout.fnmatch_lines(
        [
            "*test_x?workload0-150?",
            "*at 20 req/s, workload w",
            "*2,154 requests (2,004 in warm-ups and probes)*",
            "*test_x?workload0-250?",
            "*at 5 req/s, workload w",
            "*250 requests, *",
            "*test_x?synthetic-uniform-150?",
            "*at 20 req/s, workload synthetic-uniform",
            "*254 requests (104 in*",
            "*test_x?synthetic-uniform-250?",
            "*at 5 req/s, workload synthetic-uniform",
            "*250 requests, *",
        ]
    )
    assert "loads shared" not in str(result.stdout)


def test_none_takes_away_what_the_marker_says(suite: Suite, write: Write) -> None:
    write("""
@pytest.mark.parametrize(("rate", "concurrency"), [(None, 3), (30, None)])
@llmbench.ttft(rate=20)
def test_x(rate, concurrency, llm_result):
    load = llm_result.observations[0].plan.load
    assert getattr(load, "rate", None) == rate
    assert getattr(load, "concurrency", None) == concurrency
""")
    suite.measure("replay").assert_outcomes(passed=2)


def test_names_that_are_no_keyword_go_nowhere(suite: Suite, write: Write) -> None:
    write("""
@pytest.mark.parametrize("users", [3, 4])
@llmbench.ttft(concurrency=2)
def test_x(users, llm_result):
    assert llm_result.observations[0].plan.load.concurrency == 2
""")
    suite.measure("replay").assert_outcomes(passed=2)


def test_indirect_hands_over_the_parameter(suite: Suite, write: Write) -> None:
    write("""
@pytest.fixture
def rate(request):
    return request.param

@pytest.fixture(params=[100, 120])
def requests(request):
    '''Does something with it, and gives the test nothing.'''

@pytest.mark.parametrize("rate", [10, 40], indirect=True)
@llmbench.ttft(rate=20)
def test_x(llm_result, rate, requests):
    run = llm_result.observations[0]
    assert run.plan.load.rate == rate
    assert run.plan.requests in (100, 120)
""")
    suite.measure("replay", scale="standard").assert_outcomes(passed=4)


def test_a_fixture_that_makes_something_else_of_it_fails_before_the_load(suite: Suite, write: Write) -> None:
    write("""
@pytest.fixture
def rate(request):
    return request.param * 10

@pytest.mark.parametrize("rate", [2, 4], indirect=True)
@llmbench.ttft()
def test_x(rate): ...
""")
    result = suite.measure("replay")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*test_x?2?: the fixture 'rate' makes 20 of the parameter 2, and*"])
    assert not list((suite.path / "out").glob("records/*"))


def test_what_cannot_be_fed_is_told_at_collection_all_at_once(suite: Suite) -> None:
    refused(
        suite,
        """
@pytest.mark.parametrize(("rate", "requests"), [("fast", 0)])
@llmbench.ttft(p99ms=5)
def test_values(rate, requests): ...

@pytest.mark.parametrize("concurrency", [1, 8])
@llmbench.ttft(rate=20)
def test_contradiction(concurrency): ...

@pytest.mark.parametrize("rate", [pytest.param(80, marks=llmbench.ttft(rate=20))])
def test_twice(rate): ...

@pytest.fixture
def workload(request):
    return SyntheticWorkload(request.param, Fixed(8), Fixed(2))

@pytest.mark.parametrize("workload", ["made"], indirect=True)
@llmbench.ttft(rate=20)
def test_made(workload): ...
""",
    ).fnmatch_lines(
        [
            "*on test_values with rate, requests by parametrize: 3 mistakes",
            "*unknown parameter 'p99ms'*",
            "*rate must be a number, got 'fast'*",
            "*requests must be at least 1, got 0*",
            "*on test_contradiction with concurrency by parametrize: rate (open loop) and concurrency*",
            "*on test_twice: rate is 80 by parametrize and 20 by the mark of a pytest.param: give it once*",
            "*on test_made with workload by parametrize: workload 'made'*",
        ]
    )


def test_the_other_markers_are_fed_too(suite: Suite) -> None:
    refused(
        suite,
        """
@pytest.mark.parametrize("max_slowdown", [5])
@llmbench.ttft(rate=20)
@llmbench.no_regression("ttft.p99", max_slowdown=0.05)
def test_share(max_slowdown): ...

@pytest.mark.parametrize("metric", ["ttft.p98"])
@llmbench.ttft(rate=20)
@llmbench.no_regression("ttft.p99")
def test_metric(metric): ...

@pytest.mark.parametrize("max_slowdown", [0.1])
@llmbench.ttft(rate=20)
@llmbench.no_regression("ttft.p99")
@llmbench.no_regression("ttft.p50")
def test_which(max_slowdown): ...

@pytest.mark.parametrize("margin", [7])
@llmbench.ttft(rate=20)
@llmbench.compare()
def test_margin(margin): ...
""",
    ).fnmatch_lines(
        [
            "*on test_share*max_slowdown must be a share*got 5*",
            "*on test_metric*ttft.p98*",
            "*on test_which*max_slowdown by parametrize could be meant for each of 2 markers: keep one*",
            "*on test_margin*margin must be a share*got 7*",
        ]
    )


def test_a_parametrized_system_measures_each_without_being_named(suite: Suite) -> None:
    conftest = """
import pytest

@pytest.fixture(scope="session", params=["slow", "quick"])
def build(request):
    return request.param

@pytest.fixture(scope="session")
def llm_sut(build):
    return "replay:fast" + ("?step_base_us=30000" if build == "slow" else "")
"""
    body = """
@llmbench.ttft(rate=20, requests=30)
def test_alone(): ...

@pytest.mark.parametrize("rate", [10])
@llmbench.ttft(requests=30)
class TestIt:
    def test_with_a_rate(self, rate): ...

def test_unmarked(): ...
"""
    suite.write(HEAD + body, conftest)
    suite.measure("replay", scale="quick").assert_outcomes(passed=5)
    found = {
        test["nodeid"].split("::")[-1]: test["metrics"]["ttft.p50"]["point"] for test in suite.report["tests"]
    }
    assert set(found) == {
        f"test_{name}[{build}{rate}]"
        for name, rate in (("alone", ""), ("with_a_rate", "-10"))
        for build in ("slow", "quick")
    }
    assert all(point > 30 if "slow" in name else point < 30 for name, point in found.items())


def test_a_system_by_parametrize_alone(suite: Suite, write: Write) -> None:
    write("""
@pytest.mark.parametrize("llm_sut", ["replay:fast", "replay:cpu-laptop"])
@llmbench.ttft(rate=2, requests=20)
def test_x(): ...
""")
    suite.measure("replay").assert_outcomes(passed=2)
    assert [test["nodeid"].split("::")[-1] for test in suite.report["tests"]] == [
        "test_x[replay:fast]",
        "test_x[replay:cpu-laptop]",
    ]
