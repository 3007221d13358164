"""Is the chat endpoint as quick as its users were promised?

pytest example_suites/ci_gate --llm-endpoint=https://host/v1 --llm-require --llm-report=llm-report
"""

from pytest_llmbench import (
    SyntheticWorkload,
    TestResult,
    Uniform,
    completion_rate,
    llmbench,
    ms,
    percent,
    tpot,
)

PEAK_RATE = 8
"""Requests per second in the busiest hour."""
TTFT_MS = 500
TPOT_MS = 30
CHAT = SyntheticWorkload("chat", Uniform(64, 1024), Uniform(32, 256))
"""Lengths as in the logs of the service."""


@llmbench.ttft(
    p50_ms=200,
    p99_ms=TTFT_MS,
    rate=PEAK_RATE,
    requests=2000,
    workload=CHAT,
    slo=[tpot.p99 <= TPOT_MS * ms, completion_rate >= 99 * percent],
)
def test_peak_hour() -> None:
    """The peak rate as a Poisson stream: each limit on the whole interval."""


@llmbench.ttft(
    p95_ms=2 * TTFT_MS, rate=PEAK_RATE, arrival="gamma", burstiness=0.25, requests=1000, workload=CHAT
)
def test_bursts(llm_result: TestResult) -> None:
    """The same rate in bursts: twice the variation of a Poisson stream, as after an outage or a push."""
    assert llm_result.completion_rate.point == 1.0


@llmbench.goodput(
    ttft_ms=TTFT_MS, tpot_ms=TPOT_MS, min_share=0.97, rate=PEAK_RATE, requests="auto", workload=CHAT
)
def test_nearly_everyone_gets_both() -> None:
    """The share of requests that kept every promise; the load ends as soon as that is decided."""
