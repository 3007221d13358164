"""``report.md``: a comment for a pull request. Verdicts first, the rest folded, 60 KB at most.

Platforms refuse comments from 64 KB on. What does not fit is left out, the least important part first, and
the text says so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.reports.document import (
    Entry,
    ReportView,
    TestView,
    measured_text,
    objective_text,
    words,
)

MAX_BYTES = 60_000
_ICONS = {"PASS": "✅", "FAIL": "❌", "INCONCLUSIVE": "⚠️", "INVALID": "🚫", "ERROR": "🚫", "SKIPPED": "⏭️"}
_SHOWN_ROWS = 200
_SHOWN_ERROR_CHARACTERS = 1_500


@dataclass(frozen=True)
class _Part:
    """A stretch of the text. Of the parts that may go, the highest ``rank`` goes first."""

    rank: int
    name: str
    text: str


def markdown_report(report: Entry, *, max_bytes: int = MAX_BYTES) -> str:
    """The text, at most ``max_bytes`` of UTF-8."""
    view = ReportView(report)
    parts = [_Part(0, "verdicts", _head(view))]
    for test in view.tests:
        parts += _parts(test)
    parts.append(_Part(1, "system", _system(view)))
    return _fit(parts, max_bytes)


def _head(view: ReportView) -> str:
    rows = []
    for test in view.tests[:_SHOWN_ROWS]:
        limits = [(objective_text(o), measured_text(o)) for o in test.objectives] or [("no limit", "")]
        rows.append(
            (
                _bar(_code(test.name)),
                f"{_ICONS[test.headline]} {test.headline}",
                "<br>".join(_bar(_code(limit)) for limit, _ in limits),
                "<br>".join(_escape(measured) for _, measured in limits),
                words(test.entry["compliance"]["verdict"]),
            )
        )
    left_out = len(view.tests) - len(rows)
    more = f"\n… and {left_out} more tests\n" if left_out else ""
    table = _table(("Test", "Verdict", "Limit", "Measured and interval", "Compliance"), rows)
    return f"## LLM benchmark: {view.tally}\n\n{table}{more}"


def _parts(test: TestView) -> list[_Part]:
    error = test.entry.get("error")
    heading = f"\n### {_code(test.name)}\n\n{_escape(test.kind)} · {test.judgements}\n"
    facts = (test.load_text, test.completion, *_reasons(test)) if test.measured else ()
    summary = [f"- {_escape(text)}" for text in facts]
    parts = [_Part(2, "summaries", heading + "\n" + "\n".join(summary) + "\n")]
    if error:
        parts.append(_Part(3, "error texts", _fence(_clip(error))))
    for entry in test.tables.values():
        rows = [[_escape(cell) for cell in row] for row in entry["rows"]]
        parts.append(_Part(4, "tables", _folded(entry["title"], _table(entry["columns"], rows))))
    unmet = [
        f"- {_code(r['id'])} ({r['level']}): {_escape(r['reason'])}"
        for r in test.unmet("blocks", "downgrades")
    ]
    if unmet:
        parts.append(
            _Part(6, "unmet requirements", _folded(f"{len(unmet)} unmet requirements", "\n".join(unmet)))
        )
    if test.entry.get("configuration"):
        rows = [[item["item"], _escape(item["text"])] for item in test.entry["configuration"]]
        parts.append(_Part(5, "configuration", _folded("Configuration", _table(("Item", "Value"), rows))))
    return parts


def _reasons(test: TestView) -> list[str]:
    """Why a limit was not passed, why a run is void, and what to do."""
    limits = [
        f"{objective_text(o)}: {o['verdict']}, {o['reason']}"
        for o in test.objectives
        if o["verdict"] != "pass" and o.get("reason")
    ]
    findings = [f"{finding['check']}: {finding['message']}" for finding in test.noteworthy_findings]
    return [*limits, *findings, *test.next_steps]


def _system(view: ReportView) -> str:
    rows = [
        ("Model", view.model),
        ("Hardware", view.hardware),
        ("Software", view.software),
        ("SUT boundary", view.boundary),
        ("Endpoint", view.report["sut"]["endpoint"]),
        ("Started", view.report["started"]),
        ("Generator", f"{view.report['generator']['name']} {view.report['generator']['version']}"),
    ]
    return _folded("System", _table(("", ""), [(name, _escape(value)) for name, value in rows]))


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
    if not dropped:
        return ""
    counts = ", ".join(f"{name} ({count})" for name, count in dropped.items())
    return f"\n_Left out to stay within the size of a comment: {counts}. The full report has them._\n"


def _cut(text: str, max_bytes: int) -> str:
    note = "\n\n_Cut to stay within the size of a comment._\n"
    whole = text.encode()[: max_bytes - len(note.encode())].decode(errors="ignore")
    return whole.rpartition("\n")[0] + note


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{_escape(title)}</summary>\n\n{body}\n</details>\n"


def _escape(text: str) -> str:
    """Text as text: no markup, no mentions, one line."""
    flat = " ".join(text.split())
    escaped = re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", flat.replace("&", "&amp;"))
    return escaped.replace("<", "&lt;").replace(">", "&gt;").replace("@", "@\u200b")


def _code(text: str) -> str:
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{' '.join(text.split())}{pad}{fence}"


def _bar(text: str) -> str:
    """For a table cell: a bar ends it even inside a code span."""
    return text.replace("|", "\\|")


def _fence(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}\n"


def _clip(text: str) -> str:
    return text if len(text) <= _SHOWN_ERROR_CHARACTERS else text[:_SHOWN_ERROR_CHARACTERS] + " …"


__all__ = ["MAX_BYTES", "markdown_report"]
