"""What does the gateway add to the engine behind it?

    pytest example_suites/gateway/test_overhead.py \\
        --llm-endpoint=https://gateway/v1 --llm-baseline-endpoint=http://engine:8000/v1
"""

from pytest_llmbench import TestResult, llmbench


@llmbench.ttft(rate=4, requests=300)
@llmbench.no_regression("ttft.p50", max_slowdown=0.25)
@llmbench.no_regression("tpot.p50", max_slowdown=0.05)
def test_added_latency(llm_result: TestResult) -> None:
    """The first token may wait for authentication and filters; those after it may not."""
    assert llm_result.completion_rate.point == 1.0
    for row in llm_result.comparisons:
        if row.gated:
            print(f"{row.metric}: {row.change.point:+.1%}, detectable {row.mde:.1%}, {row.verdict}")


@llmbench.ttft(concurrency=16, requests=300)
@llmbench.no_regression("output_token_throughput", max_slowdown=0.10)
def test_nothing_is_held_back_under_load() -> None:
    """A pool of connections that is too small shows here, and in no test with one user."""
