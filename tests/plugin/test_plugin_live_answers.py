"""Sessions that read what the server answered, from the marker to the report; refused where they mislead."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_suite import SMALL_WARMUP, Suite

from pytest_llmbench.model.request import LIVE_ANSWERS

CHATS = """
from pytest_llmbench import llmbench

CHATS = {
    "sessions": {
        "turns": (3, 6),
        "pause_s": 0.2,
        "input_tokens": (20, 60),
        "output_tokens": (20, 60),
        "system_tokens": 100,
        "answers": "ANSWERS",
    }
}
"""
GATE = """
@llmbench.sessions(workload=CHATS, sessions=4, total_sessions=30, job_p50_s=60)
def test_chats(llm_result): ...
"""
ENGINE = "replay:fast?prefix_caching=true"


def chats(body: str = GATE, answers: str = "live") -> str:
    return CHATS.replace("ANSWERS", answers) + body


def clauses(entry: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in entry["compliance"]["requirements"]}


def test_what_is_live_is_told_and_what_is_not_known_has_no_figure(suite: Suite) -> None:
    suite.write(chats(), SMALL_WARMUP)
    suite.measure(ENGINE, "--llm-inconclusive=pass", scale="standard").assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    workload = next(each["text"] for each in entry["configuration"] if each["item"] == "Workload")
    assert f"live answers: {LIVE_ANSWERS}" in workload
    assert entry["facts"]["workload.answers"]["value"] == "live"
    assert entry["facts"]["workload.deviations"]["value"] == [{"what": "context", "rule": LIVE_ANSWERS}]
    assert entry["metrics"]["turn_cacheable_share[1]"]["point"] > 0
    assert entry["metrics"]["turn_cacheable_share[2+]"]["point"] is None
    assert entry["metrics"]["turn_cached_share[2+]"]["point"] > 0.5
    turns = entry["tables"]["session_turns"]["rows"]
    assert {row[-1] for row in turns[1:]} == {"not known"}
    (told,) = (each for each in entry["validity"]["findings"] if each["check"] == "live_answers")
    assert told["ok"]
    assert told["value"] == pytest.approx(1.0)
    assert LIVE_ANSWERS in (suite.path / "out" / "report.html").read_text("utf-8")
    assert suite.recomputed() == 1


def test_the_ledger_has_the_deviation(suite: Suite) -> None:
    gate = """
    @llmbench.capacity(workload=CHATS, ttft_p99_ms=2000, maximum=8, initial=2)
    def test_users(): ...
    """.replace("\n    ", "\n")
    found = {}
    for answers in ("recorded", "live"):
        suite.write(chats(gate, answers), SMALL_WARMUP)
        suite.measure(ENGINE, "--llm-inconclusive=pass").assert_outcomes(passed=1)
        found[answers] = clauses(suite.report["tests"][0])
    again = ("M-4.3.3-deterministic-seed", "M-4.3-custom-fully-specified", "S-4.3.3-publish-sequences")
    for clause in again:
        assert found["recorded"][clause]["status"] == "met", clause
        assert found["live"][clause]["status"] == "unmet", clause
        assert LIVE_ANSWERS in found["live"][clause]["reason"]
    assert "['context']" in found["live"]["S-5.5.2-workload"]["reason"]


@pytest.mark.slow
def test_systems_are_compared_only_where_that_is_asked_for(suite: Suite) -> None:
    beside = ("--llm-baseline-endpoint=replay", "--llm-inconclusive=pass")
    suite.write(chats(), SMALL_WARMUP)
    refused = suite.measure(ENGINE, *beside)
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["*has live answers, so the two sides would not read the same prompts*"])
    suite.write(chats(answers="live-compared"), SMALL_WARMUP)
    suite.measure(ENGINE, *beside).assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    assert entry["comparisons"]
    assert entry["facts"]["workload.answers"]["value"] == "live-compared"


def test_a_baseline_is_no_measure_of_them_either(suite: Suite) -> None:
    suite.write(chats(), SMALL_WARMUP)
    runs = ("--llm-runs=3", "--llm-inconclusive=pass")
    suite.measure(ENGINE, "--llm-save=monday", *runs).assert_outcomes(passed=1)
    refused = suite.measure(ENGINE, "--llm-compare=monday", *runs)
    refused.assert_outcomes(errors=1)
    refused.stdout.fnmatch_lines(["*has live answers, so the two sides would not read the same prompts*"])


def test_a_job_is_not_the_same_alone(suite: Suite) -> None:
    suite.write(chats(GATE.replace("job_p50_s=60", "max_slowdown=3.0")))
    refused = suite.measure(ENGINE)
    assert refused.ret != 0
    refused.stderr.fnmatch_lines(["*live answers change its prompts each time*"])


def test_the_plan_says_so(suite: Suite) -> None:
    suite.write(chats())
    told = suite.measure(ENGINE, "--llm-plan")
    told.stdout.fnmatch_lines(["*live answers: the history holds what the server answered*"])
