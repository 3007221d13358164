"""All ten tests of the draft on one system, each with what it must hold.

    pytest example_suites/full_methodology --llm-endpoint=replay --llm-scale=full --llm-report=out
    pytest example_suites/full_methodology --llm-scale=quick --llm-inconclusive=pass \\
        --llm-endpoint='sim:fast?max_num_seqs=32&context_limit_tokens=16384&kv_blocks=4160'

The second runs in real time, in about six minutes on two cores; levels of seconds leave some intervals open.
Its engine is less quick than ``sim`` alone (20,000 tokens a second, near what generator and engine can handle
on two cores), and its memory is short at eight long prompts.

The limits are those of the embedded engine's preset ``fast``; for a system of your own copy the file and put
in yours. Tests that ask for the same load are measured once: the search for the saturation rate of the
throughput test also sets the levels of the tradeoff and of the inter-token latency. What a test cannot do
with a system (no switch for its prefix cache, no guardrails) it says before anything is sent.
"""

from pytest_llmbench import TestResult, llmbench, ms, ttft


@llmbench.ttft(p50_ms=100, rate=40)
def test_time_to_first_token() -> None:
    """5.1: Poisson arrivals at about a third of what the engine can do."""


@llmbench.throughput(min_output_tok_s=2_000, ttft_p99_ms=500)
def test_output_token_throughput() -> None:
    """5.2: the highest load that does not saturate, and the highest with TTFT P99 under 500 ms."""


@llmbench.tradeoff(ttft_p99_ms=500)
def test_throughput_latency_tradeoff(llm_result: TestResult) -> None:
    """5.3: from 10 % to 120 % of capacity and on until it saturates; knee, saturation, operating point."""
    assert [level for level in llm_result.levels if level.saturated]


@llmbench.itl(p50_ms=50, p95_ms=500)
def test_inter_token_latency() -> None:
    """5.4: at 25, 50, 75 and 90 % of saturation."""


@llmbench.capacity(min_concurrency=8, ttft_p99_ms=500)
def test_concurrent_request_capacity() -> None:
    """5.5: doubling and bisection; completion, TTFT and out-of-memory errors decide."""


@llmbench.fairness(min_jain=0.3)
def test_scheduling_fairness() -> None:
    """5.6: short and long requests in one queue against each class alone."""


@llmbench.prefix_cache(min_ttft_reduction=0.1, min_hit_rate=0.5)
def test_prefix_cache_effectiveness() -> None:
    """5.7: the same requests with the cache off, on and empty, on and filled."""


@llmbench.memory_pressure(ttft_p99_ms=10_000)
def test_memory_pressure() -> None:
    """5.8: deliberate overload; on anything but the embedded engine it wants --llm-allow-overload."""


@llmbench.long_context(max_exponent=2.2)
def test_long_context_scaling(llm_result: TestResult) -> None:
    """5.9: the exponent k in TTFT ~ length^k."""
    assert llm_result.prefill_exponent.lower > 0.5


@llmbench.guardrail(max_overhead_ms=500, slo=[ttft["full@50%"].p50 <= 1000 * ms])
def test_guardrail_overhead() -> None:
    """5.10: without guardrails, with each filter, with all of them."""
