"""Tests of the draft with workloads of sessions, from marker to report, records and recomputed figures."""

from __future__ import annotations

import pytest
from plugin_suite import SMALL_WARMUP, Suite

PREFIX_CACHE = """
TALKS = {
    "sessions": {
        "turns": (2, 4),
        "pause_s": (0.1, 0.5),
        "input_tokens": (50, 300),
        "output_tokens": (20, 60),
        "system_tokens": 512,
    }
}

@llmbench.prefix_cache(workload=TALKS, total_sessions=150, min_turn_hit_rate={"1": 0.9, "2+": 0.9})
def test_talks(llm_result):
    metrics = llm_result.metrics
    assert metrics["turn_cached_share[2+]"].point <= metrics["turn_cacheable_share[2+]"].point

@llmbench.prefix_cache(workload=TALKS, total_sessions=40, min_turn_ttft_reduction={"2+": 0.99})
def test_too_much_to_ask(): ...
"""


@pytest.mark.slow
def test_a_prefix_cache_by_turn(suite: Suite) -> None:
    suite.write(PREFIX_CACHE, SMALL_WARMUP)
    suite.measure("replay:fast", scale="standard").assert_outcomes(passed=1, failed=1)
    talks, failed = suite.report["tests"]
    assert [level["role"] for level in talks["levels"]] == ["disabled", "cold", "warm"]
    assert talks["load"]["sessions"] == 8
    objectives = {each["metric"]: each["verdict"] for each in talks["gate"]["objectives"]}
    assert objectives == {"turn_cache_hit_rate[1]": "pass", "turn_cache_hit_rate[2+]": "pass"}
    assert [each["verdict"] for each in failed["gate"]["objectives"]] == ["fail"]
    for page in ("summary.md", "report.html"):
        assert "Cache Effectiveness by Turn" in (suite.path / "out" / page).read_text("utf-8")
    assert suite.recomputed() == 2


FAIRNESS = """
CHAT = {"sessions": {"turns": (2, 4), "input_tokens": (30, 100), "output_tokens": (20, 40), "pause_s": 0.1}}
AGENT = {"sessions": {"turns": (4, 8), "input_tokens": (300, 900), "output_tokens": (60, 200)}}

MIX = {"chat": (CHAT, 0.7), "agent": (AGENT, 0.3)}

@llmbench.fairness(workload=MIX, sessions=12, max_inflation={"chat": 2.0})
def test_chats_beside_agents(llm_result):
    assert llm_result.metrics["job_time[agent].p50"].point > 0

@llmbench.sessions(workload=MIX, total_sessions=60, job_p50_s=60)
def test_together(): ...
"""


@pytest.mark.slow
def test_classes_of_sessions(suite: Suite) -> None:
    suite.write(FAIRNESS, SMALL_WARMUP)
    suite.measure("replay:fast?max_num_seqs=4", scale="standard").assert_outcomes(passed=1, failed=1)
    fair, _ = suite.report["tests"]
    assert [level["label"] for level in fair["levels"]] == ["chat alone", "agent alone", "mix"]
    (judged,) = fair["gate"]["objectives"]
    assert (judged["metric"], judged["verdict"]) == ("ttft_inflation[chat].p50", "fail")
    assert fair["metrics"]["ttft_inflation[chat].p50"]["lower"] > 2.0
    for page in ("summary.md", "report.html"):
        assert "Per-Class Results of Sessions" in (suite.path / "out" / page).read_text("utf-8")
    assert suite.recomputed() == 2


MEMORY = """
TALKS = {
    "sessions": {"turns": 4, "own_tokens": 1008, "input_tokens": 16, "output_tokens": 16, "pause_s": 1.0}
}

@llmbench.memory_pressure(workload=TALKS, sessions=(4, 8, 16), min_turn_hit_rate={"2+": 0.9}, min_sessions=8)
def test_eight_users(llm_result):
    assert llm_result.max_sessions.point == 8

@llmbench.memory_pressure(workload=TALKS, sessions=(4, 8, 16), min_turn_hit_rate={"2+": 0.9}, min_sessions=16)
def test_sixteen_users(): ...

@llmbench.memory_pressure(workload=TALKS, sessions=(4, 8))
def test_no_pressure(): ...
"""


