"""Does SGLang serve as quickly as it should on this accelerator, with each set of flags?"""

import pytest

from pytest_llmbench import SyntheticWorkload, Uniform, llmbench

pytestmark = pytest.mark.usefixtures("llm_sut")
"""Each test once for each set of flags: pytest asks while it collects who uses the fixture."""
RANDOM = SyntheticWorkload("random-1024-256", Uniform(1, 1024), Uniform(1, 256))


@llmbench.job(prompts=500, workload=RANDOM, min_output_tok_s={"h100": 3_800, "mi300": 3_050})
def test_offline_throughput() -> None:
    """500 prompts at once."""


@llmbench.job(
    prompts=200,
    rate=2,
    workload=RANDOM,
    ttft_p50_ms={"h100": 86, "mi300": 115},
    itl_p50_ms=10,
    e2e_p50_ms={"h100": 2_000, "mi300": 2_600},
)
def test_online_latency() -> None:
    """Two requests a second."""
