"""The terminal section."""

from __future__ import annotations

import copy
import random
import textwrap
from typing import Any

import pytest

from pytest_llmbench.reports import terminal
from pytest_llmbench.reports.terminal import (
    brief_lines,
    closing_lines,
    opening_lines,
    overview,
    section_lines,
    text_table,
)
from pytest_llmbench.store import schema

Entry = dict[str, Any]

SECTION = """\
gates/test_chat.py::test_first_token_is_quick
  INCONCLUSIVE · ttft (5.1 Time to First Token)
  valid · not compliant
  open loop, poisson arrivals at 20 req/s, 51.2 s
  998 of 1000 requests completed (99.8 %); 2 timeout

  pass         ttft.p99 <= 600 ms: 468.3 ms [449.5, 491.7]
  inconclusive ttft.p99_9 <= 900 ms: 557.4 ms (> 535.1 ms)
               undecided after 998 requests: about 10,002 requests in all would
               decide this limit (requests=10002)

  TPOT P99                 14.5 ms [12, 15], indicative
  Output token throughput  1843 tok/s [1790, 1901]

  TTFT Results
  Metric                        Value  95 % interval
  Requests                        998
  TTFT P50                     129 ms      124 … 135
  TTFT P90                     192 ms      184 … 201
  TTFT P95                     225 ms      216 … 237
  TTFT P99                     468 ms      450 … 492
  TTFT P99.9  n < 10000, not reported

  TTFT by Input Length
  Input Tokens  Requests  P50 (ms)  P95 (ms)  P99 (ms)
  128-256            333       118       201       402
  256-512            667       141       243       511

  ok       send_lag: sends were late by 0.18 ms at P99 (limit 10 ms)
  warning  client_cpu: the measuring process used 95 % of a core

  compliance: not compliant (literal reading: conditional); 6 requirements
  apply: 1 met, 4 unmet that block it, 1 unmet that lower it
  to be conditional:
    M-4.1-sut-boundary-declared: no evidence: sut.boundary
      → Statement of M-4.1-sut-boundary-declared.
    M-4.1.1-accelerator: no evidence: sut.hardware.accelerator_type,
      sut.hardware.accelerator_count
      → Statement of M-4.1.1-accelerator.
    M-5.1.4.1-percentiles: 998 samples, P99.9 needs 10000
      → Statement of M-5.1.4.1-percentiles.
    M-4.8-input-filter: no evidence: guardrails.input_filter
      → Statement of M-4.8-input-filter.
    also unmet, S-4.6.1-grpc: the stream is SSE

  next:
    - declare in the SUT file (--llm-sut): sut.boundary,
      sut.hardware.accelerator_type, sut.hardware.accelerator_count,
      guardrails.input_filter

  notes:
    - 1.2% of the requests sent non-content output first"""


def text_of(entry: Entry, **options: Any) -> str:
    return "\n".join(line.text for line in section_lines(entry, **options))


def test_the_section_of_a_measured_test(entry: Entry) -> None:
    assert text_of(entry) == SECTION


def test_verbose_shows_every_finding_and_requirement(entry: Entry) -> None:
    text = text_of(entry)
    assert "ok       send_lag: sends were late by 0.18 ms" in text
    assert "S-4.6.1-grpc: the stream is SSE" in text
    assert "more (-v" not in text


def test_a_test_that_never_measured_says_why_and_nothing_else(broken: schema.TestEntry) -> None:
    assert text_of(broken.plain()) == (
        """\
gates/test_chat.py::test_unreachable[<b>|x]
  ERROR · ttft (5.1 Time to First Token)
  nothing was measured

  https://host/v1: connection refused
    → start the server or correct --llm-endpoint"""
    )


def test_a_void_run_leads_with_the_word(entry: Entry) -> None:
    entry["validity"] = {
        "verdict": "invalid",
        "findings": [{"check": "send_lag", "ok": False, "voids": True, "message": "late by 80 ms"}],
    }
    lines = section_lines(entry)
    assert lines[1].text == "  INVALID · ttft (5.1 Time to First Token)"
    assert lines[1].markup == {"red": True, "bold": True}
    texts = [line.text for line in lines]
    assert "  VOID     send_lag: late by 80 ms" in texts
    assert sum(text.startswith("  not judged   ttft.p99") for text in texts) == len(
        entry["gate"]["objectives"]
    )
    assert not any("in all would decide" in text for text in texts), "more of a void load decide nothing"


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120])
@pytest.mark.parametrize("error", [None, "x" * 300])
def test_no_line_is_wider_than_the_terminal(
    whole_report: Entry, report: Entry, width: int, error: str | None
) -> None:
    whole_report["tests"] += report["tests"]
    lines = []
    for name in ("test_short", f"test_{'x' * 300}"):
        for test in whole_report["tests"]:
            test |= {"nodeid": f"a.py::{name}", "error": error}
            lines += [*section_lines(test, width=width), *brief_lines(test, width=width)]
        lines += [*closing_lines(whole_report["tests"], width=width), *overview(whole_report, width=width)]
    assert max(len(line.text) for line in lines) <= width


