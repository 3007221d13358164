"""Is vLLM as quick as on main?"""

import pytest

from pytest_llmbench import Fixed, SyntheticWorkload, llmbench, make_workload

SHAPES = {
    "decode": SyntheticWorkload("random-128-1024", Fixed(128), Fixed(1024)),
    "even": SyntheticWorkload("random-128-128", Fixed(128), Fixed(128)),
    "prefill": SyntheticWorkload("random-2048-128", Fixed(2048), Fixed(128)),
}
"""Few changes slow down what reads much and what writes much alike."""
SHARED = make_workload("shared", input_tokens=256, output_tokens=16, prefix_tokens=768, prefixes=4)


@pytest.mark.parametrize("workload", SHAPES.values(), ids=SHAPES)
@llmbench.job(prompts=200, concurrency=64)
@llmbench.no_regression("output_token_throughput", max_slowdown=0.05)
@llmbench.no_regression("tpot.p50", max_slowdown=0.05)
def test_batch(workload: SyntheticWorkload) -> None:
    """200 prompts, 64 at a time."""


@llmbench.ttft(rate=4, requests=400, p50_ms={"h100": 120}, workload=SHAPES["prefill"])
@llmbench.no_regression("ttft.p50", max_slowdown=0.10)
def test_first_token() -> None:
    """At a rate that leaves no queue."""


@llmbench.prefix_cache(min_ttft_reduction=0.4, rate=2, requests=200, workload=SHARED)
def test_a_shared_prefix_pays() -> None:
    """Against the same requests with the cache off."""
