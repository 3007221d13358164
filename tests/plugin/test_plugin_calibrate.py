"""``--llm-calibrate``, and what later sessions say about their limits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plugin_suite import Suite

NOISY = "replay:fast?eos_mean_tokens=300"
BODY = """
@llmbench.ttft(rate=20, requests=30, p50_ms={limit})
def test_first_token(): ...
"""


def run(suite: Suite, *more: str) -> pytest.RunResult:
    return suite.run(f"--llm-endpoint={NOISY}", "--llm-scale=quick", "--llm-report=out", *more)


def files(suite: Suite) -> list[Path]:
    return sorted((suite.path / ".llmbench").glob("*/calibration-*.json"))


def flagged(suite: Suite) -> list[str]:
    findings = suite.entry["validity"]["findings"]
    return [found["message"] for found in findings if found["check"] == "limit_within_noise"]


def test_runs_are_calibrated_kept_and_later_limits_flagged(suite: Suite) -> None:
    suite.write(BODY.format(limit=4.7))
    result = run(suite, "--llm-calibrate", "--llm-runs=5")
    result.assert_outcomes(passed=1)  # limits are not judged
    result.stdout.fnmatch_lines(["*Calibration (A/A)*", "*calibration of 5 runs saved*"])
    entry = suite.entry
    assert len(entry["by_run"]["ttft.p50"]) == 5
    (path,) = files(suite)
    kept = json.loads(path.read_text("utf-8"))
    assert kept["runs"] == 5
    assert kept["noise"]["ttft.p50"]["spread_log"] > 0
    rows = {row[0]: row for row in entry["tables"]["calibration"]["rows"]}
    assert rows["ttft.p50"][6].startswith("≤")
    assert flagged(suite), "in the session itself"
    run(suite)
    assert len(flagged(suite)) == 1
    assert any("calibrated on" in note for note in suite.entry["notes"])


def test_a_wide_limit_and_another_load_are_not_flagged(suite: Suite) -> None:
    suite.write(BODY.format(limit=500))
    run(suite, "--llm-calibrate", "--llm-runs=3").assert_outcomes(passed=1)
    run(suite).assert_outcomes(passed=1)
    assert flagged(suite) == []
    suite.write(BODY.format(limit=4.7).replace("rate=20", "rate=21"))
    run(suite, "--llm-inconclusive=pass")
    assert flagged(suite) == []
    assert not any("calibrated on" in note for note in suite.entry["notes"])


def test_a_damaged_calibration_is_a_warning(suite: Suite) -> None:
    suite.write(BODY.format(limit=500))
    run(suite, "--llm-calibrate", "--llm-runs=3").assert_outcomes(passed=1)
    (path,) = files(suite)
    path.write_text(path.read_text("utf-8")[:200])
    run(suite).assert_outcomes(passed=1)
    warned = [f for f in suite.entry["validity"]["findings"] if f["check"] == "calibration"]
    assert "not a complete calibration" in warned[0]["message"]
    assert not warned[0]["voids"]
