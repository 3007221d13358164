"""``report.html``: the full report, appendix C.2 of the draft (METHODOLOGY §15), in one file.

Verdicts first, then the draft's six sections in their order. Needs no network and no scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_llmbench.reports import html_blocks, numbers, summaries
from pytest_llmbench.reports.document import TestView, fact_text, measured_text, objective_text
from pytest_llmbench.reports.entry import Entry
from pytest_llmbench.reports.html_style import STYLE
from pytest_llmbench.reports.markup import Html, details, element, fragment, pairs, table
from pytest_llmbench.reports.report_view import ReportView
from pytest_llmbench.reports.summaries import SECTIONS


def html_report(report: Entry) -> str:
    """Render the whole page."""
    view = ReportView(report)
    bodies = (
        _identification(view),
        _configuration(view),
        _results(view),
        fragment([_article(i, test) for i, test in enumerate(view.tests)]),
        _compliance(view),
        _reproduction(view),
    )
    sections = [
        element("section", element("h2", f"{number}. {title}"), body)
        for number, (title, body) in enumerate(zip(SECTIONS, bodies, strict=True), start=1)
    ]
    which = " (incomplete)" if view.incomplete else ""
    title = f"LLM benchmark report{which}: {view.model}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    page = element("html", head, element("body", _top(view, title), sections), lang="en")
    return f"<!DOCTYPE html>\n{page}\n"


def _top(view: ReportView, title: str) -> Html:
    sut, generator = view.report["sut"], view.report["generator"]
    meta = f"{sut['endpoint']} · {view.report['started']} · {generator['name']} {generator['version']}"
    return element(
        "header",
        element("h1", title),
        element("p", meta, class_="meta"),
        element("p", view.incomplete, class_="incomplete") if view.incomplete else None,
        element("p", view.simulated, class_="simulated") if view.simulated else None,
        _verdict_table(view),
    )


def _verdict_table(view: ReportView) -> Html:
    rows = []
    for i, test in enumerate(view.tests):
        first = test.objectives[0] if test.objectives else None
        more = f" (+ {len(test.objectives) - 1} more)" if len(test.objectives) > 1 else ""
        rows.append(
            (
                element("a", test.name, href=f"#test-{i}"),
                html_blocks.pill(test.headline),
                "no limit" if first is None else objective_text(first) + more,
                test.first_figure if first is None else measured_text(first),
                html_blocks.class_pill(test),
            )
        )
    columns = ("Test", "Verdict", "Limit", "Measured and interval", "Compliance")
    return fragment(table(columns, rows), element("p", view.tally, class_="meta"))


def _identification(view: ReportView) -> Html:
    rows = [
        (element("code", key), fact_text(fact["value"]), fact["origin"], fact.get("source") or "")
        for key, fact in view.facts.items()
    ]
    facts = table(("Fact", "Value", "Origin", "Source"), rows)
    known = pairs(summaries.identification(view))
    return fragment(known, details(f"All {len(rows)} facts with their origin", facts) if rows else None)


def _configuration(view: ReportView) -> Html:
    """Workload, load and execution parameters of each test."""
    return _per_test(view.tests, _configuration_of)


def _configuration_of(test: TestView) -> Html:
    known = summaries.configuration(test)
    if not known:
        return element("p", "Nothing was sent.")
    workload = test.entry["workload"]
    rows = [(element("code", key), fact_text(value)) for key, value in workload["specification"].items()]
    return fragment(pairs(known), details("Workload specification", table(("Parameter", "Value"), rows)))


def _results(view: ReportView) -> Html:
    return fragment(
        element("h3", "Headline figures"),
        html_blocks.rows_table(summaries.headline_rows(view.tests)),
        element("h3", "Latency summary"),
        _latency_summary(view),
        element("h3", "Throughput summary"),
        html_blocks.rows_table(summaries.throughput_rows(view.tests)),
        element("h3", "Success metrics"),
        html_blocks.rows_table(summaries.success_rows(view.tests)),
    )


def _latency_summary(view: ReportView) -> Html:
    found = summaries.latency_rows(view.tests)
    if not found.rows:
        return element("p", numbers.NOT_MEASURED)
    return table(found.columns, [(*row[:2], *map(_over_interval, row[2:])) for row in found.rows])


def _over_interval(claim: str) -> Html:
    """Value over interval: six columns have no room for both on one line."""
    value, bracket, ends = claim.partition(" [")
    below = element("small", f"[{ends}", class_="nowrap") if bracket else None
    return fragment(value, element("br") if below else None, below)


def _article(i: int, test: TestView) -> Html:
    return element(
        "article",
        element("h3", test.nodeid, id=f"test-{i}"),
        element("p", test.kind, class_="meta"),
        html_blocks.verdicts(test),
        html_blocks.error(test),
        html_blocks.attempt(test),
        html_blocks.objectives(test),
        html_blocks.comparison_block(test),
        html_blocks.headlines(test),
        element("p", test.completion) if test.measured else None,
        html_blocks.result_tables(test),
        html_blocks.level_block(test),
        html_blocks.figures(test, salt=str(i)),
        html_blocks.notes(test),
        element("h4", "Configuration summary") if test.entry.get("configuration") else None,
        html_blocks.configuration(test),
        element("h4", "Validity"),
        html_blocks.findings(test),
        html_blocks.all_metrics(test) if test.measured else None,
    )


def _compliance(view: ReportView) -> Html:
    return fragment(pairs(summaries.performed(view)), _per_test(view.tests, _compliance_of))


def _compliance_of(test: TestView) -> Html:
    if not test.of_the_draft:
        return element("p", html_blocks.class_pill(test))
    literal = html_blocks.pill(test.entry["compliance"]["verdict_literal"])
    return fragment(
        element("p", html_blocks.class_pill(test), " (literal reading: ", literal, ")"),
        element("h4", "Deviations"),
        html_blocks.deviations(test),
        element("h4", "Limitations"),
        html_blocks.long_list(summaries.limitations(test), "limitations"),
        html_blocks.ledger(test) if test.requirements else None,
    )


def _reproduction(view: ReportView) -> Html:
    return fragment(pairs(summaries.harness(view)), _per_test(view.tests, _reproduction_of))


def _reproduction_of(test: TestView) -> Html:
    stretches, engine = summaries.stretch_rows(test), summaries.engine_rows(test)
    readings = html_blocks.load_table(engine.columns, engine.rows) if engine.rows else None
    return fragment(
        pairs(summaries.data(test)),
        html_blocks.load_table(stretches.columns, stretches.rows) if stretches.rows else None,
        details("Readings of the serving engine", readings) if engine.rows else None,
        html_blocks.selfcheck(test),
    )


def _per_test(tests: Iterable[TestView], body: Callable[[TestView], Html]) -> Html:
    return fragment([fragment(element("h3", test.name), body(test)) for test in tests])
