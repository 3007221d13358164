"""Extension points: every example of the reference page runs."""

from __future__ import annotations

import inspect
import textwrap

import pytest
from plugin_suite import Suite

from pytest_llmbench.plugin import hookspecs


def example(hook: str) -> str:
    """The code block of a hook's docstring."""
    doc = inspect.getdoc(getattr(hookspecs, hook)) or ""
    return textwrap.dedent(doc.partition("Example::\n")[2])


@pytest.mark.parametrize("hook", [name for name in vars(hookspecs) if name.startswith("pytest_llmbench_")])
def test_every_hook_has_an_example(hook: str) -> None:
    assert f"def {hook}(" in example(hook)


def test_workloads_by_name_disclosure_and_an_observer_of_results(suite: Suite) -> None:
    hooks = ("workloads", "disclosure", "result")
    suite.write(
        """
        @llmbench.ttft(rate=20, workload="short-chat")
        def test_seen(llm_result):
            assert llm_result.facts.value("workload.name") == "short-chat"
            assert llm_result.facts.value("workload.standard") is False
            assert llm_result.facts.value("sut.software.version") == "unknown"
        """,
        conftest="\n".join(example(f"pytest_llmbench_{hook}") for hook in hooks),
    )
    result = suite.measure("replay", "-s")
    result.assert_outcomes(passed=1)
    result.stdout.re_match_lines([r".*test_seen \d+\.\d+.*"])


def test_arrivals_by_name(suite: Suite) -> None:
    suite.write(
        """
        @llmbench.ttft(rate=20, arrival="bursts", requests=50)
        def test_x(llm_result):
            starts = llm_result.observations[0].records.scheduled_ns
            assert len({*starts.tolist()}) == 10
        """,
        conftest=example("pytest_llmbench_arrivals"),
    )
    suite.measure("replay").assert_outcomes(passed=1)
    suite.write(
        "@llmbench.ttft(rate=2, arrival='bursts')\ndef test_x(): ...",
        conftest="",
    )
    result = suite.measure("replay")
    assert "must be one of poisson, uniform, gamma, trace, got 'bursts'" in result.stderr.str(), (
        "it was of that suite"
    )


@pytest.mark.parametrize(
    ("gives", "said"),
    [
        ("{'poisson': len}", "gives 'poisson': that name is taken"),
        ("{'mine': 3}", "'mine' must be a function of rate, count and seed, got 3"),
        ("{'mine': lambda rate, count, seed: [2.0, 1.0] * count}", "mine gives no 50 offsets"),
        ("{'mine': lambda rate, count, seed: iter([0.5])}", "mine gives no 50 offsets"),
        ("{'mine': lambda rate, count, seed: ['soon'] * count}", "mine gives no 50 offsets"),
    ],
)
def test_arrivals_that_are_none(suite: Suite, gives: str, said: str) -> None:
    suite.write(
        "@llmbench.ttft(rate=20, arrival='mine', requests=50)\ndef test_x(): ...",
        conftest=f"def pytest_llmbench_arrivals(config):\n    return {gives}",
    )
    result = suite.measure("replay")
    assert said in result.stdout.str() + result.stderr.str()
    assert result.parseoutcomes().get("passed", 0) == 0
