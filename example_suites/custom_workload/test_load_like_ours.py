"""The gates of the service, each under a load that its users send.

    pytest example_suites/custom_workload --llm-endpoint=https://host/v1 \\
        --llm-workloads=example_suites/custom_workload/workloads.toml
"""

from pytest_llmbench import TestResult, llmbench, ms, tpot


@llmbench.ttft(p50_ms=150, p95_ms=600, rate=4, requests=1000, workload="mix")
def test_chats_and_documents(llm_result: TestResult) -> None:
    """A mixture; the class of each request is in its record."""
    records = llm_result.observations[-1].records
    assert set(records.class_label) == {"chat", "documents"}


@llmbench.ttft(p50_ms=150, rate=4, requests=1000, workload="from_log", slo=[tpot.p50 <= 20 * ms])
def test_lengths_of_a_log() -> None:
    """Few long prompts slow down the many short ones: that is what the limit is about."""


@llmbench.ttft(p50_ms=100, concurrency=8, requests=200, workload="tickets")
def test_real_questions() -> None:
    """Prompts as they are; each is sent several times, so that a prefix cache is measured with them."""


@llmbench.ttft(p50_ms=200, workload="recorded", arrival="trace")
def test_a_minute_as_it_was() -> None:
    """Arrivals, lengths and order of the trace, once through."""
