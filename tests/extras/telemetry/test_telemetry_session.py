"""Whole sessions: a served engine with a power model, sampled beside this host; planted faults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from canned_http import Canned, Serve
from plugin_suite import SMALL_WARMUP, Suite, refused
from test_telemetry_sources import DCGM

from pytest_llmbench.__main__ import main

ONE_LOAD = """
from pytest_llmbench import J, W, energy_per_output_token, llmbench, mean_power

@llmbench.ttft(p99_ms=60_000, concurrency=4, requests=20, slo=[energy_per_output_token <= 1000 * J])
def test_energy(llm_result):
    assert llm_result.mean_power.point > 70
"""
POWER = "fast?idle_w=70&step_w=300&decode_mj_per_token=50"


def entry(suite: Suite) -> dict[str, Any]:
    (test,) = suite.report["tests"]
    found: dict[str, Any] = test
    return found


@pytest.mark.usefixtures("however_late")
def test_a_served_engine_is_sampled_with_this_host(suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
    suite.write(ONE_LOAD, SMALL_WARMUP)
    sut = suite.path / "sut.toml"
    sut.write_text("[telemetry]\ninterval_s = 0.1\n[prices]\nper_hour = 3.6\n")
    ran = suite.measure(f"sim:{POWER}", f"--llm-sut={sut}", "--llm-records=full")
    ran.assert_outcomes(passed=1)
    metrics = entry(suite)["metrics"]
    rate = metrics["output_token_throughput"]["point"]
    assert metrics["tokens_per_joule"]["point"] == pytest.approx(
        rate / metrics["mean_power"]["point"], rel=1e-3
    )
    assert metrics["tokens_per_dollar"]["point"] == pytest.approx(rate * 1000, rel=1e-3)
    kinds = {row[0].rpartition(", ")[2] for row in entry(suite)["tables"]["machine"]["rows"]}
    assert kinds >= {"gpu", "node", "process"}
    head, *lines = map(json.loads, (suite.path / "out" / "telemetry.jsonl").read_text().splitlines())
    assert head["schema"].startswith("pytest-llmbench/telemetry/")
    told = [line for line in lines if "power_w" in line]
    assert {line["nodeid"] for line in told} == {"test_suite.py::test_energy"}
    assert told[0]["s"] < 0 < told[-1]["s"]
    assert main(["recompute", str(suite.path / "out")]) == 0
    assert "identical" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("counter_resets", "its energy counter fell"),
        ("device_gone", "it went while the load ran"),
        ("silent", "the embedded engine's model gave no answer"),
    ],
)
def test_planted_faults_of_the_telemetry_are_told_and_cost_no_other_figure(
    suite: Suite, fault: str, told: str
) -> None:
    body = ONE_LOAD.replace("concurrency=4, requests=20", "rate=10, requests=50")
    suite.write(body.replace("assert llm_result.mean_power.point > 70", "pass"), SMALL_WARMUP)
    suite.measure(f"replay:{POWER}&power_fault={fault}&power_fault_after_s=3")
    notes = entry(suite)["notes"]
    assert any(told in note for note in notes), notes
    assert entry(suite)["metrics"]["ttft.p50"]["point"] > 0
    assert (entry(suite)["metrics"]["mean_power"]["point"] is None) == (fault != "counter_resets")


def test_a_replay_without_power_says_that_there_is_nothing_to_sample(suite: Suite) -> None:
    suite.write(ONE_LOAD.replace("assert llm_result.mean_power.point > 70", "pass"), SMALL_WARMUP)
    sut = suite.path / "sut.toml"
    sut.write_text("[telemetry]\n")
    suite.measure("replay:fast", f"--llm-sut={sut}").assert_outcomes(failed=1)
    notes = entry(suite)["notes"]
    assert any(note.startswith("a replay has no machine") for note in notes), notes
    assert any(note.startswith("energy_per_output_token has a limit") for note in notes), notes
    assert entry(suite)["gate"]["verdict"] == "inconclusive"


def test_the_accelerator_that_a_page_names_chooses_the_numbers_of_a_place(
    suite: Suite, serve_canned: Serve
) -> None:
    suite.write("""
        @llmbench.job(prompts=40, concurrency=4, min_output_tok_s={"h100": 1, "mi300": 10_000_000})
        def test_job(): ...
    """)
    page = serve_canned({"GET /metrics": Canned(200, {}, DCGM.encode())})
    (suite.path / "sut.toml").write_text(f'[telemetry]\nurl = "{page.url}/metrics"\n')
    suite.measure("replay", "--llm-sut=sut.toml").assert_outcomes(passed=1)
    page.answers.clear()
    refused(suite.measure("replay", "--llm-sut=sut.toml")).fnmatch_lines(
        ["*numbers for h100, mi300**name no accelerator*"]
    )
