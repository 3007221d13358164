"""An endpoint that generates nothing."""

from pytest_llmbench import llmbench


@llmbench.non_generative(latency_p50_ms=5000, min_requests_per_s=1, concurrency=4, requests=200)
def test_closed_loop() -> None: ...


@llmbench.non_generative(rate=20, requests=100, latency_p50_ms=0.001)
def test_open_loop_too_slow() -> None: ...
