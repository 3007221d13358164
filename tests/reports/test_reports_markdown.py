"""summary.md: a comment that fits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from outcome_samples import failed, regressed, void
from sample_report import make_report

from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import MAX_BYTES, markdown_report
from pytest_llmbench.reports.terminal import brief_lines

Entry = dict[str, Any]


def test_the_banner_comes_first_then_what_did_not_pass(report: Entry) -> None:
    report["tests"][1] = failed(report["tests"][1] | {"gate": report["tests"][0]["gate"]})
    lines = markdown_report(report).splitlines()
    assert lines[0] == "## ❌ LLM benchmark: 1 of 4 limits broken, 2 undecided; 1 test without a measurement"
    assert lines[2] == "tiny-7b on undeclared hardware: open loop, poisson arrivals at 20 req/s"
    assert lines[4].startswith("Endpoint `https://host/v1` · Started 2026-01-20")
    assert lines[6] == "Compliance with the draft: 2 not compliant"
    at = lines.index("### 3 tests did not pass")
    assert lines[at + 2 : at + 6] == [
        "#### ❌ FAIL `test_quick`",
        "",
        "- Limit: `ttft.p99 <= 300 ms`: 468.3 ms \\[449.5, 491.7\\], +56 % (and 1 more not kept)",
        "- Cause: the whole interval lies beyond the limit",
    ]
    (command,) = [line for line in lines if line.startswith("pytest ")]
    assert command.startswith("pytest gates/test_chat.py::test_quick 'gates/test_chat.py::test_unreachable[")
    assert command.endswith(" --llm-endpoint=https://host/v1")
    assert [line for line in lines if line.startswith("#### ")] == [
        "#### ❌ FAIL `test_quick`",
        "#### 🚫 ERROR `test_unreachable[<b>|x]`",
        "#### ⚠️ INCONCLUSIVE `test_first_token_is_quick`",
    ]
    assert "- Cause: https\u200b://host/v1: connection refused" in lines


def test_all_tests_are_in_one_table(report: Entry) -> None:
    lines = markdown_report(report).splitlines()
    at = lines.index("### Tests: 1 INCONCLUSIVE, 1 PASS, 1 ERROR")
    assert lines[at + 2 : at + 7] == [
        "| Verdict | Test | Limit: measured, interval | Compliance |",
        "| --- | --- | --- | --- |",
        "| ⚠️ INCONCLUSIVE | `test_first_token_is_quick` | ⚠️ `ttft.p99_9 <= 900 ms`: 557.4 ms (&gt; 535.1 ms)"
        "<br>`ttft.p99 <= 600 ms`: 468.3 ms \\[449.5, 491.7\\] | not compliant |",
        "| ✅ PASS | `test_p99` | `ttft.p99 <= 600 ms`: 468.3 ms \\[449.5, 491.7\\] | not compliant |",
        "| 🚫 ERROR | `test_unreachable[<b>\\|x]` | not measured |  |",
    ]


def test_a_void_run_is_not_judged(report: Entry, entry: Entry) -> None:
    report["tests"] = [void(entry)]
    text = markdown_report(report)
    assert text.partition("\n")[0].endswith("1 test void")
    assert "- Cause: sends were late by 62 ms at P99" in text
    assert "| 🚫 INVALID | `test_void` | not judged |" in text
    assert "468.3" not in text.partition("<details>")[0]


def test_changes_that_decide_are_shown_alone_and_once_for_a_shared_load(report: Entry, entry: Entry) -> None:
    report["tests"] = [regressed(entry), regressed(entry) | {"nodeid": "t.py::test_again"}]
    lines = markdown_report(report).splitlines()
    assert lines[2].startswith("**now is 20 % slower than main in TTFT P99 \\[")
    at = lines.index("### Changes")
    assert lines[at + 2] == "now compared with main (independent runs)"
    row = lines[at + 6].split(" | ")
    assert row[:2] == ["| regressed", "TTFT P99"]
    assert row[2].startswith("+20 % ")
    assert lines[at + 8] == "… and 4 more, which decide nothing"
    assert "all 2 comparisons" not in lines[0]
    assert "2 of 2 comparisons regressed" in lines[0]
    kept = regressed(entry)
    kept["comparisons"][0] |= {"verdict": "equivalent"}
    report["tests"] = [kept, regressed(entry)]
    lines = markdown_report(report).splitlines()
    assert [line.split(" | ")[0] for line in lines[at + 6 : at + 8]] == ["| regressed", "| equivalent"]


def test_changes_that_decide_nothing_cost_no_test_its_row(report: Entry, entry: Entry) -> None:
    test = regressed(entry)
    shown_only = next(one for one in test["comparisons"] if one["metric"] == "tpot.p99")
    test["comparisons"] = [shown_only | {"metric": f"e2e[{i}].p99"} for i in range(1_000)]
    report["tests"] = [test, *report["tests"]]
    text = markdown_report(report)
    assert text.count("| improved |") == 20
    assert "… and 980 more, which decide nothing" in text
    assert "| ✅ PASS | `test_p99` |" in text


def test_systems_are_one_table_and_no_list_of_changes(report: Entry, entry: Entry) -> None:
    test = regressed(entry)
    table = {
        "title": "Systems Side by Side",
        "columns": ["Metric", "a", "b", "b against a", "Verdict", "Mann-Whitney p (requests)"],
        "rows": [
            ["tpot.p50", "5 ms", "5 ms", "0 %", "equivalent", "0.5"],
            ["e2e.p50", "5 ms", "4 ms", "-20 %", "improved", "0.01"],
            ["ttft.p50", "20 ms", "30 ms", "+50 %", "regressed", "0.01"],
        ],
    }
    test["tables"] = {"systems_comparison": table}
    test["comparisons"] = [one | {"gated": False} for one in test["comparisons"]]
    report["tests"] = [test]
    shown = markdown_report(report).partition("<details>")[0]
    assert "| Metric | a | b, against a |" in shown
    regression = "| ttft.p50 | 20 ms | 30 ms<br>+50 % **regressed** |\n"
    assert f"{regression}| e2e.p50 | 5 ms | 4 ms<br>-20 % improved |\n\n… and 1 more metric\n" in shown
    assert "### Changes" not in shown
    told = [line.text for line in brief_lines(test)]
    assert told[told.index("  b against a") :][:8] == [
        "  b against a",
        "  ttft.p50",
        "    a  20 ms",
        "    b  30 ms  +50 %  regressed",
        "  e2e.p50",
        "    a  5 ms",
        "    b  4 ms   -20 %  improved",
        "  … and 1 more metric (-v, or the report)",
    ]
    report["tests"] = [test, test | {"nodeid": "gates/test_chat.py::test_again"}]
    assert markdown_report(report).count("### Systems") == 1, "equal rows once"
    page = html_report(report)
    assert (
        page.count('<h2 class="plain">Systems</h2>') == page.count('<th scope="col">b, against a</th>') == 1
    )
    report["tests"] = [test]
    test["comparisons"][0]["gated"] = True
    assert "### Changes" in markdown_report(report), "one of them decides"


def test_each_warning_is_told_once(report: Entry) -> None:
    busy = "- client\\_cpu: the measuring process used 95 % of a core (2 tests)"
    assert busy in markdown_report(report).splitlines()


def test_a_shared_load_is_told_once(report: Entry) -> None:
    owner, other = copy.deepcopy(report["tests"][1]), copy.deepcopy(report["tests"][1])
    other["nodeid"] = "gates/test_chat.py::test_of_the_same_load"
    for stretch in other["stretches"]:
        stretch["shared_from"] = owner["nodeid"]
    text = markdown_report(report | {"tests": [owner, other]})
    name = owner["nodeid"].partition("::")[2].replace("_", "\\_")
    assert text.count("\nTTFT Results\n") == 1
    assert text.count("requests completed (") == 1
    assert f"- shared measurement: measured by gates/test\\_chat.py::{name}" in text
    assert f": as in the details of {name}\n" in text
    assert text.count("| TTFT P99 |") == 2, "in the headline figures and in the table"


def test_text_from_outside_stays_text(report: Entry) -> None:
    report["tests"][0]["validity"]["findings"][1]["message"] = "@team <b>`x`</b> | [a](b)\n# head"
    text = markdown_report(report)
    assert "@team" not in text
    assert "&lt;b&gt;\\`x\\`&lt;/b&gt; \\| \\[a\\](b) \\# head" in text
    assert "#### 🚫 ERROR `test_unreachable[<b>|x]`" in text


def test_the_least_important_goes_first(report: Entry) -> None:
    whole = len(markdown_report(report).encode())
    text = markdown_report(report, max_bytes=whole - 50)
    assert len(text.encode()) <= whole - 50
    assert "Left out here to stay short: details of tests (1)._" in text
    assert "<summary>test_first_token_is_quick</summary>" in text  # it did not pass
    assert "<summary>test_p99</summary>" not in text


def test_of_many_tests_those_that_passed_are_left_out(report: Entry) -> None:
    tests = []
    for i in range(400):
        entry = copy.deepcopy(report["tests"][i % 3])
        entry["nodeid"] = f"gates/test_chat.py::test_number_{i}[ä{'x' * 60}]"
        entry["error"] = "é" * 5000
        tests.append(entry)
    report["tests"] = [*tests, failed(report["tests"][0])]
    text = markdown_report(report)
    assert MAX_BYTES - 1000 < len(text.encode()) <= MAX_BYTES
    lines = text.splitlines()
    cards = [line for line in lines if line.startswith("#### ")]
    assert len(cards) == 10
    assert cards[0].startswith("#### ❌ FAIL")
    assert "… and 258 more" in lines
    assert not any("✅ PASS |" in line for line in lines)
    assert "tests (" in lines[-1]


def test_a_megabyte_of_text_costs_no_other_test_its_place(report: Entry) -> None:
    report["tests"][2]["error"] = report["tests"][2]["nodeid"] = "m" * 1_000_000
    text = markdown_report(report)
    assert len(text.encode()) <= MAX_BYTES
    assert "| ✅ PASS | `test_p99` |" in text
    assert "\n#### 🚫 ERROR `mmm" in text


def test_what_is_too_long_for_all_is_cut_at_a_line(report: Entry) -> None:
    text = markdown_report(report, max_bytes=200)
    assert len(text.encode()) <= 200
    assert text.endswith("_Cut to stay short._\n")


def test_the_ten_tests_fit(whole_report: Entry) -> None:
    text = markdown_report(whole_report)
    assert len(text.encode()) <= MAX_BYTES
    for wanted in (
        "| Command | `pytest gates --llm-endpoint=https://host/v1` |",
        "shared measurement: 2 of 4 loads",
        "not measurable: the engine gives no such data",
        " | no limit: ",
        "`report.html`, beside this file",
    ):
        assert wanted in text, wanted
    assert text.count("<details>") == text.count("</details>")


def test_detail_goes_before_results(whole_report: Entry) -> None:
    whole = len(markdown_report(whole_report).encode())
    text = markdown_report(whole_report, max_bytes=whole * 2 // 3)
    assert whole // 2 < len(text.encode()) <= whole * 2 // 3
    assert "Left out here to stay short: details of tests" in text
    assert "<summary>Headline figures</summary>" in text


def test_of_hundreds_of_tests_only_what_fits_is_made(report: Entry) -> None:
    one = report["tests"][1] | {"tables": {"ttft_results": {}}}
    with pytest.raises(KeyError):  # so it shows when a table is made
        markdown_report(report | {"tests": [one]})
    tests = [one | {"nodeid": f"a.py::test_{number}"} for number in range(300)]
    assert len(markdown_report(report | {"tests": tests}).encode()) <= MAX_BYTES


def test_a_report_without_tests() -> None:
    assert markdown_report(make_report()).startswith("## LLM benchmark: no test ran\n")


def test_where_the_report_is(report: Entry) -> None:
    assert "`report.html`, beside this file." in markdown_report(report)
    assert "how to reproduce it: `out/report.html`._" in markdown_report(report, path="out/report.html")
    assert markdown_report(report, path=None).endswith("\n_No report was written (`--llm-report DIR`)._\n")
