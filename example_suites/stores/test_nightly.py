from pytest_llmbench import llmbench


@llmbench.ttft(rate=20, requests=30)
@llmbench.no_regression("tpot.p50", max_slowdown=0.05)
def test_no_slower_than_the_nights_before() -> None: ...
