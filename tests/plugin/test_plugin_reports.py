"""What is written: report.json and its schema, records, minimum report, JUnit, pytest-html."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from plugin_suite import Suite, stored_lines
from whole_records import whole_records

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

SCHEMA = Path(__file__).parents[2] / "docs" / "report.schema.json"
BODY = """
@llmbench.ttft(p50_ms=2000, rate=20)
def test_first_token(): ...
"""
SMALL = """
from pytest_llmbench import llmbench, make_workload

WORDS = make_workload(input_tokens=16, output_tokens=128)

@llmbench.ttft(p50_ms=2000, concurrency=4, requests=10, workload=WORDS)
def test_first_token(): ...
"""
RECORD_FIELDS = {
    "index", "request_id", "phase", "class_label", "scheduled_ns", "dispatched_ns", "submitted_ns",
    "first_byte_ns", "first_event_ns", "first_content_ns", "chunk_ns", "chunk_tokens", "last_content_ns",
    "finished_ns", "input_tokens", "output_tokens", "token_source", "requested_max_tokens", "outcome",
    "http_status", "error", "finish_reason",
}  # fmt: skip


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The reports of the one session that several tests read."""
    return tmp_path_factory.mktemp("kept") / "out"


@pytest.fixture
def ran(suite: Suite, kept: Path) -> Suite:
    if kept.exists():
        shutil.copytree(kept, suite.path / "out")
        return suite
    suite.write(BODY)
    suite.measure("replay", "--junitxml=out/junit.xml", "--html=out/pytest.html").assert_outcomes(passed=1)
    shutil.copytree(suite.path / "out", kept)
    return suite


def test_report_json_keeps_to_its_schema(ran: Suite) -> None:
    jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8"))).validate(ran.report)
    top = {"schema_version", "generator", "started", "environment", "sut", "tests", "incomplete"}
    assert set(ran.report) == top
    entry = ran.report["tests"][0]
    assert entry["workload"]["sequence_sha256"]
    assert entry["counts"]["submitted"] == 50
    assert entry["compliance"]["verdict"] == "not_compliant"
    assert len(entry["compliance"]["requirements"]) == 121
    for name in ("mean", "p50", "p90", "p95", "p99", "p99_9", "min", "max"):
        assert entry["metrics"][f"ttft.{name}"]["unit"] == "ms"


def test_records_one_line_per_request(ran: Suite) -> None:
    path = ran.path / "out" / ran.report["tests"][0]["records_file"]
    assert json.loads(stored_lines(path)[0])["anchor"]["monotonic_ns"] > 0
    rows = whole_records(path)
    assert set(rows[0]) >= RECORD_FIELDS
    phases = [row["phase"] for row in rows]
    assert phases.count("measure") == 50
    assert phases.count("warmup") >= 10
    assert phases.count("probe") >= 3
    row = next(row for row in rows if row["phase"] == "measure")
    instants = [
        "scheduled_ns",
        "dispatched_ns",
        "submitted_ns",
        "first_byte_ns",
        "first_content_ns",
        "finished_ns",
    ]
    assert [row[name] for name in instants] == sorted(row[name] for name in instants)


def test_minimum_report(ran: Suite) -> None:
    text = (ran.path / "out" / "minimum.txt").read_text("utf-8")
    assert text.startswith("=== LLM Benchmark Report (Minimum) ===")
    assert text.rstrip().endswith("=== End Report ===")
    assert re.search(r"TTFT P50: \d", text)


def test_junit_properties(ran: Suite) -> None:
    tree = ElementTree.parse(ran.path / "out" / "junit.xml")
    properties = {p.get("name"): p.get("value") for p in tree.iter("property")}
    assert properties["llmbench.verdict"] == "pass"
    assert properties["llmbench.validity"] == "valid"
    assert properties["llmbench.compliance"] == "not_compliant (simulated)"
    assert "nothing was sent" in str(properties["llmbench.simulated"])


def test_pytest_html_columns_and_plot(ran: Suite) -> None:
    text = (ran.path / "out" / "pytest.html").read_text("utf-8")
    for word in ("Verdict", "Value", "Limit", "Interval", "TTFT Results", "svg"):
        assert word in text


