"""Sessions of a trace from a file of workloads to report, records and recomputed figures."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from plugin_suite import SMALL_WARMUP, Suite
from whole_records import whole_records

ROOT = Path(__file__).parents[2]
TABLE = """
[workloads.agents]
kind = "trace"
sessions = true
path = "agents.jsonl"
dataset = "two agents and a chat"
version = "1"
subset_method = "all"
"""
GATES = """
@llmbench.sessions(workload="agents", arrival="trace", job_p50_s=60)
def test_as_recorded(llm_result):
    assert llm_result.job_generator_wait.max.point == 0

@llmbench.sessions(workload="agents", arrival="trace", speedup=2, job_p50_s=60)
def test_twice_as_many(): ...

@llmbench.sessions(workload="agents", sessions=2, total_sessions=5, job_p50_s=60, probe_sessions=3)
def test_two_at_once(llm_result):
    assert 0.9 < llm_result.job_slowdown.p50.point < 2

@llmbench.sessions(
    workload="agents", min_jobs_per_hour=300, initial=400, maximum=800, job_p50_s=60, duration_s=60,
    total_sessions=20,
)
def test_jobs_per_hour(llm_result):
    assert llm_result.jobs_per_hour.lower >= 300
"""


def measured(suite: Suite, *arguments: str) -> pytest.RunResult:
    (suite.path / "workloads.toml").write_text(TABLE)
    options = ("--llm-workloads=workloads.toml", "--llm-inconclusive=pass", *arguments)
    return suite.measure("replay:fast?prefix_caching=true", *options)


def test_the_example_of_the_documentation(suite: Suite) -> None:
    assert f"```toml{TABLE}```" in (ROOT / "docs/how-to/measure-sessions.md").read_text("utf-8")
    (suite.path / "agents.jsonl").write_bytes((ROOT / "docs/examples/agents.jsonl").read_bytes())
    suite.write(GATES, SMALL_WARMUP)
    measured(suite).assert_outcomes(passed=4)
    recorded, doubled, closed, found = suite.report["tests"]
    assert recorded["load"]["arrival"] == doubled["load"]["arrival"] == "trace"
    assert doubled["load"]["session_rate"] == 2 * recorded["load"]["session_rate"]
    assert closed["load"]["sessions"] == 2
    assert [level["label"] for level in found["levels"]] == ["400 jobs/h", "800 jobs/h"]
    assert found["metrics"]["jobs_per_hour"]["upper"] is None
    assert recorded["workload"]["n_requests"] == 9
    specification = recorded["workload"]["specification"]
    assert specification["sessions"]["count"] == 3
    assert len(specification["dataset"]["content_sha256"]) == 64

    def starts_ms(entry: dict[str, str]) -> list[int]:
        rows = whole_records(suite.path / "out" / entry["records_file"])
        own = [row for row in rows if row["phase"] == "measure" and row["turn"] == 1]
        instants = {row["session"]: row["scheduled_ns"] for row in own}
        return [(instants[number] - instants[0]) // 1_000_000 for number in (1, 2)]

    assert starts_ms(recorded) == [700, 1500]
    assert starts_ms(doubled) == [350, 750]
    assert suite.recomputed() == 4


def test_a_long_trace_is_recomputed_too(suite: Suite) -> None:
    """What a report has no room for stands beside its records."""
    rows = [
        {"session_id": str(number // 2), "timestamp": 40 * number, "input_length": 60 + 50 * (number % 2),
         "output_length": 5, "hash_ids": [number // 2]}
        for number in range(2_000)
    ]  # fmt: skip
    (suite.path / "agents.jsonl").write_text("\n".join(map(json.dumps, rows)))
    suite.write(
        """
        @llmbench.sessions(workload="agents", arrival="trace", job_p50_s=60)
        def test_as_recorded(): ...
        """,
        SMALL_WARMUP,
    )
    measured(suite).assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    assert entry["workload"]["n_requests"] == 20
    assert len(gzip.decompress((suite.path / "out" / entry["loads_file"]).read_bytes())) > 100_000
    assert suite.recomputed() == 1


def test_a_trace_that_does_not_say_when_its_sessions_start_is_told(suite: Suite) -> None:
    turns = [{"from": who, "value": "Well, well."} for who in ("human", "gpt") * 2]
    (suite.path / "agents.jsonl").write_text(json.dumps({"conversations": turns}))
    suite.write(GATES, SMALL_WARMUP)
    result = measured(suite, "-k", "test_as_recorded")
    result.stderr.fnmatch_lines(
        ["*needs a workload with start instants of at least two sessions; 'agents' has 0*"]
    )
    suite.write(GATES.replace('arrival="trace", ', "rate=5, ").replace("speedup=2, ", ""), SMALL_WARMUP)
    measured(suite, "-k", "test_as_recorded").assert_outcomes(passed=1, deselected=3)


_PAGE = ROOT / "docs/how-to/measure-sessions.md"
LIBRARY = re.findall(r"^```toml\n(\[workloads\.clerks\].*?)^```", _PAGE.read_text("utf-8"), re.M | re.S)[0]
TALKS = """
@llmbench.sessions(workload="clerks", sessions=2, total_sessions=3, probe_sessions=2, job_p50_s=60)
def test_talks(llm_result):
    assert llm_result.metrics["session_completion_rate"].point == 1
    assert llm_result.metrics["turn_cached_share[2+]"].point > 0.5
"""


def test_conversations_are_measured_and_no_text_of_theirs_is_kept(suite: Suite) -> None:
    said = (ROOT / "docs/examples/conversations.jsonl").read_bytes()
    (suite.path / "conversations.jsonl").write_bytes(said)
    (suite.path / "workloads.toml").write_text(LIBRARY)
    suite.write(TALKS, SMALL_WARMUP)
    options = ("--llm-workloads=workloads.toml", "--llm-inconclusive=pass")
    result = suite.measure("replay:fast?prefix_caching=true", *options)
    result.assert_outcomes(passed=1)
    (entry,) = suite.report["tests"]
    assert entry["workload"]["n_requests"] == 8
    assert entry["workload"]["specification"]["content"]["context"].startswith("full message arrays")
    shown = [str(result.outlines)]
    for path in (suite.path / "out").rglob("*"):
        if path.is_file():
            raw = path.read_bytes()
            shown.append((gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8"))
    assert len(shown) > 5
    for words in ("patient clerk", "maps of the coast", "atlas of rivers", "find_book", "reading room"):
        assert words.encode() in said
        assert not [text for text in shown if words in text]
    # In a process of its own: what was drawn before is remembered in this one.
    command = [sys.executable, "-m", "pytest_llmbench", "recompute", str(suite.path / "out" / "report.json")]
    again = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert again.returncode == 0, again.stdout
    assert again.stdout.count("figures are identical") == 1
