"""The quickstart: is the first token quick enough, under a load like the one you expect?

    pytest example_suites/quickstart                           # the embedded engine, as pytest.ini says
    pytest example_suites/quickstart --llm-endpoint=https://host/v1

Each marked test is measured before its body runs. The limits are judged on the whole confidence interval,
and the judgement is the outcome of the test.
"""

from pytest_llmbench import TestResult, llmbench


@llmbench.ttft(p50_ms=50, p99_ms=250, rate=40, requests=1500)
def test_first_token_is_quick() -> None:
    """The draft's Synthetic-Uniform workload, arriving as a Poisson stream.

    Requests that queue behind each other tell less than independent ones: 1500 leave room for a P99.
    """


@llmbench.ttft(p50_ms=50, concurrency=4, requests=200)
def test_four_users_at_once(llm_result: TestResult) -> None:
    """The body may look further: whatever was measured is in ``llm_result``."""
    assert llm_result.completion_rate.point == 1.0
    assert llm_result.tpot.p50.upper < 20