def test_an_error_is_told_whole(entry: Entry) -> None:
    entry["error"] = "\n".join(f"line {i}" for i in range(50))
    assert "line 49" in text_of(entry)
    lines = brief({**entry, "metrics": {}, "outcome": "error"})
    assert lines[1:6] == [*(f"    line {i}" for i in range(4)), "    … and 46 more (-v, or the report)"]


def test_colours_only_repeat_the_words(entry: Entry) -> None:
    marked = [line for line in section_lines(entry) if line.markup.get("green") or line.markup.get("red")]
    assert [line.text.split()[0] for line in marked] == ["pass", "ok", "compliance:", "apply:"]


def brief(entry: Entry, width: int = 80) -> list[str]:
    return [line.text for line in brief_lines(entry, width=width)]


def test_a_few_lines_on_a_test_that_did_not_pass(entry: Entry) -> None:
    assert brief(entry) == [
        "  INCONCLUSIVE · gates/test_chat.py::test_first_token_is_quick",
        "    inconclusive ttft.p99_9 <= 900 ms: 557.4 ms (> 535.1 ms); undecided after",
        "      998 requests: about 10,002 requests in all would decide this limit",
        "      (requests=10002)",
        "    998 of 1000 requests completed (99.8 %); 2 timeout",
    ]


def test_a_test_that_passed_has_its_row_alone(report: Entry) -> None:
    assert brief(report["tests"][1]) == []
    assert brief(report["tests"][2]) == [
        "  ERROR · gates/test_chat.py::test_unreachable[<b>|x]",
        "    https://host/v1: connection refused",
        "      → start the server or correct --llm-endpoint",
    ]


def test_a_broken_limit_comes_before_one_that_is_undecided_and_four_are_enough(entry: Entry) -> None:
    kept, undecided = entry["gate"]["objectives"]
    broken = {**kept, "verdict": "fail", "metric": "tpot.p50", "reason": ""}
    entry["gate"] = {"verdict": "fail", "objectives": [undecided, *[undecided] * 4, kept, broken]}
    lines = brief(entry, 200)
    assert lines[0] == "  FAIL · gates/test_chat.py::test_first_token_is_quick"
    assert lines[1].startswith("    fail         tpot.p50 <= 600 ms: ")
    assert lines[5] == "    … and 2 more (-v, or the report)"
    assert not any("pass" in line for line in lines)


def test_a_void_run_says_why_and_no_limit(entry: Entry) -> None:
    void = {"check": "send_lag", "ok": False, "voids": True, "message": "late by 80 ms"}
    harmless = {"check": "client_cpu", "ok": False, "voids": False, "message": "busy"}
    entry["validity"] = {"verdict": "invalid", "findings": [harmless, void]}
    lines = brief(entry)
    assert lines[:2] == ["  INVALID · gates/test_chat.py::test_first_token_is_quick", "    late by 80 ms"]
    assert not any("ttft" in line or "next" in line for line in lines)
    row = closing_lines([entry], width=110)[1].text.split("  ")
    assert "not judged" in [cell.strip() for cell in row]


def test_each_warning_is_told_once_and_six_of_them(entry: Entry) -> None:
    found = [{"check": f"c{i}", "ok": False, "voids": False, "message": "x"} for i in range(8)]
    entry["validity"]["findings"] = [*found, *found]
    entry["void_loads"] = [{"label": "measure"}, {"label": "measure"}]
    lines = [line.text for line in closing_lines([entry, entry])]
    assert lines[3:5] == ["  warning: c0: x (2 tests)", "  warning: c1: x (2 tests)"]
    assert lines[-2:] == [
        "  … and 3 more warnings",
        "  everything measured, every clause and note: -v, or the report",
    ]


def test_what_was_measured_is_a_sentence_that_is_wrapped(entry: dict[str, Any]) -> None:
    slow = copy.deepcopy(entry)
    slow["load"]["description"] = "closed loop, 8 in flight"
    lines = opening_lines([entry, slow, slow], width=60)
    told = " ".join(line.text.strip() for line in lines)
    assert told.endswith("hardware: open loop, poisson arrivals at 20 req/s; closed loop, 8 in flight")
    assert max(len(line.text) for line in lines) <= 60
    third = copy.deepcopy(slow)
    third["load"]["description"] = "closed loop, 9 in flight"
    assert opening_lines([entry, slow, third], width=200)[0].text.endswith("; and 1 other load")
    assert opening_lines([entry | {"load": None}]) == []


