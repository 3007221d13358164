"""Is llama.cpp's server as quick as limits.toml says?

--llm-calibrate --llm-place=NAME writes the limits of another machine beside those that are there.
"""

from pytest_llmbench import Fixed, SyntheticWorkload, TestResult, llmbench

CHAT = SyntheticWorkload("random-64-32", Fixed(64), Fixed(32))


@llmbench.job(prompts=40, concurrency=4, workload=CHAT, limits_file="limits.toml")
def test_all_slots(llm_result: TestResult) -> None:
    """Tokens per second of four slots together."""
    assert llm_result.completion_rate.point == 1.0


@llmbench.job(prompts=10, concurrency=1, workload=CHAT, limits_file="limits.toml")
def test_one_user(llm_result: TestResult) -> None:
    """First token and pace for one user alone."""
    assert llm_result.completion_rate.point == 1.0
