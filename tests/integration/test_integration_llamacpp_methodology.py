"""The tests of the draft on a real engine: llama.cpp's server, as far as it goes.

Loads are small and limits wide: what is checked is that figures fit together and agree with the server's own,
not how fast this machine is.
"""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pytest_apart import Session
from whole_records import whole_records

SUT_FILE = """
[sut]
boundary = "model_engine"
prefix_caching = "disabled"

[request.extra_body]
cache_prompt = false

[variants.cache_disabled]
request = { extra_body = { cache_prompt = false } }
sut = { prefix_caching = "disabled" }

[variants.cache_enabled]
request = { extra_body = { cache_prompt = true } }
sut = { prefix_caching = "enabled" }
"""

PREAMBLE = """
import pytest
from pytest_llmbench import SyntheticWorkload, Uniform, WarmupPolicy, llmbench
from pytest_llmbench.workloads.adapted import SharedPrefix

TINY = SyntheticWorkload("tiny", Uniform(4, 12), Uniform(8, 12))
TALKING = SyntheticWorkload("talking", Uniform(4, 12), Uniform(52, 60))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=4, output_tokens=16, concurrency=2, probes=3)
"""

SUITE = """
@llmbench.ttft(p50_ms=20_000, concurrency=2, requests=60, workload=TINY)
def test_ttft(): ...

@llmbench.throughput(
    workload=TINY, min_concurrency=1, max_concurrency=4, concurrency_step=1, probe_s=2, duration_s=2
)
def test_throughput(): ...

@llmbench.tradeoff(workload=TINY, capacity_rps=100, levels_percent=[2, 50], duration_s=2)
def test_tradeoff(): ...

@llmbench.itl(workload=TALKING, capacity_rps=4, levels_percent=[25, 50], duration_s=3)
def test_itl(): ...

@llmbench.capacity(workload=TINY, output_tokens=8, initial=1, maximum=4, ttft_p99_ms=20_000, duration_s=2)
def test_capacity(): ...

@llmbench.prefix_cache(
    workload=SharedPrefix("shared", TINY, Uniform(64, 80), 0.8, 4), requests=40, concurrency=1
)
def test_prefix_cache(): ...

@llmbench.long_context(lengths=[200, 400, 700], output_tokens=4)
def test_long_context(): ...
"""

REFUSED = """
@llmbench.memory_pressure()
def test_memory_pressure(): ...

@llmbench.guardrail()
def test_guardrail(): ...

@llmbench.prefix_cache(enabled="cache_filled")
def test_prefix_cache(): ...
"""


@dataclass
class Measured:
    """The report of a suite that ran in a process of its own."""

    folder: Path
    output: str

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        file = self.folder / "out" / "report.json"
        assert file.exists(), self.output
        report = json.loads(file.read_text("utf-8"))
        return {entry["test"]: entry for entry in report["tests"]}

    def rows(self, test: str) -> list[dict[str, Any]]:
        rows = whole_records(self.folder / "out" / self.entries[test]["records_file"])
        return [row for row in rows if row["phase"] == "measure"]

    def point(self, test: str, metric: str) -> float:
        value: float | None = self.entries[test]["metrics"][metric]["point"]
        assert value is not None, (metric, self.entries[test]["metrics"][metric])
        return value


def run_suite(folder: Path, endpoint: str, body: str) -> Measured:
    (folder / "test_suite.py").write_text(PREAMBLE + body, "utf-8")
    (folder / "sut.toml").write_text(SUT_FILE, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "utf-8")
    # On a machine with other work the pace of the server drifts, and sixty requests may leave an end open.
    options = ("--llm-scale=quick", "--llm-sut=sut.toml", "--llm-report=out", "--llm-inconclusive=pass")
    return Measured(folder, Session(folder, "-v", f"--llm-endpoint={endpoint}", *options).text(600))


