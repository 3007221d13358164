"""summary.md: a dozen lines, whatever happened."""

from __future__ import annotations

from typing import Any

from outcome_samples import failed, void

from pytest_llmbench.reports.markdown import job_summary

Entry = dict[str, Any]


def test_a_dozen_lines(report: Entry, entry: Entry) -> None:
    report["tests"] = [failed(entry), void(entry), *report["tests"]]
    assert job_summary(report, path="out/report.html").splitlines() == [
        "## ❌ LLM benchmark: 1 of 5 limits broken, 2 undecided; 1 test void; 1 test without a measurement",
        "",
        "Endpoint `https://host/v1` · Model tiny-7b · Started 2026-01-20T09:30:00.000Z · "
        "Failed 8 of 4000 requests (0.2 %) · Measured by pytest-llmbench 0.1.0",
        "",
        "Compliance with the draft: 4 not compliant",
        "",
        "- ❌ FAIL `test_quick`: `ttft.p99 <= 300 ms`: 468.3 ms \\[449.5, 491.7\\], +56 %",
        "- 🚫 ERROR `test_unreachable[<b>|x]`: https\u200b://host/v1: connection refused",
        "- 🚫 INVALID `test_void`: sends were late by 62 ms at P99",
        "- ⚠️ INCONCLUSIVE `test_first_token_is_quick`: `ttft.p99_9 <= 900 ms`: 557.4 ms (&gt; 535.1 ms), "
        "-38 %",
        "- Warnings: `client_cpu`",
        "",
        "Report: `out/report.html`",
    ]


def test_what_passed_needs_no_line(report: Entry) -> None:
    report["tests"] = report["tests"][1:2]
    warned = job_summary(report)
    for finding in report["tests"][0]["validity"]["findings"]:
        finding["ok"] = True
    text = job_summary(report)
    assert text.startswith("## ✅ LLM benchmark: the limit kept\n")
    assert "\n- " not in text
    assert set(warned.splitlines()) - set(text.splitlines()) == {"- Warnings: `client_cpu`"}
    assert text.endswith("\nNo report was written (`--llm-report DIR`).\n")


def test_the_seventh_is_counted(report: Entry, entry: Entry) -> None:
    report["tests"] = [failed(entry, nodeid=f"a.py::test_{i}") for i in range(40)]
    lines = job_summary(report).splitlines()
    assert sum(line.startswith("- ❌") for line in lines) == 6
    assert "- … and 34 more" in lines


def test_a_session_that_was_cut_and_one_in_virtual_time_say_so(report: Entry) -> None:
    report["incomplete"] = {
        "why": "the session was killed before its end",
        "unfinished": [{"nodeid": "a.py::test_killed", "records_files": []}],
        "not_begun": [],
        "damaged_lines": 0,
    }
    for test in report["tests"]:
        test["compliance"]["simulated"] = True
    text = job_summary(report)
    assert "**INCOMPLETE: the session was killed before its end." in text
    assert "**Simulated: nothing was sent" in text
