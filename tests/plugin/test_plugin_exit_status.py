"""Exit status: 4 where markers or limits in code are wrong and nothing was run, else pytest's own."""

from __future__ import annotations

import pytest
from plugin_suite import Suite

USAGE, INTERRUPTED = pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.INTERRUPTED

MISTAKES = {
    "keyword": ("@llmbench.ttft(p99ms=1)", "did you mean p99_ms?"),
    "marker": ("@llmbench.tfft(p99_ms=1)", "llmbench has no test 'tfft'; did you mean ttft?"),
    "no test": ("@llmbench", "names no test"),
    "lengths": (
        "@llmbench.ttft(workload={'input_tokens': 64, 'output_tokens': (8, 16)})",
        "write make_workload(input_tokens=64, output_tokens=(8, 16))",
    ),
    "distribution": (
        "@llmbench.ttft(slo=[ttft <= 500])",
        "compare one of its statistics, such as ttft.p99",
    ),
    "unit": ("@llmbench.ttft(slo=[ttft.p99 <= 500])", "lacks a unit: write 500 * ms"),
    "dimension": ("@llmbench.ttft(slo=[ttft.p99 <= 5 * tok_s])", "is measured in ms, the limit is in tok/s"),
    "law": (
        "@llmbench.ttft(workload=SyntheticWorkload('x', Uniform(9, 3), Fixed(1)))",
        "low is 9 and high is 3",
    ),
    "compare": ("@llmbench.ttft()\n@llmbench.compare(metricss=['x'])", "did you mean metrics?"),
    "compare values": (
        "@llmbench.ttft()\n@llmbench.compare(metrics=3)",
        "metrics must be a list of names, got 3",
    ),
    "compare claim": (
        "@llmbench.ttft()\n@llmbench.compare(claim='no')",
        "claim must be True or False, got 'no'",
    ),
    "no metric": ("@llmbench.ttft()\n@llmbench.no_regression()", "needs the name of a metric"),
    "bare": ("@llmbench.ttft()\n@llmbench.no_regression", "no_regression on test_x lacks its parentheses"),
    "bare test": ("@llmbench.ttft", "write @llmbench.ttft()"),
    "bare comparison": ("@llmbench.ttft()\n@llmbench.compare", "write @llmbench.compare()"),
    "no name": ("@pytest.mark.llmbench(test=5)", "test must be the name of a test, got 5"),
    "too many": ("@llmbench.ttft(requests=10**12)", "requests must be at most 100,000,000"),
    "nan": ("@llmbench.ttft(p99_ms=float('nan'))", "must be greater than zero, got nan"),
    "negative": ("@llmbench.ttft(p99_ms=-5)", "must be greater than zero, got -5"),
    "slowdown": (
        "@llmbench.ttft()\n@llmbench.no_regression('ttft.p99', max_slow=0.1)",
        "unknown parameter 'max_slow'; did you mean max_slowdown?",
    ),
    "positional": (
        "@llmbench.ttft()\n@llmbench.no_regression('ttft.p99', 0.1)",
        "takes no positional argument 0.1",
    ),
}
HEAD = (
    "import pytest\nfrom pytest_llmbench import Fixed, SyntheticWorkload, Uniform, llmbench, tok_s, ttft\n\n"
)


def write(suite: Suite, **files: str) -> None:
    suite.pytester.makepyfile(**{f"test_{name}": HEAD + body for name, body in files.items()})


def said(result: pytest.RunResult) -> str:
    return f"{result.stdout}\n{result.stderr}"


@pytest.mark.parametrize(("marker", "words"), MISTAKES.values(), ids=list(MISTAKES))
def test_a_mistake_of_the_author(suite: Suite, marker: str, words: str) -> None:
    write(suite, wrong=f"{marker}\ndef test_x(): ...", right="def test_y(): ...")
    result = suite.run("--llm-endpoint=replay")
    assert result.ret == USAGE
    assert words in said(result)
    assert not result.parseoutcomes().get("passed")


def test_what_is_not_ours_keeps_the_status_of_pytest(suite: Suite) -> None:
    write(suite, wrong="@llmbench.tfft()\ndef test_x(): ...", broken="import no_such_module")
    assert suite.run("--llm-endpoint=replay").ret == INTERRUPTED
    write(suite, wrong="def test_x(): ...", broken="raise TypeError('theirs')")
    assert suite.run("--llm-endpoint=replay").ret == INTERRUPTED


def test_a_session_that_ran_something_keeps_it_too(suite: Suite) -> None:
    write(suite, wrong="@llmbench.tfft()\ndef test_x(): ...", right="def test_y(): ...")
    result = suite.run("--llm-endpoint=replay", "--continue-on-collection-errors")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, errors=1)


def test_with_workers(suite: Suite) -> None:
    pytest.importorskip("xdist")
    mistakes = {name: MISTAKES[name] for name in ("keyword", "marker")}
    write(suite, **{name: f"{marker}\ndef test_x(): ..." for name, (marker, _) in mistakes.items()})
    result = suite.run("--llm-endpoint=replay", "-n1")
    assert result.ret == USAGE
    for _, words in mistakes.values():
        assert words in said(result)
    assert "INTERNALERROR" not in said(result)
