"""What is beyond the draft, the draft's test of one load in all its ways, and verdicts of every kind."""

from pytest_llmbench import e2e, llmbench, ms


@llmbench.job(prompts=120, concurrency=32, min_output_tok_s=10, ttft_p99_ms=60_000, tpot_p50_ms=500)
def test_job() -> None: ...


@llmbench.job(prompts=100, runs=3, max_makespan_s=3_600, e2e_p99_ms=1)
def test_job_of_three_runs_too_slow() -> None: ...


@llmbench.job(prompts=60, rate=20, itl_p99_ms=5_000)
def test_job_at_a_rate() -> None: ...


@llmbench.goodput(ttft_ms=500, tpot_ms=100, min_share=0.9, rate=20, requests=300)
def test_goodput() -> None: ...


@llmbench.goodput(ttft_ms=1, min_share=0.9, concurrency=8, requests=100)
def test_goodput_that_there_is_not() -> None: ...


@llmbench.ttft(rate=10, requests=1_200, p50_ms=200, p99_ms=100_000, compliance="conditional")
def test_open_loop() -> None: ...


@llmbench.ttft(concurrency=8, requests=200, p50_ms=60_000, slo=[e2e.p99 <= 900_000 * ms])
def test_closed_loop() -> None: ...


@llmbench.ttft(rate=10, requests=100, p50_ms=24)
def test_too_few_to_decide() -> None: ...


@llmbench.ttft(rate=20, arrival="gamma", burstiness=0.5, requests="auto", max_requests=400, p50_ms=500)
def test_as_many_as_needed() -> None: ...


@llmbench.ttft(rate=200, requests=400, p50_ms=500)
def test_overload() -> None: ...


@llmbench.itl(capacity_rps=20, levels_percent=[25, 75], p50_ms=50)
def test_levels_of_a_given_capacity() -> None: ...


@llmbench.throughput(load_model="closed", min_concurrency=4, max_concurrency=24, concurrency_step=10)
def test_closed_throughput() -> None: ...
