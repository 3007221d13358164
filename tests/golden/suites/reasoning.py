"""Replies with a phase of reasoning."""

from pytest_llmbench import llmbench


@llmbench.reasoning(rate=10, requests=60, ttfo_p95_ms=20_000, output_itl_p99_ms=100, max_think_tokens_mean=20)
def test_reasoning() -> None: ...