@pytest.fixture(scope="module")
def measured(slower_llama_cpp: str, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    return run_suite(tmp_path_factory.mktemp("llama_suite"), slower_llama_cpp, SUITE)


@pytest.mark.slow
def test_what_the_engine_lacks_is_said_before_anything_is_sent(llama_cpp, tmp_path):
    entries = run_suite(tmp_path, llama_cpp, REFUSED).entries
    words = {
        "memory_pressure": "--llm-allow-overload",
        "guardrail": "guardrails_baseline",
        "prefix_cache": "cache_filled",
    }
    for test, word in words.items():
        assert entries[test]["outcome"] == "error"
        assert "cannot be measured here" in entries[test]["error"]
        assert word in entries[test]["error"]
        assert not entries[test]["counts"]["submitted"]


@pytest.mark.slow
@pytest.mark.timing
def test_seven_tests_run(measured):
    not_passed = {
        test: (entry["error"], entry["gate"])
        for test, entry in measured.entries.items()
        if entry["outcome"] != "passed"
    }
    assert not_passed == {}
    assert len(measured.entries) == 7
    for entry in measured.entries.values():
        assert entry["validity"]["verdict"] == "valid"
        assert entry["counts"]["ok"] == entry["counts"]["submitted"]


@pytest.mark.slow
@pytest.mark.timing
def test_every_request_agrees_with_the_server_s_own_timings(measured):
    for test in measured.entries:
        for row in measured.rows(test):
            timings = row["server_timings"]
            assert timings["prompt_n"] + timings["cache_n"] == row["input_tokens"]
            assert timings["predicted_n"] == row["output_tokens"] == row["requested_max_tokens"]
            assert timings["cache_n"] == row["cached_tokens"]
            ttft_ms = (row["first_content_ns"] - row["submitted_ns"]) / 1e6
            assert ttft_ms > timings["prompt_ms"] - 1.0
            whole_ms = (row["finished_ns"] - row["submitted_ns"]) / 1e6
            assert whole_ms > timings["prompt_ms"] + timings["predicted_ms"] * 0.5


@pytest.mark.slow
@pytest.mark.timing
def test_throughput_is_what_the_levels_did(measured):
    entry = measured.entries["throughput"]
    reported = next(level for level in entry["levels"] if level["role"] == "reported")
    best = measured.point("throughput", "max_output_token_throughput")
    assert best == pytest.approx(reported["metrics"]["output_token_throughput"]["point"])
    # Tokens over time, from the records: the whole reported level, ramp-up and drain included, is near it.
    rows = measured.rows("throughput")[-reported["n_submitted"] :]
    seconds = (max(row["finished_ns"] for row in rows) - min(row["submitted_ns"] for row in rows)) / 1e9
    plain = sum(row["output_tokens"] for row in rows) / seconds
    assert 0.5 < best / plain < 2.0
    assert 1 <= measured.point("throughput", "sustainable_concurrency") <= 4


@pytest.mark.slow
@pytest.mark.timing
def test_the_curve_holds_at_its_lower_end_and_saturates_at_its_upper(measured):
    low, high = measured.entries["tradeoff"]["levels"][:2]
    assert high["saturated"] is True
    assert high["metrics"]["ttft.p50"]["point"] > 2 * low["metrics"]["ttft.p50"]["point"]


@pytest.mark.slow
@pytest.mark.timing
def test_gaps_between_tokens_are_near_the_server_s_own_pace(measured):
    own = [row["server_timings"]["predicted_per_token_ms"] for row in measured.rows("itl")]
    mean = measured.point("itl", "itl[25%].mean")
    assert 0.3 < mean / statistics.median(own) < 3.0


@pytest.mark.slow
@pytest.mark.timing
def test_the_capacity_is_a_tested_level(measured):
    levels = measured.entries["capacity"]["levels"]
    passed = [level["concurrency"] for level in levels if level["passed"]]
    assert measured.point("capacity", "max_concurrency") == max(passed)
    assert {row["output_tokens"] for row in measured.rows("capacity")} == {8}


@pytest.mark.slow
@pytest.mark.timing
def test_the_cache_is_switched_by_a_request_field(measured):
    disabled, warm = measured.entries["prefix_cache"]["levels"]
    assert (disabled["role"], warm["role"]) == ("disabled", "warm")
    rows = measured.rows("prefix_cache")
    off, on = rows[:40], rows[40:]
    assert sum(row["cached_tokens"] for row in off) == 0
    # Prefixes are 64 to 80 reference tokens, more in the model's own; the server has four slots for four.
    assert sum(row["cached_tokens"] for row in on) > 40 * 0.5 * 64
    assert measured.point("prefix_cache", "cache_hit_rate") > 0.5
    own = [statistics.median(row["server_timings"]["prompt_ms"] for row in part) for part in (off, on)]
    assert own[1] < own[0]
    assert measured.point("prefix_cache", "ttft_reduction.p50") > 0
    assert any("no cold run" in note for note in measured.entries["prefix_cache"]["notes"])


@pytest.mark.slow
@pytest.mark.timing
def test_prefill_grows_with_the_context(measured):
    metrics = measured.entries["long_context"]["metrics"]
    medians = [metrics[f"ttft[{length}].p50"]["point"] for length in (200, 400, 700)]
    assert medians[0] < medians[2]
    assert 0.3 < measured.point("long_context", "prefill_exponent") < 2.5