def test_the_table_of_all_tests(report: Entry) -> None:
    assert [line.text for line in closing_lines(report["tests"], width=130)] == [
        "  test                       verdict       limit                 measured                 "
        "completed    class",
        "  test_first_token_is_quick  INCONCLUSIVE  ttft.p99_9 <= 900 ms  557.4 ms (> 535.1 ms)    "
        "998 of 1000  not compliant",
        "  test_p99                   PASS          ttft.p99 <= 600 ms    468.3 ms [449.5, 491.7]  "
        "998 of 1000  not compliant",
        "  test_unreachable[<b>|x]    ERROR                               not measured",
        "  warning: client_cpu: the measuring process used 95 % of a core (2 tests)",
        "  everything measured, every clause and note: -v, or the report",
    ]
    narrow = [line.text for line in closing_lines(report["tests"], width=82)]
    assert narrow[1] == "  test_fir…is_quick  INCONCLUSIVE  ttft.p99_9 <= 900 ms  557.4 ms (> 535.1 ms)"


def test_failures_of_a_test_that_passed_are_told_where_no_column_has_them(report: Entry) -> None:
    _, passed, _ = report["tests"]
    told = "  test_p99: 998 of 1000 requests completed (99.8 %); 2 timeout"
    assert told in [line.text for line in closing_lines([passed], width=80)]
    assert told not in [line.text for line in closing_lines([passed], width=130)], "a column has it"
    passed["counts"] |= {"ok": 1000, "timeout": 0}
    assert not any("completed" in line.text for line in closing_lines([passed], width=80)), "none failed"


def test_a_body_that_failed_says_so_in_the_place_of_the_limit(report: Entry) -> None:
    _, passed, _ = report["tests"]
    passed |= {"outcome": "failed", "error": "AssertionError: assert 1.4 < 0.1\n  where 1.4 = …"}
    row = closing_lines([passed], width=90)[1].text
    assert row.startswith("  test_p99  FAIL     test body  assert 1.4 < 0.1")


def test_a_figure_and_a_limit_are_never_cut(report: Entry) -> None:
    undecided, bare, absent = report["tests"]
    bare["gate"]["objectives"] = []
    rows = [line.text for line in closing_lines([bare, absent], width=99)]
    assert "no limit  " in rows[1]
    assert "…" not in rows[1]
    below = [line.text for line in closing_lines([undecided, bare, absent], width=60)]
    assert below[:6] == [
        "  INCONCLUSIVE test_first_token_is_quick",
        "    ttft.p99_9 <= 900 ms: 557.4 ms (> 535.1 ms)",
        "  PASS         test_p99",
        "    no limit: TPOT P99: 14.5 ms [12, 15], indicative",
        "  ERROR        test_unreachable[<b>|x]",
        "    not measured",
    ]


def test_the_overview_puts_the_worst_last(report: Entry) -> None:
    assert [line.text for line in overview(report)] == [
        "PASS         test_p99  ttft.p99 <= 600 ms: 468.3 ms [449.5, 491.7]",
        "INCONCLUSIVE test_first_token_is_quick  ttft.p99_9 <= 900 ms: 557.4 ms (> 535.1…",
        "ERROR        test_unreachable[<b>|x]  not measured",
    ]


def test_headlines_and_sharing_of_a_search(every_entry: dict[str, Entry]) -> None:
    lines = text_of(every_entry["throughput"], width=100).splitlines()
    assert lines[3:11] == [
        "  open loop, poisson arrivals at 5 to 40 req/s (4 loads), 3 min 25 s",
        "  3992 of 4000 requests completed (99.8 %); 8 timeout",
        "  shared measurement: 2 of 4 loads measured by gates/test_capacity.py::test_maximum",
        "",
        "  Max output throughput  2847 tok/s [2733, 2961]",
        "  Sustainable load       20 req/s",
        "  Tokens per GPU-second  355.9 tok/s [341.7, 370.1]",
        "",
    ]
    assert lines.index("  Throughput Summary") < lines.index("  Latency at Maximum Throughput")


def test_what_cannot_be_measured_is_said_and_is_no_zero(every_entry: dict[str, Entry]) -> None:
    text = text_of(every_entry["memory_pressure"], width=100)
    assert "  Preemption rate [110%]  not measurable: the engine gives no such data" in text


def test_a_limit_shows_its_metric_once(every_entry: dict[str, Entry]) -> None:
    entry = copy.deepcopy(every_entry["fairness"])
    objective = {
        "metric": "jain_index", "op": ">=", "limit": 0.9, "unit": "ratio", "point": 0.8712, "lower": 0.85,
        "upper": 0.89, "verdict": "fail", "n": 400, "reason": "", "requests_needed": None,
    }  # fmt: skip
    entry["gate"] = {"verdict": "fail", "objectives": [objective]}
    text = text_of(entry, width=100)
    assert "jain_index >= 0.9: 0.8712 [0.85, 0.89]" in text
    assert "Jain's fairness index" not in text


