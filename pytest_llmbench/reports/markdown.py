"""``report.md``: a comment for a pull request. Verdicts first, then the six sections of appendix C.2, folded.

Platforms refuse comments from 64 KB on. What does not fit is left out, the least important part first, and
the text says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.reports import comparisons, summaries
from pytest_llmbench.reports.document import TestView, measured_text, objective_text
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.reports.markdown_text import (
    bar,
    bullets,
    code,
    escape,
    fence,
    folded,
    table,
    text_table,
)
from pytest_llmbench.reports.report_view import ReportView
from pytest_llmbench.reports.summaries import SECTIONS

MAX_BYTES = 60_000
_ICONS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "⚠️", "INVALID": "🚫", "ERROR": "🚫", "SKIPPED": "⏭️",
    "XFAIL": "⏭️", "XPASS": "⚠️"}  # fmt: skip
_SHOWN_ROWS = 200
_SHOWN_SUMMARY_ROWS = 80
_BESIDE_THE_ITEMS = ("Levels", "SUT variants", "Latency objectives", "Sharing")


@dataclass(frozen=True)
class _Part:
    """A stretch of the text. Of the parts that may go, the highest ``rank`` goes first."""

    rank: int
    name: str
    text: str


def markdown_report(report: Entry, *, max_bytes: int = MAX_BYTES) -> str:
    """The text, at most ``max_bytes`` of UTF-8."""
    view = ReportView(report)
    bodies = (
        [_Part(1, "system", folded("System", _pairs(summaries.identification(view))))],
        [part for test in view.tests for part in _configuration(test)],
        _results(view),
        [part for test in view.tests for part in _details(test)],
        [_Part(6, "compliance", _pairs(summaries.performed(view)))]
        + [part for test in view.tests for part in _compliance(test)],
        [_Part(7, "reproduction", folded("Test harness", _pairs(summaries.harness(view))))]
        + [part for test in view.tests for part in _reproduction(test)],
    )
    parts = [_Part(0, "verdicts", _head(view))]
    for number, (title, body) in enumerate(zip(SECTIONS, bodies, strict=True), start=1):
        heading = f"\n### {number}. {title}\n"
        parts += [_Part(min((part.rank for part in body), default=8), "headings", heading), *body]
    return _fit(parts, max_bytes)


def _head(view: ReportView) -> str:
    rows = []
    for test in view.tests[:_SHOWN_ROWS]:
        limits = [(objective_text(o), measured_text(o)) for o in test.objectives]
        limits = limits or [("no limit", test.first_figure)]
        rows.append(
            (
                bar(code(test.name)),
                f"{_ICONS[test.headline]} {test.headline}",
                "<br>".join(bar(code(limit)) for limit, _ in limits),
                "<br>".join(escape(measured) for _, measured in limits),
                test.compliance_text,
            )
        )
    left_out = len(view.tests) - len(rows)
    more = f"\n… and {left_out} more tests\n" if left_out else ""
    verdicts = table(("Test", "Verdict", "Limit", "Measured and interval", "Compliance"), rows)
    said = "".join(f"**{escape(text)}**\n\n" for text in (view.incomplete, view.simulated) if text)
    return f"## LLM benchmark: {view.tally}\n\n{said}{verdicts}{more}"


def _configuration(test: TestView) -> list[_Part]:
    """The eight items of the configuration summary and what they leave out; else all that is known."""
    items = [(item["item"], item["text"]) for item in test.entry.get("configuration") or ()]
    known = [pair for pair in summaries.configuration(test) if not items or pair[0] in _BESIDE_THE_ITEMS]
    return [_Part(5, "configuration", folded(test.name, _pairs(items + known)))] if items or known else []


def _results(view: ReportView) -> list[_Part]:
    named = (
        (2, "Headline figures", summaries.headline_rows(view.tests)),
        (5, "Latency summary", summaries.latency_rows(view.tests)),
        (5, "Throughput summary", summaries.throughput_rows(view.tests)),
        (5, "Success metrics", summaries.success_rows(view.tests)),
    )
    return [
        _Part(rank, "summary tables", folded(title, _shortened(found)))
        for rank, title, found in named
        if found.rows
    ]


def _shortened(found: summaries.Rows) -> str:
    left_out = len(found.rows) - _SHOWN_SUMMARY_ROWS
    more = f"\n… and {left_out} more rows\n" if left_out > 0 else ""
    return text_table(found.columns, found.rows[:_SHOWN_SUMMARY_ROWS]) + more


def _details(test: TestView) -> list[_Part]:
    error = test.entry.get("error")
    heading = f"\n#### {code(test.name)}\n\n{escape(test.kind)} · {test.judgements}\n"
    seen = (
        (test.load_text, test.completion, *test.sharing, *test.void_loads, *_reasons(test))
        if test.measured
        else ()
    )
    attempt = [test.attempt] if test.attempt is not None else []
    parts = [_Part(2, "summaries", f"{heading}\n{bullets((*attempt, *seen))}")]
    if test.comparisons:
        found = test.comparisons
        body = text_table(comparisons.COLUMNS, comparisons.rows(found))
        parts.append(_Part(3, "comparisons", f"\n{escape(comparisons.caption(found))}\n\n{body}"))
    if error:
        parts.append(_Part(3, "error texts", fence(error)))
    for entry in test.tables.values():
        parts.append(_Part(4, "tables", folded(entry["title"], text_table(entry["columns"], entry["rows"]))))
    levels = summaries.levels_of(test)
    if levels is not None:
        body = text_table(levels.columns, levels.rows)
        foot = f"\n{escape(levels.footnote)}\n" if levels.footnote else ""
        parts.append(_Part(6, "levels", folded(f"All {len(levels.rows)} levels", body + foot)))
    return parts


def _reasons(test: TestView) -> list[str]:
    """Why a limit was not passed, why a run is void, what the test notes, and what to do."""
    limits = [
        f"{objective_text(o)}: {o['verdict']}, {o['reason']}"
        for o in test.objectives
        if o["verdict"] != "pass" and o.get("reason")
    ]
    limits += [
        f"{comparisons.verdict_text(found)}: {comparisons.comparison_text(found)}"
        for found in test.comparisons
        if found.get("gated") and found["verdict"] in ("regressed", "inconclusive")
    ]
    findings = [f"{finding['check']}: {finding['message']}" for finding in test.noteworthy_findings]
    return [*limits, *findings, *test.next_steps, *(test.entry.get("notes") or ())]


def _compliance(test: TestView) -> list[_Part]:
    """The compliance of a test: the verdict, the deviations and the limitations."""
    if not test.measured:
        return []
    groups = [*summaries.deviations(test), ("Limitations:", summaries.limitations(test) or ["none"])]
    unmet = len(test.unmet("blocks", "downgrades"))
    if not test.of_the_draft:
        return []
    verdict = test.compliance_text
    body = "\n".join(f"{escape(heading)}\n\n{bullets(texts)}" for heading, texts in groups)
    return [
        _Part(8, "unmet requirements", folded(f"{test.name}: {verdict}, {unmet} unmet requirements", body))
    ]


def _reproduction(test: TestView) -> list[_Part]:
    stretches = summaries.stretch_rows(test)
    body = _pairs(summaries.data(test))
    if not stretches.rows:
        return []
    parts = [_Part(7, "reproduction", folded(test.name, body))]
    if len(test.entry["stretches"]) > 1:
        runs = text_table(stretches.columns, stretches.rows)
        parts.append(_Part(9, "stretches", folded(f"{test.name}: {len(stretches.rows)} stretches", runs)))
    return parts


def _pairs(found: summaries.Pairs) -> str:
    return text_table(("Item", "Value"), found)


def _fit(parts: Sequence[_Part], max_bytes: int) -> str:
    size = sum(len(part.text.encode()) + 1 for part in parts)
    dropped: Counter[str] = Counter()
    gone: set[int] = set()
    # Of equally important parts the last goes first: earlier tests keep theirs longest.
    for i in sorted(range(1, len(parts)), key=lambda i: (parts[i].rank, i), reverse=True):
        if size + len(_left_out(dropped).encode()) <= max_bytes:
            break
        gone.add(i)
        dropped[parts[i].name] += 1
        size -= len(parts[i].text.encode()) + 1
    text = "\n".join(part.text for i, part in enumerate(parts) if i not in gone) + _left_out(dropped)
    return text if len(text.encode()) <= max_bytes else _cut(text, max_bytes)


def _left_out(dropped: Mapping[str, int]) -> str:
    counts = ", ".join(f"{name} ({count})" for name, count in dropped.items() if name != "headings")
    if not counts:
        return ""
    return f"\n_Left out to stay within the size of a comment: {counts}. The full report has them._\n"


def _cut(text: str, max_bytes: int) -> str:
    note = "\n\n_Cut to stay within the size of a comment._\n"
    whole = text.encode()[: max_bytes - len(note.encode())].decode(errors="ignore")
    return whole.rpartition("\n")[0] + note
