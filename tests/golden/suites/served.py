"""A few loads that are sent."""

from pytest_llmbench import llmbench

CHAT = {"sessions": {"turns": (2, 3), "input_tokens": (30, 100), "output_tokens": (8, 16)}}


@llmbench.ttft(rate=20, requests=40, p50_ms=60_000)
def test_open_loop() -> None: ...


@llmbench.goodput(ttft_ms=60_000, min_share=0.1, concurrency=4, requests=40)
def test_closed_loop() -> None: ...


@llmbench.job(prompts=20, concurrency=4, max_makespan_s=600)
def test_job() -> None: ...


@llmbench.sessions(workload=CHAT, sessions=3, total_sessions=12, job_p50_s=600)
def test_sessions() -> None: ...
