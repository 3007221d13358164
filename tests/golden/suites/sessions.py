"""Loads of sessions: the tests of their own, and the tests of the draft that take them."""

from pytest_llmbench import llmbench

CHAT = {"sessions": {"turns": (2, 4), "input_tokens": (30, 100), "output_tokens": (20, 40), "pause_s": 0.1}}
AGENT = {"sessions": {"turns": (4, 8), "input_tokens": (300, 900), "output_tokens": (60, 200)}}
MIX = {"chat": (CHAT, 0.7), "agent": (AGENT, 0.3)}
TALKS = {
    "sessions": {
        "turns": (2, 4),
        "pause_s": (0.1, 0.5),
        "input_tokens": (50, 300),
        "output_tokens": (20, 60),
        "system_tokens": 512,
    }
}
IDLE = {"sessions": {"turns": 4, "own_tokens": 1008, "input_tokens": 16, "output_tokens": 16, "pause_s": 1.0}}


@llmbench.sessions(
    workload=CHAT, sessions=4, total_sessions=40, job_p95_s=60, min_session_goodput=0.95, job_s=60
)
def test_so_many_at_once() -> None: ...


@llmbench.sessions(workload=CHAT, sessions=4, total_sessions=20, runs=3, job_p50_s=0.1)
def test_three_runs_too_slow() -> None: ...


@llmbench.sessions(workload=CHAT, sessions=4, total_sessions=40, steady=True, job_p50_s=60)
def test_a_sample() -> None: ...


@llmbench.sessions(workload=CHAT, rate=5, total_sessions=40, max_slowdown=3)
def test_an_open_loop() -> None: ...


@llmbench.sessions(workload=MIX, rate=2, total_sessions=40, job_p50_s=60)
def test_a_mixture() -> None: ...


@llmbench.sessions(workload=CHAT, job_p50_s=20, find="jobs_per_hour", maximum=400, duration_s=5)
def test_jobs_per_hour() -> None: ...


@llmbench.capacity(workload=CHAT, min_sessions=2, ttft_p99_ms=500, maximum=16)
def test_capacity_of_sessions() -> None: ...


@llmbench.prefix_cache(workload=TALKS, total_sessions=60, min_turn_hit_rate={"1": 0.9, "2+": 0.9})
def test_prefix_cache_by_turn() -> None: ...


@llmbench.fairness(workload=MIX, sessions=12, max_inflation={"chat": 2.0})
def test_classes_of_sessions() -> None: ...


@llmbench.memory_pressure(workload=IDLE, sessions=(4, 8, 16), min_turn_hit_rate={"2+": 0.9}, min_sessions=8)
def test_idle_sessions() -> None: ...
