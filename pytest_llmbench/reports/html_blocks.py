"""HTML blocks about one test, shared by ``report.html`` and the rows of pytest-html."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.reports import numbers, plots
from pytest_llmbench.reports.document import (
    TONES,
    Entry,
    TestView,
    fact_text,
    measured_text,
    metric_label,
    objective_text,
    words,
)
from pytest_llmbench.reports.markup import Html, details, element, fragment, pairs, paragraphs, table


def pill(word: str) -> Html:
    """A verdict word in its colour."""
    return element("span", words(word), class_=f"pill {TONES.get(word, 'neutral')}")


def verdicts(test: TestView) -> Html:
    compliance = test.entry["compliance"]
    literal = compliance["verdict_literal"]
    return element(
        "p",
        pill(test.headline),
        " ",
        element("span", "validity ", pill(test.entry["validity"]["verdict"]), class_="judgement"),
        element("span", "compliance ", pill(compliance["verdict"]), class_="judgement"),
        element("span", "literal reading ", pill(literal), class_="judgement")
        if literal != compliance["verdict"]
        else None,
        element("span", "limits ", pill(test.entry["gate"]["verdict"]), class_="judgement"),
        class_="verdicts",
    )


def error(test: TestView) -> Html | None:
    text = test.entry.get("error")
    return element("pre", text, class_="error") if text else None


def objectives(test: TestView) -> Html:
    if not test.objectives:
        return element("p", "No limits were set.")
    rows = [
        (
            element("code", objective_text(objective), class_="nowrap"),
            element("span", measured_text(objective), class_="nowrap"),
            str(objective.get("n", 0)),
            pill(objective["verdict"]),
            objective.get("reason") or "",
        )
        for objective in test.objectives
    ]
    return table(("Limit", "Measured and interval", "n", "Verdict", "Reason"), rows)


def result_tables(test: TestView) -> list[Html]:
    return [table(entry["columns"], entry["rows"], caption=entry["title"]) for entry in test.tables.values()]


def figures(test: TestView, *, salt: str = "") -> list[Html]:
    return [
        element(
            "figure",
            Html(plots.render(plot, plot_id, salt=salt)),
            element("figcaption", plot["title"]),
        )
        for plot_id, plot in test.plots.items()
    ]


def findings(test: TestView) -> Html:
    rows = [
        (
            finding["check"],
            element("span", _finding_word(finding), class_=f"pill {_finding_tone(finding)}"),
            finding["message"],
        )
        for finding in sorted(test.findings, key=lambda finding: bool(finding["ok"]))
    ]
    return table(("Check", "State", "What was seen"), rows) if rows else element("p", "No check was made.")


def _finding_word(finding: Entry) -> str:
    return "ok" if finding["ok"] else "voids the run" if finding["voids"] else "warning"


def _finding_tone(finding: Entry) -> str:
    return "good" if finding["ok"] else "bad" if finding["voids"] else "warn"


def ledger(test: TestView) -> Html:
    """Every requirement with its status, reason and evidence; what keeps the run from compliance first."""
    order = {"unmet": 0, "met": 1, "not_applicable": 2}
    effects = {"blocks": 0, "downgrades": 1}
    entries = sorted(
        test.requirements, key=lambda r: (order[r["status"]], effects.get(r.get("effect", "none"), 2))
    )
    rows = [
        (
            fragment(element("code", r["id"]), element("br"), element("small", r.get("statement") or "")),
            fragment(r["level"], element("br"), element("small", r.get("effect", "none"))),
            pill(r["status"]),
            fragment(r["reason"], _evidence(r["evidence"])),
        )
        for r in entries
    ]
    counts = ", ".join(f"{sum(r['status'] == s for r in entries)} {words(s)}" for s in order)
    summary = f"All {len(entries)} requirements: {counts}"
    return details(summary, table(("Requirement", "Level, effect", "Status", "Reason and evidence"), rows))


def _evidence(evidence: Mapping[str, object]) -> Html | None:
    if not evidence:
        return None
    lines = "\n".join(f"{key} = {fact_text(value)}" for key, value in evidence.items())
    return element("pre", lines, class_="evidence")


def configuration(test: TestView) -> Html:
    return pairs((item["item"], item["text"]) for item in test.entry.get("configuration") or ())


def selfcheck(test: TestView) -> Html:
    """The load generator about itself, in people's units."""
    check = test.entry["selfcheck"]
    if check is None:
        return element("p", "The load generator did not run.")
    rows = [(_spoken(name), _figure(name, value)) for name, value in check.items()]
    return details("Load generator self-check", table(("Figure", "Value"), rows))


def _spoken(name: str) -> str:
    text = name.removesuffix("_ns").replace("_", " ").replace("p50", "P50").replace("p99", "P99")
    return text[0].upper() + text[1:]


def _figure(name: str, value: object) -> str:
    if value is None:
        return numbers.NOT_MEASURED
    if name.endswith("_ns") and isinstance(value, int):
        return numbers.quantity(value / 1e6, "ms")
    if name == "cpu_share" and isinstance(value, int | float):
        return f"{numbers.percentage(value)} of one core"
    return str(value)


def all_metrics(test: TestView) -> Html:
    rows = [
        (
            fragment(metric_label(name), element("br"), element("small", name)),
            numbers.estimate(metric),
            str(metric["n"]),
            metric["method"],
        )
        for name, metric in test.entry["metrics"].items()
    ]
    return details(f"All {len(rows)} metrics", table(("Metric", "Value and interval", "n", "Method"), rows))


def notes(test: TestView) -> Html | None:
    texts = [*test.next_steps, *(test.entry.get("notes") or ())]
    return fragment(element("h4", "Notes and next steps"), paragraphs(texts)) if texts else None


__all__ = [
    "all_metrics",
    "configuration",
    "error",
    "figures",
    "findings",
    "ledger",
    "notes",
    "objectives",
    "pill",
    "result_tables",
    "selfcheck",
    "verdicts",
]
