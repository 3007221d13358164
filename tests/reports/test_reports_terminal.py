"""The terminal section."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.reports.terminal import overview, section_lines
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
               998 samples cannot bound ttft.p99_9: about 10000 are needed, 9002
               more

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

  warning  client_cpu: the measuring process used 95% of a core

  compliance: not compliant (literal reading: conditional); 6 requirements
  apply: 1 met, 4 unmet that block it, 1 unmet that lower it
    M-4.1-sut-boundary-declared: no evidence: sut.boundary
    M-4.1.1-accelerator: no evidence: sut.hardware.accelerator_type,
      sut.hardware.accelerator_count
    M-5.1.4.1-percentiles: 998 samples, P99.9 needs 10000
    … and 1 more (-v, or the report)

  next:
    - to decide the limits, measure about 9002 more requests (requests=10002)
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
    text = text_of(entry, verbose=True)
    assert "ok       send_lag: sends were late by 0.183 ms" in text
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
    assert "  VOID     send_lag: late by 80 ms" in [line.text for line in lines]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_line_is_wider_than_the_terminal(entry: Entry, report: Entry, width: int) -> None:
    entry["error"] = "x" * 300
    lines = section_lines(entry, width=width, verbose=True) + overview(report, width=width)
    assert max(len(line.text) for line in lines) <= width


def test_a_long_error_is_cut(entry: Entry) -> None:
    entry["error"] = "\n".join(f"line {i}" for i in range(50))
    assert "  … 42 more lines (-v)" in text_of(entry)
    assert "line 49" in text_of(entry, verbose=True)


def test_colours_only_repeat_the_words(entry: Entry) -> None:
    marked = [line for line in section_lines(entry) if line.markup.get("green") or line.markup.get("red")]
    assert [line.text.split()[0] for line in marked] == ["pass", "compliance:", "apply:"]


def test_the_overview_puts_the_worst_last(report: Entry) -> None:
    assert [line.text for line in overview(report)] == [
        "PASS         test_p99  ttft.p99 <= 600 ms: 468.3 ms [449.5, 491.7]",
        "INCONCLUSIVE test_first_token_is_quick  ttft.p99 <= 600 ms: 468.3 ms [449.5, 49…",
        "ERROR        test_unreachable[<b>|x]  ttft.p99 <= 500 ms: not measured",
    ]
