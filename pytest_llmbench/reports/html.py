"""``report.html``: the full report, appendix C.2 of the draft (METHODOLOGY §15), in one file.

Verdicts first, then the draft's six sections in their order. Needs no network and no scripts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pytest_llmbench.reports import html_blocks, numbers
from pytest_llmbench.reports.document import (
    Entry,
    ReportView,
    TestView,
    fact_text,
    measured_text,
    metric_label,
    objective_text,
)
from pytest_llmbench.reports.html_style import STYLE
from pytest_llmbench.reports.markup import Html, details, element, fragment, pairs, paragraphs, table

SECTIONS = (
    "System Identification",
    "Test Configuration",
    "Results",
    "Detailed Results",
    "Methodology Compliance",
    "Reproduction Information",
)
_LATENCY = ("p50", "p90", "p95", "p99", "p99_9", "mean")


def html_report(report: Entry) -> str:
    """The whole page."""
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
    title = f"LLM benchmark report: {view.model}"
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
    return element("header", element("h1", title), element("p", meta, class_="meta"), _verdict_table(view))


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
                numbers.NOT_MEASURED if first is None else measured_text(first),
                html_blocks.pill(test.entry["compliance"]["verdict"]),
            )
        )
    columns = ("Test", "Verdict", "Limit", "Measured and interval", "Compliance")
    return fragment(table(columns, rows), element("p", view.tally, class_="meta"))


def _identification(view: ReportView) -> Html:
    known = pairs(
        (
            ("Model", view.model),
            ("Hardware", view.hardware),
            ("Software", view.software),
            ("SUT boundary", view.boundary),
            ("Endpoint", view.report["sut"]["endpoint"]),
            ("API", view.report["sut"]["api"] or "not declared"),
        )
    )
    rows = [
        (element("code", key), fact_text(fact["value"]), fact["origin"], fact.get("source") or "")
        for key, fact in view.facts.items()
    ]
    facts = table(("Fact", "Value", "Origin", "Source"), rows)
    return fragment(known, details(f"All {len(rows)} facts with their origin", facts) if rows else None)


def _configuration(view: ReportView) -> Html:
    """Workload, load and execution parameters of each test."""
    return _per_test(view.tests, _configuration_of)


def _configuration_of(test: TestView) -> Html:
    workload, load, warmup = test.entry["workload"], test.entry["load"], test.entry["warmup"]
    if workload is None or load is None:
        return element("p", "Nothing was sent.")
    kind = "reference workload" if workload["standard"] else "custom workload"
    known = pairs(
        (
            ("Workload", f"{workload['name']} ({kind}), seed {workload['seed']}"),
            ("Load", load["description"]),
            ("Requests", str(load["requests"])),
            ("Measured for", numbers.duration(load["duration_s"])),
            ("Warm-up", numbers.NOT_MEASURED if warmup is None else warmup["description"]),
        )
    )
    rows = [(element("code", key), fact_text(value)) for key, value in workload["specification"].items()]
    return fragment(known, details("Workload specification", table(("Parameter", "Value"), rows)))


def _results(view: ReportView) -> Html:
    return fragment(
        element("h3", "Latency summary"),
        _latency_summary(view),
        element("h3", "Throughput summary"),
        _throughput_summary(view),
        element("h3", "Success metrics"),
        _success(view),
    )


def _latency_summary(view: ReportView) -> Html:
    rows = [
        (test.name, metric_label(family), *(_claim(test, f"{family}.{statistic}") for statistic in _LATENCY))
        for test in view.tests
        if test.valid
        for family in test.families()
    ]
    if not rows:
        return element("p", numbers.NOT_MEASURED)
    labels = [metric_label(f"x.{statistic}").removeprefix("X ") for statistic in _LATENCY]
    return table(("Test", "Metric", *labels), rows)


def _claim(test: TestView, name: str) -> Html:
    """Value over interval: six columns have no room for both on one line."""
    value, bracket, ends = test.claim(name).partition(" [")
    below = element("small", f"[{ends}", class_="nowrap") if bracket else None
    return fragment(value, element("br") if below else None, below)


def _throughput_summary(view: ReportView) -> Html:
    rows = [
        (test.name, metric_label(name), numbers.estimate(metric))
        for test in view.tests
        if test.valid
        for name, metric in test.entry["metrics"].items()
        if "throughput" in name
    ]
    return (
        table(("Test", "Metric", "Value and interval"), rows) if rows else element("p", numbers.NOT_MEASURED)
    )


def _success(view: ReportView) -> Html:
    rows = [(test.name, test.completion) for test in view.tests]
    return table(("Test", "Requests"), rows)


def _article(i: int, test: TestView) -> Html:
    return element(
        "article",
        element("h3", test.nodeid, id=f"test-{i}"),
        element("p", test.kind, class_="meta"),
        html_blocks.verdicts(test),
        html_blocks.error(test),
        html_blocks.objectives(test),
        element("p", test.completion) if test.measured else None,
        html_blocks.result_tables(test),
        html_blocks.figures(test, salt=str(i)),
        html_blocks.notes(test),
        element("h4", "Configuration summary") if test.entry.get("configuration") else None,
        html_blocks.configuration(test),
        element("h4", "Validity"),
        html_blocks.findings(test),
        html_blocks.all_metrics(test) if test.measured else None,
    )


def _compliance(view: ReportView) -> Html:
    performed = sorted({test.entry["test"] for test in view.tests if test.measured})
    draft = view.report["generator"].get("draft", "")
    return fragment(
        pairs((("Draft", draft), ("Tests performed", ", ".join(performed) or "none"))),
        _per_test(view.tests, _compliance_of),
    )


def _compliance_of(test: TestView) -> Html:
    compliance = test.entry["compliance"]
    deviations = [f"{r['id']}: {r['reason']}" for r in test.unmet("blocks", "downgrades")]
    limitations = [finding["message"] for finding in test.noteworthy_findings]
    return fragment(
        element(
            "p",
            html_blocks.pill(compliance["verdict"]),
            " (literal reading: ",
            html_blocks.pill(compliance["verdict_literal"]),
            ")",
        ),
        element("h4", "Deviations"),
        paragraphs(deviations) or element("p", "none"),
        element("h4", "Limitations"),
        paragraphs(limitations) or element("p", "none"),
        html_blocks.ledger(test) if test.requirements else None,
    )


def _reproduction(view: ReportView) -> Html:
    generator, environment = view.report["generator"], view.report["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in environment.get("packages", {}).items())
    settings = ", ".join(
        f"{key}={fact_text(value)}" for key, value in environment.get("settings", {}).items()
    )
    harness = pairs(
        (
            ("Test harness", f"{generator['name']} {generator['version']}"),
            ("Command", " ".join(environment.get("command", [])) or "not recorded"),
            ("Settings", settings or "defaults"),
            ("Started", view.report["started"]),
            ("Python", f"{environment['implementation']} {environment['python']}"),
            ("Platform", f"{environment['platform']}, {environment['cpu_count'] or '?'} CPUs"),
            ("Packages", packages or "not recorded"),
        )
    )
    return fragment(harness, _per_test(view.tests, _reproduction_of))


def _reproduction_of(test: TestView) -> Html:
    workload = test.entry["workload"]
    data = pairs(
        (
            ("Seed", numbers.NOT_MEASURED if workload is None else str(workload["seed"])),
            ("Sequence SHA-256", (workload or {}).get("sequence_sha256") or "not recorded"),
            ("Records", test.entry["records_file"] or "not kept"),
        )
    )
    rows = [
        (
            s["label"],
            s["load"],
            str(s["requests"]),
            s["started"],
            numbers.duration(s["duration_s"]),
            s["key"][:12],
        )
        for s in test.entry.get("stretches") or ()
    ]
    columns = ("Stretch", "Load", "Requests", "Started", "Duration", "Plan")
    return fragment(data, table(columns, rows) if rows else None, html_blocks.selfcheck(test))


def _per_test(tests: Iterable[TestView], body: Callable[[TestView], Html]) -> Html:
    return fragment([fragment(element("h3", test.name), body(test)) for test in tests])


__all__ = ["SECTIONS", "html_report"]
