"""Sessions whose system is said to be on another machine: round trips, the adjusted TTFT, their clauses."""

from __future__ import annotations

from typing import Any

import pytest
from plugin_suite import Suite

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("however_late")]

TEST = """
@llmbench.ttft(requests=50, concurrency=2)
def test_ttft(llm_result):
    pass
"""
APART = '[clock]\ntopology = "distributed"\n[network]\nsignificant = true\n'


def measured(suite: Suite, sut_file: str, endpoint: str = "sim") -> dict[str, Any]:
    suite.write(TEST)
    (suite.path / "sut.toml").write_text(sut_file, "utf-8")
    suite.measure(endpoint, "--llm-sut=sut.toml").assert_outcomes(passed=1)
    entry: dict[str, Any] = suite.report["tests"][0]
    return entry


def test_a_measured_round_trip_is_taken_off_and_fills_its_clauses(suite: Suite) -> None:
    entry = measured(suite, APART)
    rtt = entry["facts"]["network.rtt_ms"]["value"]
    assert rtt["n"] == 12
    assert {"before_p50", "after_p50", "request_p50"} <= set(rtt)
    adjustment = entry["facts"]["network.ttft_adjustment"]["value"]
    assert adjustment["amount_ms"] == rtt["p50"]
    plain, adjusted = (entry["metrics"][f"{name}.p50"] for name in ("ttft", "ttft_adjusted"))
    assert adjusted["point"] == pytest.approx(plain["point"] - rtt["p50"])
    assert adjusted["lower"] == pytest.approx(plain["lower"] - adjustment["upper_ms"])
    assert adjusted["upper"] == pytest.approx(plain["upper"] - adjustment["lower_ms"])
    clauses = {each["id"]: each["status"] for each in entry["compliance"]["requirements"]}
    assert clauses["M-4.7.3-adjustment-documented"] == "met"


def test_a_declaration_stands_over_what_was_measured(suite: Suite) -> None:
    declared = '[network.ttft_adjustment]\napplied = true\namount_ms = 0.03\nmethod = "by the cable"\n'
    entry = measured(suite, APART + declared)
    assert entry["facts"]["network.rtt_ms"]["value"]["n"] == 12
    plain, adjusted = (entry["metrics"][f"{name}.p50"] for name in ("ttft", "ttft_adjusted"))
    for end in ("point", "lower", "upper"):
        assert adjusted[end] == pytest.approx(plain[end] - 0.03)
