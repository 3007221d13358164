"""Users who cut requests, from the marker to the report, and recomputed from it."""

from __future__ import annotations

from collections import Counter

import pytest
from plugin_suite import Suite
from whole_records import whole_records

IMPATIENT = """
from pytest_llmbench import llmbench, make_workload

IMPATIENT = make_workload("synthetic-uniform", cut_share=0.4, cut_after_s=(0.01, 0.3))

@llmbench.goodput(ttft_ms=1000, min_share=0.9, rate=20, requests=200, workload=IMPATIENT)
def test_good(llm_result):
    assert llm_result.metrics["cut_share"].point == 0.4
    assert llm_result.completion_rate.point == 1.0

@llmbench.ttft(p50_ms=1000, rate=20, requests=200, workload=IMPATIENT)
def test_first_token(): ...
"""


def test_what_is_cut_is_told_and_counts_in_nothing_else(suite: Suite) -> None:
    suite.write(IMPATIENT)
    suite.measure("replay", scale="standard").assert_outcomes(passed=2)
    good, entry = suite.report["tests"]
    assert good["metrics"]["goodput_share"]["n"] == 120
    assert entry["counts"]["ok"] == 120
    assert entry["counts"]["cut_by_user"] == 80
    assert entry["metrics"]["ttft.p50"]["n"] == 120
    assert entry["metrics"]["completion_rate"]["n"] == 120
    (told,) = (each for each in entry["validity"]["findings"] if each["check"] == "planned_cuts")
    assert told["ok"]
    assert "the plan cuts 80 of 200 requests" in told["message"]
    workload = next(each["text"] for each in entry["configuration"] if each["item"] == "Workload")
    assert "users cut 40 % of the requests" in workload
    clauses = {each["id"]: each for each in entry["compliance"]["requirements"]}
    assert "users cut 40 % of the requests" in clauses["O-4.3-custom-workload"]["reason"]
    assert clauses["M-4.3-custom-fully-specified"]["status"] == "met"
    page = (suite.path / "out" / "report.html").read_text("utf-8")
    assert "120 of 120 requests completed" in page
    assert "the plan cuts another 80" in page
    assert suite.recomputed() == 2


def test_the_records_say_what_was_planned_and_what_happened(suite: Suite) -> None:
    suite.write(IMPATIENT)
    suite.measure("replay", scale="standard").assert_outcomes(passed=2)
    path, *_ = (suite.path / "out" / "records").glob("*.jsonl.gz")
    measured = [line for line in whole_records(path) if line["phase"] == "measure"]
    cut = [line for line in measured if line["cut_after_ns"] is not None]
    assert {line["outcome"] for line in cut} == {"cut_by_user"}
    assert len(cut) == 80
    ends = Counter(line["end_before_cut"] for line in cut)
    assert set(ends) == {None, "ok"}
    for line in cut:
        took_ns = line["finished_ns"] - line["submitted_ns"]
        assert (took_ns == line["cut_after_ns"]) == (line["end_before_cut"] is None)


@pytest.mark.parametrize(
    "marker",
    [
        "throughput(workload=IMPATIENT, ttft_p99_ms=2000)",
        "capacity(workload=IMPATIENT, ttft_p99_ms=2000)",
        "memory_pressure(workload=IMPATIENT, capacity=8)",
    ],
)
def test_searches_and_levels_do_not_take_them_for_failures(suite: Suite, marker: str) -> None:
    suite.write(f"""
        from pytest_llmbench import llmbench, make_workload

        IMPATIENT = make_workload("synthetic-uniform", cut_share=0.4, cut_after_s=(0.01, 0.3))

        @llmbench.{marker}
        def test_levels(): ...
    """)
    suite.measure("replay:fast?max_num_seqs=16", "--llm-allow-overload")
    (entry,) = suite.report["tests"]
    assert entry["counts"]["cut_by_user"] > 0
    again = {"P-5.5.2-criterion-completion-99", "P-5.8.3-monitor", "P-5.8.4-completion"}
    told = [each for each in entry["compliance"]["requirements"] if each["id"] in again]
    assert all(each["status"] in ("met", "not_applicable") for each in told), told
    assert [level for level in entry["levels"] if level["completion_ratio"] == 1.0]
    assert all("cut_by_user" not in level["errors"] for level in entry["levels"])
    assert all(
        level["n_ok"] + level["n_failed"] < level["n_submitted"]
        for level in entry["levels"]
        if level["n_submitted"] > 20
    )


def test_code_completion_and_its_sessions(suite: Suite) -> None:
    suite.write("""
        @llmbench.ttft(rate=20, requests=100, workload="profile:COMP", p50_ms=2000)
        def test_completion(llm_result):
            assert llm_result.metrics["cut_share"].point == 0.25

        @llmbench.sessions(
            sessions=4,
            workload={"sessions": {"turns": 4, "input_tokens": 30, "output_tokens": 60, "pause_s": 0.2,
                                   "cut_share": 0.3, "cut_after_s": 0.05}},
            min_session_goodput=0.8,
            ttft_ms=1000,
        )
        def test_chats(llm_result):
            assert llm_result.metrics["session_completion_rate"].point == 1.0
            assert llm_result.metrics["cut_share"].point > 0.2
    """)
    suite.measure("replay", scale="standard").assert_outcomes(passed=2)