def test_idle_sessions(suite: Suite) -> None:
    """Ten contexts of 71 blocks fit."""
    suite.write(MEMORY, SMALL_WARMUP)
    engine = "replay:fast?kv_blocks=712&prefix_caching=on&context_limit_tokens=2048"
    suite.measure(engine, scale="standard").assert_outcomes(passed=1, failed=1, errors=1)
    eight, sixteen, roomy = suite.report["tests"]
    assert [level["label"] for level in eight["levels"]] == [f"{n} sessions at once" for n in (4, 8, 16)]
    objectives = {each["metric"]: each["verdict"] for each in eight["gate"]["objectives"]}
    assert objectives == {"max_sessions": "pass", "pressed_levels": "pass"}
    assert {each["metric"]: each["verdict"] for each in sixteen["gate"]["objectives"]}[
        "max_sessions"
    ] == "fail"
    (told,) = (each for each in roomy["validity"]["findings"] if each["check"] == "memory_pressure")
    assert not told["ok"]
    assert "no number of sessions put pressure on memory" in told["message"]
    for page in ("summary.md", "report.html"):
        assert "Memory Pressure by Idle Sessions" in (suite.path / "out" / page).read_text("utf-8")
    assert suite.recomputed() == 3


JOBS = """
CHAT = {"sessions": {"turns": (2, 4), "input_tokens": (30, 100), "output_tokens": (20, 40), "pause_s": 0.1}}
CLOSED = {"workload": CHAT, "sessions": 4, "total_sessions": 40}

@llmbench.sessions(**CLOSED, job_p95_s=60, min_session_goodput=0.95, job_s=60)
def test_far_limits(): ...

@llmbench.sessions(**CLOSED, runs=3, job_p50_s=60)
def test_three_runs(): ...

@llmbench.sessions(**CLOSED, runs="auto", job_p50_s=60)
def test_as_many_as_needed(): ...

@llmbench.sessions(**CLOSED, steady=True, job_p50_s=60)
def test_a_sample(): ...

@llmbench.sessions(workload=CHAT, rate=5, total_sessions=40, job_p50_s=60)
def test_an_open_loop(): ...
"""


@pytest.mark.slow
def test_so_many_sessions_at_once_are_a_job(suite: Suite) -> None:
    suite.write(JOBS, SMALL_WARMUP)
    suite.measure("replay:fast", scale="standard")
    far, three, auto, sample, opened = suite.report["tests"]
    for test, kind, runs in ((far, "assumed_spread", 1), (three, "runs", 3), (auto, "assumed_spread", 1)):
        metrics = [test["metrics"][name] for name in ("job_time.p95", "session_goodput", "ttft.p50")]
        assert [each["kind"] for each in metrics] == [kind] * 3
        assert {each["verdict"] for each in test["gate"]["objectives"]} == {"pass"}
        assert {each["runs"] for each in metrics} == {runs}
    for test in (sample, opened):
        kinds = {test["metrics"][name]["kind"] for name in ("job_time.p50", "session_goodput")}
        assert kinds <= {"sample", "crude"}
    assert [test["metrics"]["job_time.p50"]["n"] for test in (far, sample)] == [40, 36]
    waves = [test["facts"].get("load.first_wave", {}).get("value") for test in (far, sample, opened)]
    assert waves == ["included", "left out", None]
    assert suite.recomputed() == 5


def test_the_steady_state_of_sessions_needs_ten_waves(suite: Suite) -> None:
    suite.write("""
        @llmbench.sessions(sessions=8, total_sessions=79, steady=True)
        def test_few(): ...
    """)
    result = suite.measure("replay")
    assert "steady needs 10 sessions for each slot: 80 or more, not 79" in str(result.stderr)


def test_the_steady_state_of_sessions_is_asked_of_a_closed_loop(suite: Suite) -> None:
    suite.write("""
        @llmbench.sessions(rate=5, steady=True)
        def test_open(): ...
    """)
    result = suite.measure("replay:fast", scale="standard")
    assert "steady needs sessions: an open loop measures the steady state anyway" in str(result.stderr)