def test_terminal_section(suite: Suite) -> None:
    suite.write(BODY)
    table = "  test *verdict *limit *measured*"
    brief = suite.measure("replay").stdout
    brief.fnmatch_lines(["*LLM serving benchmarks*", table, "*report: *report.json*"])
    brief.no_fnmatch_line("*TTFT Results*")
    suite.measure("replay", "-q").stdout.fnmatch_lines([table])
    result = suite.measure("replay", "-v")
    result.stdout.fnmatch_lines(
        ["*LLM serving benchmarks*", "*TTFT Results*", "*TTFT P50*", "*report: *report.json*"]
    )
    assert "\r" not in str(result.stdout), "a log is no terminal"


def test_without_report_directory_nothing_is_written(suite: Suite) -> None:
    suite.write(BODY)
    before = set(suite.path.rglob("*"))
    suite.run("--llm-endpoint=replay", "--llm-scale=quick", "-p", "no:html").assert_outcomes(passed=1)
    after = {path for path in suite.path.rglob("*") if "__pycache__" not in path.parts}
    assert after <= before


def test_a_test_that_could_not_be_measured_is_in_the_report(suite: Suite) -> None:
    suite.write(BODY)
    suite.measure("http://127.0.0.1:9/v1").assert_outcomes(errors=1)
    entry = suite.report["tests"][0]
    assert entry["outcome"] == "error"
    assert entry["validity"]["verdict"] == "invalid"
    assert entry["gate"]["verdict"] == "inconclusive"
    assert "127.0.0.1:9" in entry["error"]


@pytest.mark.usefixtures("however_late")
def test_what_a_test_sent_and_what_that_costs(suite: Suite, engine: EmbeddedEngine) -> None:
    (suite.path / "sut.toml").write_text("[prices]\ninput_per_million = 2\noutput_per_million = 4\n")
    suite.write(SMALL)
    options = ("--llm-sut=sut.toml", "--llm-inconclusive=pass")
    suite.measure(engine.url, *options).assert_outcomes(passed=1)
    entry = suite.report["tests"][0]
    spent = entry["spent"]
    assert spent["requests"] > entry["counts"]["submitted"], "with the warm-up"
    assert spent["cost"] == pytest.approx((2 * spent["input_tokens"] + 4 * spent["output_tokens"]) / 1e6)
    page = (suite.path / "out" / "report.html").read_text("utf-8")
    assert re.search(r"Cost <b>0\.\d+ USD</b>", page)


@pytest.mark.usefixtures("however_late")
def test_no_secret_reaches_any_artefact(
    suite: Suite, engine: EmbeddedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = "sk-canary-4f1d8c2e9b"
    monkeypatch.setenv("LLM_API_KEY", canary)
    suite.write(SMALL)
    options = ("--llm-inconclusive=pass", "--junitxml=out/junit.xml", "--html=out/pytest.html", "-vv")
    result = suite.measure(engine.url, *options)
    result.assert_outcomes(passed=1)
    assert canary not in str(result.stdout) + str(result.stderr)
    for path in (suite.path / "out").rglob("*"):
        packed = path.suffix == ".gz"
        text = (
            "".join(stored_lines(path)) if packed else path.is_file() and path.read_text("utf-8", "replace")
        )
        assert not text or canary not in text, path


def test_a_section_that_cannot_be_shown_costs_no_other(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours in one test's section: the others print, and the session is no success."""
    from pytest_llmbench.reports import terminal

    lines = terminal.brief_lines

    def spoiled(entry: dict[str, Any], **more: Any) -> Any:
        if entry["nodeid"].endswith("test_b"):
            raise KeyError("a word that nobody knows")
        return lines(entry, **more)

    monkeypatch.setattr(terminal, "brief_lines", spoiled)
    suite.write(BODY + "\n\n" + BODY.replace("test_first_token", "test_b"))
    result = suite.measure("replay", "--llm-inconclusive=pass")
    result.stdout.fnmatch_lines(["*test_first_token *PASS*", "*ERROR:*test_b: cannot be shown: KeyError*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert len(suite.report["tests"]) == 2
