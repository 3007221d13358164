"""Is TensorRT-LLM as quick as on main? ``--llm-place=pre-merge`` or ``post-merge`` chooses the margin."""

import pytest

from pytest_llmbench import Fixed, SyntheticWorkload, llmbench

MARGIN = {"pre-merge": 0.10, "post-merge": 0.05}
SHAPES = {
    "1k1k": SyntheticWorkload("random-1024-1024", Fixed(1024), Fixed(1024)),
    "8k1k": SyntheticWorkload("random-8192-1024", Fixed(8192), Fixed(1024)),
}


@pytest.mark.parametrize("workload", SHAPES.values(), ids=SHAPES)
@llmbench.job(prompts=40, concurrency=4)
@llmbench.no_regression("tpot.p50", max_slowdown=MARGIN)
@llmbench.no_regression("ttft.p50", max_slowdown=MARGIN)
def test_few_in_flight(workload: SyntheticWorkload) -> None:
    """Latency: the host's share of a step shows here."""


@llmbench.job(prompts=512, concurrency=128, workload=SHAPES["1k1k"])
@llmbench.no_regression("output_token_throughput", max_slowdown=MARGIN)
def test_many_in_flight() -> None:
    """Tokens per second."""