def test_every_missing_clause_is_listed(entry: Entry) -> None:
    unmet = entry["compliance"]["requirements"][0]
    many = [unmet | {"id": f"M-{i}", "statement": f"Do {i}."} for i in range(11)]
    entry["compliance"] |= {"requirements": many, "next_class": None}
    assert "      → Do 10." in text_of(entry)


def _with_table(entry: Entry, **tables: Entry) -> Entry:
    return copy.deepcopy(entry) | {"tables": tables}


def test_a_wide_table_goes_on_below(entry: Entry) -> None:
    columns = ["Level", *(f"Figure {i}" for i in range(8))]
    wide = {"title": "Wide", "columns": columns, "rows": [["10%", *(f"{i} ms" for i in range(8))]]}
    lines = text_of(_with_table(entry, wide=wide), width=60).splitlines()
    start = lines.index("  Wide")
    assert lines[start : start + 6] == [
        "  Wide",
        "  Level  Figure 0  Figure 1  Figure 2  Figure 3  Figure 4",
        "  10%        0 ms      1 ms      2 ms      3 ms      4 ms",
        "",
        "  Level  Figure 5  Figure 6  Figure 7",
        "  10%        5 ms      6 ms      7 ms",
    ]


def test_long_words_are_broken_as_the_standard_library_breaks_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "_PIECE", 3)
    drawn = random.Random(1)
    for _ in range(500):
        parts = ("a" * drawn.randint(1, 60), " ", " " * 30, "-", "b c", "\n")
        text = "".join(drawn.choices(parts, k=drawn.randint(0, 8)))
        width, first, rest = drawn.randint(6, 14), " " * drawn.randint(0, 4), " " * drawn.randint(0, 4)
        expected = textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
        )
        assert terminal._wrap(text, width, first, rest) == (expected or [""])


def test_a_word_of_a_megabyte_is_not_copied_for_each_line(monkeypatch: pytest.MonkeyPatch) -> None:
    longest, broken = 0, terminal._Wrapper._handle_long_word

    def handle(self: Any, chunks: list[str], *arguments: Any) -> None:
        nonlocal longest
        longest = max(longest, len(chunks[-1]))
        broken(self, chunks, *arguments)

    monkeypatch.setattr(terminal._Wrapper, "_handle_long_word", handle)
    assert len(terminal._wrap("x" * 10**6, 82)) == 12_500
    assert 0 < longest <= 2 * terminal._PIECE


def test_what_pytest_has_told_is_not_told_again(report: Entry) -> None:
    undecided, passed, absent = report["tests"]
    for entry in (undecided, passed, absent):
        assert brief_lines(entry, failure_told=True) == []
    table = {"title": "The limits", "columns": ["a", "b"], "rows": [["1", "2"]]}
    asked = {**undecided, "tables": {"calibration": table}}
    told = [line.text for line in brief_lines(asked, failure_told=True)]
    assert told[0] == "  INCONCLUSIVE · gates/test_chat.py::test_first_token_is_quick"
    assert "  The limits" in told
    assert not any("in all would decide" in line or "completed" in line for line in told)


# Text tables: flush right numbers, names cut before numbers, nothing beyond the width.


COLUMNS = ("metric", "value", "change", "verdict")
ROWS = [
    ("ttft.p99", "524 ms", "+4.2 % [+1.0, +7.2]", "regressed"),
    ("output_token_throughput[full@50%]", "1843 tok/s", "not known", "inconclusive"),
    ("tpot.p50", "9 ms", "-1.0 % [-2.0, +0.1]", "equivalent"),
]


def test_what_fits_is_shown_as_it_is() -> None:
    assert text_table(("name", "runs"), [("main", "3"), ("v1.4", "12")], width=80) == [
        "name  runs", "----------", "main     3", "v1.4    12",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [70, 62])
def test_names_are_cut_and_numbers_are_not(width: int) -> None:
    lines = text_table(COLUMNS, ROWS, width=width, whole=("verdict",))
    assert max(map(len, lines)) <= width
    assert "+4.2 % [+1.0, +7.2]  regressed" in lines[2]
    assert lines[3].endswith("1843 tok/s            not known  inconclusive")
    assert "…" in lines[3]


def test_a_very_narrow_terminal_costs_numbers_last() -> None:
    lines = text_table(COLUMNS, ROWS, width=40)
    assert max(map(len, lines)) <= 40
    assert "1843 tok/s" in lines[3]
    assert "…" in lines[2]


def test_a_table_without_rows_has_its_head() -> None:
    assert text_table(("a", "b"), [], width=10) == ["a  b", "----"]


def test_a_line_break_in_a_name_breaks_no_line() -> None:
    assert text_table(("a",), [("x\ny",)], width=10)[-1] == "x y"
