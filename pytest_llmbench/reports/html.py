"""``report.html``: the full report, appendix C.2 of the draft, in one file.

First what a reader decides by: a banner, a card for each test that did not pass, the limits on one axis. Then
the draft's six sections in their order, folded where nothing is amiss. Needs no network; its script filters
and sorts, and nothing is lost without it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.model.result import OVER_TIME
from pytest_llmbench.reports import html_blocks, summaries
from pytest_llmbench.reports.document import TONES, ReportView, TestView, fact_text, warnings_of, words
from pytest_llmbench.reports.first_screen import STATE_TONES, Card, FirstScreen, Held, first_of, limits_of
from pytest_llmbench.reports.html_strip import comparison_strip, limit_strip, metric_strips
from pytest_llmbench.reports.markup import Html, asset, details, element, fragment, pairs, table
from pytest_llmbench.reports.summaries import SECTIONS

MOST_PICTURES = 60
"""Most pictures on the page, in all tests together: they are most of its bytes, and of the time to render
it."""
_FOLDED = ("PASS", "SKIPPED", "XFAIL")


def html_report(report: Entry) -> str:
    """Render the whole page."""
    view = ReportView(report)
    screen = FirstScreen(view)
    which = " (incomplete)" if view.incomplete else ""
    title = f"LLM benchmark report{which}: {view.model}"
    script = asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    # Run this script and no other, and load nothing from anywhere.
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{screen.banner} – {title}"),
        element("style", asset("report.css")),
    )
    body = element(
        "body",
        _top(view, screen, title),
        _cards(screen),
        _warnings(view),
        comparison_strip(screen.compared),
        limit_strip(screen.held),
        element("section", _filters(view), _test_table(view), id="tests"),
        _sections(view),
        element("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(view: ReportView) -> list[Html]:
    """The six sections of appendix C.2; all but the fourth are folded."""
    bodies = (
        _identification(view),
        _configuration(view),
        _results(view),
        fragment(
            _detailed(i, test, drawn, view.tests)
            for i, (test, drawn) in enumerate(zip(view.tests, _drawn(view.tests), strict=True))
        ),
        _compliance(view),
        _reproduction(view),
    )
    made = []
    for number, (title, body) in enumerate(zip(SECTIONS, bodies, strict=True), start=1):
        heading = element("h2", f"{number}. {title}")
        folded = element("details", element("summary", heading), body, class_="part")
        made.append(element("section", heading, body) if title == "Detailed Results" else folded)
    return made


def _top(view: ReportView, screen: FirstScreen, title: str) -> Html:
    facts = [element("span", name, " ", element("b", text)) for name, text in screen.facts]
    demanded = "bad" if screen.compliance_demanded else "meta"
    return element(
        "header",
        element("h1", title),
        element("p", screen.banner, class_=f"banner {screen.tone}"),
        element("p", screen.change, class_="change") if screen.change else None,
        element("p", screen.about) if screen.about else None,
        element("p", view.incomplete, class_="incomplete") if view.incomplete else None,
        element("p", view.simulated, class_="simulated") if view.simulated else None,
        element("p", facts, class_="facts"),
        element("p", screen.compliance, class_=f"compliance {demanded}") if screen.compliance else None,
    )


def _cards(screen: FirstScreen) -> Html | None:
    cards = [_card(card) for card in screen.cards]
    if not cards:
        return None
    again = "Run it again:" if len(cards) == 1 else "Run them again:"
    command = element("div", again, element("pre", screen.command), class_="again")
    return fragment(element("section", cards, class_="cards"), command)


def _card(card: Card) -> Html:
    link = element("a", card.test.name, href=f"#test-{card.number}")
    return element(
        "article",
        element("h2", html_blocks.pill(card.test.headline), " ", link),
        _deciding(card.deciding, card.more) if card.deciding is not None else None,
        element("p", card.cause, class_="cause"),
        class_="card",
        **html_blocks.filtered(card.test),
    )


def _warnings(view: ReportView) -> Html | None:
    """Warnings that concern the figures, whatever the verdict; None without any."""
    texts = [element("li", text) for text in warnings_of(view.tests)]
    heading = element("h2", "Warnings", class_="plain")
    return element("section", heading, element("ul", texts), class_="warned") if texts else None


def _deciding(held: Held, more: int) -> Html:
    tone = STATE_TONES[held.state]
    return element(
        "p",
        element("code", held.limit),
        " ",
        element("b", held.measured, class_="figure"),
        element("span", held.distance, class_=f"distance {tone}") if held.distance else None,
        element("small", f"and {more} more") if more else None,
    )


def _filters(view: ReportView) -> Html:
    """The search field and the filters by verdict; the script shows them, since without it they do
    nothing."""
    verdicts = [test.headline for test in view.tests]
    buttons = [
        element(
            "button", f"{word} {verdicts.count(word)}", type="button", class_=f"pill {TONES[word]}",
            aria_pressed="false", data_filter=word,
        )
        for word in dict.fromkeys(verdicts)
    ]  # fmt: skip
    search = element("input", type="search", placeholder="search tests and limits", aria_label="search tests")
    return element(
        "nav", search, buttons, element("output", class_="meta"), class_="filters", aria_label="filter",
        hidden="",
    )  # fmt: skip


def _test_table(view: ReportView) -> Html:
    columns = ("Test", "Verdict", "Limit", "Measured and interval", "Completed", "Compliance")
    rows = [
        element(
            "tr",
            [
                element("td" if at else "th", cell, scope=None if at else "row", data_label=column)
                for at, (column, cell) in enumerate(zip(columns, _test_cells(i, test), strict=True))
            ],
            **html_blocks.filtered(test),
        )
        for i, test in enumerate(view.tests)
    ]
    head = element("tr", [element("th", column, scope="col") for column in columns])
    table_ = element("table", element("thead", head), element("tbody", rows), class_="sortable stacked")
    return element("div", table_, class_="scroll")


def _test_cells(i: int, test: TestView) -> tuple[Html | str, ...]:
    first, count = first_of(test), len(limits_of(test))
    more = f" (+\u00a0{count - 1}\u00a0more)" if count > 1 else ""
    return (
        element("a", test.name, href=f"#test-{i}"),
        html_blocks.pill(test.headline),
        ("no limit" if test.valid else "not judged") if first is None else first.limit + more,
        (test.first_figure if test.valid else "") if first is None else first.measured,
        test.completed_text,
        words(test.compliance) + (" (sim)" if test.simulated else "") if test.of_the_draft else "",
    )


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
    """A value above its interval: with six columns there is no room for both on one line."""
    value, bracket, ends = claim.partition(" [")
    below = element("small", f"[{ends}", class_="nowrap") if bracket else None
    return fragment(value, element("br") if below else None, below)


def _drawn(tests: Sequence[TestView]) -> list[dict[str, int | None]]:
    """For each test its plots, with the number of the test that draws each; None where none does.

    Tests of one load have the same plots, which the first of them draws that did not pass. If there are too
    many, those of tests that passed are left out first, and in any test those over time.
    """
    wanted = sorted(
        (test.headline in _FOLDED, plot_id in OVER_TIME, number, plot_id)
        for number, test in enumerate(tests)
        for plot_id in test.plots
    )
    drawing: dict[str, int] = {}
    found: list[dict[str, int | None]] = [{} for _ in tests]
    for _, _, number, plot_id in wanted:
        what = tests[number].picture(plot_id)
        if len(drawing) < MOST_PICTURES:
            drawing.setdefault(what, number)
        found[number][plot_id] = drawing.get(what)
    return found


def _not_drawn(i: int, drawn: Mapping[str, int | None], tests: Sequence[TestView]) -> Html:
    """Where the pictures are that this test shares, and how many are not on the page."""
    count = sum(number is None for number in drawn.values())
    told = f"{count} of {len(drawn)} pictures are not drawn, since the page has {MOST_PICTURES}: their data "
    told += "is in report.json, and a report of this test alone has them."
    owners = {number for number in drawn.values() if number is not None and number != i}
    links = [element("a", tests[number].name, href=f"#test-{number}") for number in sorted(owners)]
    parts = [part for link in links for part in (", ", link)][1:]
    return fragment(
        element("p", "Pictures of the shared load: ", parts, class_="meta") if parts else None,
        element("p", told, class_="meta") if count else None,
    )


def _detailed(i: int, test: TestView, drawn: Mapping[str, int | None], tests: Sequence[TestView]) -> Html:
    """One test: its limits and comparisons, the pictures that it draws, then the tables. One that passed is
    folded."""
    own = [plot_id for plot_id, number in drawn.items() if number == i]
    first = first_of(test)
    told = test.first_figure if first is None else first.measured
    summary = element(
        "summary",
        html_blocks.pill(test.headline),
        " ",
        element("h3", test.nodeid, id=f"test-{i}"),
        element("small", told) if test.measured else None,
    )
    return element(
        "details",
        summary,
        element("p", test.kind, class_="meta"),
        html_blocks.verdicts(test),
        html_blocks.error(test),
        html_blocks.attempt(test),
        html_blocks.objectives(test),
        html_blocks.comparison_block(test),
        metric_strips(test),
        element("div", html_blocks.figures(test, own, salt=str(i)), class_="figures"),
        _not_drawn(i, drawn, tests),
        html_blocks.headlines(test),
        element("p", test.completion) if test.measured else None,
        html_blocks.notes(test),
        _tables(test),
        html_blocks.level_block(test),
        _configuration_summary(test),
        html_blocks.checks(test),
        html_blocks.all_metrics(test) if test.measured else None,
        class_="test",
        open=None if test.headline in _FOLDED else "",
        **html_blocks.filtered(test),
    )


def _tables(test: TestView) -> Html | None:
    found = html_blocks.result_tables(test)
    titles = ", ".join(entry["title"] for entry in test.tables.values())
    return details(f"Tables of the test: {titles}", found) if found else None


def _configuration_summary(test: TestView) -> Html | None:
    known = test.entry.get("configuration")
    return details("Configuration summary", html_blocks.configuration(test)) if known else None


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
    return fragment(
        [element("div", element("h3", test.name), body(test), **html_blocks.filtered(test)) for test in tests]
    )
