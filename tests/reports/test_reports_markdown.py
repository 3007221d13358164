"""report.md: a comment that fits."""

from __future__ import annotations

import copy
from typing import Any

from pytest_llmbench.reports.markdown import MAX_BYTES, markdown_report
from pytest_llmbench.reports.summaries import SECTIONS

Entry = dict[str, Any]


def test_verdicts_come_first(report: Entry) -> None:
    assert markdown_report(report).splitlines()[:6] == [
        "## LLM benchmark: 1 INCONCLUSIVE, 1 PASS, 1 ERROR",
        "",
        "| Test | Verdict | Limit | Measured and interval | Compliance |",
        "| --- | --- | --- | --- | --- |",
        "| `test_first_token_is_quick` | ⚠️ INCONCLUSIVE | `ttft.p99 <= 600 ms`<br>`ttft.p99_9 <= 900 ms` | "
        "468.3 ms \\[449.5, 491.7\\]<br>557.4 ms (&gt; 535.1 ms) | not compliant |",
        "| `test_p99` | ✅ PASS | `ttft.p99 <= 600 ms` | 468.3 ms \\[449.5, 491.7\\] | not compliant |",
    ]


def test_everything_fits_when_there_is_room(report: Entry) -> None:
    text = markdown_report(report)
    assert "Left out" not in text
    assert text.count("<details>") == text.count("</details>") == 16
    assert "connection refused" in text
    assert "| Endpoint | https://host/v1 |" in text


def test_text_from_outside_stays_text(report: Entry) -> None:
    report["tests"][0]["notes"] = []
    report["tests"][0]["validity"]["findings"][1]["message"] = "@team <b>`x`</b> | [a](b)\n# head"
    text = markdown_report(report)
    assert "@team" not in text
    assert "&lt;b&gt;\\`x\\`&lt;/b&gt; \\| \\[a\\](b) \\# head" in text
    assert "| `test_unreachable[<b>\\|x]` |" in text
    assert "### `test_unreachable[<b>|x]`" in text


def test_an_error_with_fences_stays_inside_its_own(report: Entry) -> None:
    report["tests"][2]["error"] = "```\nnot the end\n```"
    assert "````text\n```\nnot the end\n```\n````" in markdown_report(report)


def test_the_least_important_goes_first(report: Entry) -> None:
    whole = len(markdown_report(report).encode())
    text = markdown_report(report, max_bytes=whole - 200)
    assert len(text.encode()) <= whole - 200
    assert "_Left out to stay within the size of a comment: unmet requirements (1)." in text
    assert "TTFT by Input Length" in text


def test_many_tests_stay_within_the_limit(report: Entry) -> None:
    tests = []
    for i in range(400):
        entry = copy.deepcopy(report["tests"][i % 3])
        entry["nodeid"] = f"gates/test_chat.py::test_number_{i}[ä{'x' * 60}]"
        entry["error"] = "é" * 5000
        tests.append(entry)
    report["tests"] = tests
    text = markdown_report(report)
    assert MAX_BYTES - 5000 < len(text.encode()) <= MAX_BYTES
    assert "… and 200 more tests" in text
    assert "Left out to stay within" in text


def test_a_table_that_alone_is_too_long_is_cut_at_a_line(report: Entry) -> None:
    text = markdown_report(report, max_bytes=500)
    assert len(text.encode()) <= 500
    assert text.endswith("_Cut to stay within the size of a comment._\n")


def test_the_six_sections_of_the_full_report(whole_report: Entry) -> None:
    text = markdown_report(whole_report)
    assert len(text.encode()) <= MAX_BYTES
    heads = [line.removeprefix("### ") for line in text.splitlines() if line.startswith("### ")]
    assert heads == [f"{number}. {title}" for number, title in enumerate(SECTIONS, start=1)]
    for wanted in (
        "All 12 levels",
        "| Command | pytest gates --llm-endpoint=https://host/v1 |",
        "| Records | records/throughput.jsonl |",
        "shared measurement: 2 of 4 loads",
        "To be conditional, 4 requirements more must be met:",
        "not measurable: the engine gives no such data",
        "| \\`no limit\\` |".replace("\\", ""),
    ):
        assert wanted in text, wanted


def test_detail_goes_before_results(whole_report: Entry) -> None:
    whole = len(markdown_report(whole_report).encode())
    text = markdown_report(whole_report, max_bytes=whole * 2 // 3)
    assert len(text.encode()) <= whole * 2 // 3
    assert "Left out to stay within the size of a comment: stretches" in text
    assert "Headline figures" in text
    assert "ITL Results at 90%" in text
