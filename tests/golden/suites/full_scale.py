"""One test that meets every clause."""

from pytest_llmbench import llmbench


@llmbench.ttft(p99_ms=5_000, rate=20, compliance="unconditional")
def test_first_token() -> None: ...
