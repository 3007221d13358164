"""An engine that resets every fifth request."""

from pytest_llmbench import llmbench


@llmbench.ttft(rate=20, requests=100, p50_ms=500)
def test_void() -> None: ...


@llmbench.goodput(ttft_ms=500, min_share=0.95, max_error_share=0.5, rate=20, requests=200)
def test_errors_are_allowed() -> None: ...


@llmbench.capacity(min_concurrency=8, ttft_p99_ms=500, maximum=16)
def test_no_capacity() -> None: ...
