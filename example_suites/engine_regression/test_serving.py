"""Does the engine still serve as quickly as it did, with each set of flags?"""

import os

import pytest

from pytest_llmbench import (
    Fixed,
    SyntheticWorkload,
    TestResult,
    e2e,
    llmbench,
    make_workload,
    ms,
    output_token_throughput,
    tok_s,
    tpot,
)

pytestmark = pytest.mark.usefixtures("llm_sut")
"""Each test once for each set of flags: pytest asks while it collects who uses the fixture."""

LIMITS = {
    "simulated": {"tok_s": 1000, "ttft_ms": 60, "tpot_ms": 12, "long_ttft_ms": 600},
    "h100": {"tok_s": 3800, "ttft_ms": 86, "tpot_ms": 12, "long_ttft_ms": 500},
    "mi300x": {"tok_s": 3050, "ttft_ms": 115, "tpot_ms": 14, "long_ttft_ms": 700},
}
"""What has to hold, by accelerator: data, not branches."""
HOLDS = LIMITS[os.environ.get("ACCELERATOR", "simulated")]

RANDOM = SyntheticWorkload("random-1024-128", Fixed(1024), Fixed(128))
LONG = SyntheticWorkload("random-8192-16", Fixed(8192), Fixed(16))
SHARED = make_workload(
    "shared-75", input_tokens=256, output_tokens=16, prefix_tokens=768, prefix_fraction=1.0, prefixes=4
)
"""Three quarters of each prompt are one of four prefixes."""


@llmbench.ttft(
    concurrency=32,
    requests=500,
    workload=RANDOM,
    slo=[output_token_throughput >= HOLDS["tok_s"] * tok_s],
)
def test_offline_throughput() -> None:
    """As many tokens a second as 32 requests in flight allow."""


@pytest.mark.parametrize("rate", [1, 4])
@llmbench.ttft(
    p50_ms=HOLDS["ttft_ms"], requests=400, workload=RANDOM, slo=[tpot.p50 <= HOLDS["tpot_ms"] * ms]
)
def test_online_latency(rate: float) -> None:
    """The first token and those after it, at each rate."""


@llmbench.ttft(
    p50_ms=HOLDS["long_ttft_ms"], concurrency=1, requests=100, workload=LONG, slo=[e2e.p50 <= 2000 * ms]
)
def test_a_long_prompt_alone(llm_result: TestResult) -> None:
    """Prefill of 8192 tokens, and nothing of them lost."""
    assert llm_result.completion_rate.point == 1.0


@llmbench.prefix_cache(min_ttft_reduction=0.4, min_hit_rate=0.6, rate=2, requests=200, workload=SHARED)
def test_a_shared_prefix_pays() -> None:
    """TTFT with the prefix in the cache against TTFT with the cache off, on the same requests."""
