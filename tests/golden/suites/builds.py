"""Two builds in turns, the candidate a twentieth slower."""

from pytest_llmbench import llmbench


@llmbench.ttft(rate=20)
@llmbench.no_regression("ttft.p50", max_slowdown=0.5)
@llmbench.no_regression("tpot.p50", max_slowdown=0.01)
def test_slower() -> None: ...
