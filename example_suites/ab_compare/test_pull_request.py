"""Is this build slower than main?

pytest example_suites/ab_compare --llm-endpoint=http://pr:8000/v1 --llm-baseline-endpoint=http://main:8000/v1
"""

import pytest

from pytest_llmbench import Fixed, SyntheticWorkload, TestResult, llmbench

SHAPES = {
    "chat": SyntheticWorkload("chat-512-128", Fixed(512), Fixed(128)),
    "summary": SyntheticWorkload("summary-3072-32", Fixed(3072), Fixed(32)),
}
"""What decodes much and what reads much: few changes slow down both."""


@pytest.mark.parametrize("workload", SHAPES.values(), ids=SHAPES)
@llmbench.ttft(rate=4, requests=300)
@llmbench.no_regression("ttft.p50", max_slowdown=0.05)
@llmbench.no_regression("tpot.p50", max_slowdown=0.05)
def test_latency(workload: SyntheticWorkload, llm_result: TestResult) -> None:
    """At a rate that both builds can take."""
    gated = [row for row in llm_result.comparisons if row.gated]
    assert len(gated) == 2
    assert all(row.paired for row in gated)


@llmbench.ttft(concurrency=32, requests=400)
@llmbench.no_regression("output_token_throughput", max_slowdown=0.05)
def test_tokens_per_second() -> None:
    """With 32 requests in flight, whatever the rate is that this makes."""
