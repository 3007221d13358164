"""``report.html``: the full report, appendix C.2 of the draft, in one file.

First what a reader decides by: a banner, a card for each test that did not pass, the limits on one axis. Then
the draft's six sections in their order, folded where nothing is amiss. Needs no network; its script filters
and sorts, and nothing is lost without it.

The strips of the first screen are a row with dot and interval for each limit, on one common axis, drawn with
positions in per cent, so that they fit any width, and with words for those who do not see them.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, counted, shown_unit, signed
from pytest_llmbench.model.result import OVER_TIME
from pytest_llmbench.reports import html_blocks, summaries
from pytest_llmbench.reports.comparisons import metric_label, metric_name
from pytest_llmbench.reports.document import TONES, ReportView, TestView, fact_text, warnings_of, words
from pytest_llmbench.reports.first_screen import (
    STATE_TONES,
    FirstScreen,
    Held,
    Span,
    first_of,
    has_systems,
    limits_of,
)
from pytest_llmbench.reports.html_blocks import (
    Child,
    Html,
    asset,
    details,
    element,
    fragment,
    pairs,
    table,
)
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
    texts = [element("li", text) for text in warnings_of(view.tests)]
    heading = element("h2", "Warnings", class_="plain")
    body = element(
        "body",
        _top(view, screen, title),
        _cards(screen),
        element("section", heading, element("ul", texts), class_="warned") if texts else None,
        _systems(screen),
        comparison_strip([one for one in screen.compared if not has_systems(one.test)]),
        limit_strip(screen.held),
        element("section", _filters(view), _every_test(view), id="tests"),
        _sections(view),
        element("script", script),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(view: ReportView) -> list[Html]:
    """The six sections of appendix C.2; all but the fourth are folded."""
    bodies = (
        _identification(view),
        _per_test(view.tests, _configuration),
        _results(view),
        fragment(
            _detailed(i, test, drawn, view.tests)
            for i, (test, drawn) in enumerate(zip(view.tests, _drawn(view.tests), strict=True))
        ),
        fragment(pairs(summaries.performed(view)), _per_test(view.tests, _compliance_of)),
        fragment(pairs(summaries.harness(view)), _per_test(view.tests, _reproduction_of)),
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
    if not screen.cards:
        return None
    cards = [
        element(
            "article",
            element(
                "h2",
                html_blocks.pill(card.test.headline),
                " ",
                element("a", card.test.name, href=f"#test-{card.number}"),
            ),
            _deciding(card.deciding, card.more) if card.deciding is not None else None,
            element("p", card.cause, class_="cause"),
            class_="card",
            **html_blocks.filtered(card.test),
        )
        for card in screen.cards
    ]
    again = "Run it again:" if len(cards) == 1 else "Run them again:"
    command = element("div", again, element("pre", screen.command), class_="again")
    return fragment(element("section", cards, class_="cards"), command)


def _systems(screen: FirstScreen) -> Html | None:
    """Systems side by side, each change below the value; None where no test has several."""
    tables = []
    for test, made in screen.systems:
        rows = []
        for metric, values, changes in made.rows:
            cells = [metric, values[0]]
            for value, (change, verdict) in zip(values[1:], changes, strict=True):
                pill = element("span", verdict, class_="pill neutral") if verdict else None
                cells.append(fragment(value, element("br"), element("small", change), " ", pill))
            rows.append(cells)
        more = f"and {counted(made.more, 'more metric')}, in the tables of the test" if made.more else None
        tables += [
            element("h3", test.name),
            table(made.columns, rows, kind="stacked"),
            element("p", more, class_="meta") if more else None,
        ]
    heading = element("h2", "Systems", class_="plain")
    return element("section", heading, tables) if tables else None


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


def _every_test(view: ReportView) -> Html:
    """A row for each test."""
    columns = ("Test", "Verdict", "Limit", "Measured and interval", "Completed", "Compliance")
    rows = []
    for number, test in enumerate(view.tests):
        first, count = first_of(test), len(limits_of(test))
        more = f" (+\u00a0{count - 1}\u00a0more)" if count > 1 else ""
        rows.append(
            (
                element("a", test.name, href=f"#test-{number}"),
                html_blocks.pill(test.headline),
                ("no limit" if test.valid else "not judged") if first is None else first.limit + more,
                (test.first_figure if test.valid else "") if first is None else first.measured,
                test.completed_text,
                words(test.compliance) + (" (sim)" if test.simulated else "") if test.of_the_draft else "",
            )
        )
    return table(columns, rows, kind="sortable stacked", attributes=map(html_blocks.filtered, view.tests))


def _identification(view: ReportView) -> Html:
    rows = [
        (element("code", key), fact_text(fact["value"]), fact["origin"], fact.get("source") or "")
        for key, fact in view.facts.items()
    ]
    facts = table(("Fact", "Value", "Origin", "Source"), rows)
    known = pairs(summaries.identification(view))
    return fragment(known, details(f"All {len(rows)} facts with their origin", facts) if rows else None)


def _configuration(test: TestView) -> Html:
    """Workload, load and execution parameters."""
    known = summaries.configuration(test)
    if not known:
        return element("p", "Nothing was sent.")
    workload = test.entry["workload"]
    rows = [(element("code", key), fact_text(value)) for key, value in workload["specification"].items()]
    return fragment(pairs(known), details("Workload specification", table(("Parameter", "Value"), rows)))


def _results(view: ReportView) -> Html:
    found, latencies = summaries.latency_rows(view.tests), []
    for test, metric, *claims in found.rows:
        cells = [test, metric]
        for claim in claims:
            value, bracket, ends = claim.partition(" [")
            # Below the value: with six columns there is no room for both on one line.
            below = fragment(element("br"), element("small", f"[{ends}", class_="nowrap"))
            cells.append(fragment(value, below if bracket else None))
        latencies.append(cells)
    return fragment(
        element("h3", "Headline figures"),
        html_blocks.rows_table(summaries.headline_rows(view.tests)),
        element("h3", "Latency summary"),
        html_blocks.rows_table(found._replace(rows=latencies)),
        element("h3", "Throughput summary"),
        html_blocks.rows_table(summaries.throughput_rows(view.tests)),
        element("h3", "Success metrics"),
        html_blocks.rows_table(summaries.success_rows(view.tests)),
    )


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
    tables = html_blocks.result_tables(test)
    titles = ", ".join(entry["title"] for entry in test.tables.values())
    settings = html_blocks.configuration(test) if test.entry.get("configuration") else None
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
        details(f"Tables of the test: {titles}", tables) if tables else None,
        html_blocks.level_block(test),
        details("Configuration summary", settings) if settings else None,
        html_blocks.checks(test),
        html_blocks.all_metrics(test) if test.measured else None,
        class_="test",
        open=None if test.headline in _FOLDED else "",
        **html_blocks.filtered(test),
    )


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


_SHARES = (0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0)
_STEPS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MOST_TICKS = 6
_LEAST_WIDTH, _GREATEST_WIDTH = 1e-200, 1e200
"""Bounds of the width of an axis: beyond them no round numbers can be found for it."""
_SHOWN_ROWS = 12
"""Number of rows that are shown; the rest is folded. Those not kept come first, so only kept ones are folded
unless these are too many."""


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; values beyond are drawn at its end, and marked."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    scale: Callable[[float], float]

    def place(self, value: float) -> float:
        """The position of a value, in per cent of the width."""
        low, high = self.scale(self.low), self.scale(self.high)
        shown = min(max(value, self.low), self.high)  # before it is scaled: zero has no logarithm
        return 100 * (self.scale(shown) - low) / (high - low)

    def left(self, value: float) -> str:
        """The style that puts an element at a value."""
        return f"left:{self.place(value):.2f}%"

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high


def limit_strip(held: Sequence[Held]) -> Html | None:
    """A strip with limits, on an axis of shares of the limit: left of 1 is kept, whichever way a limit
    points."""
    rows = sorted((one for one in held if one.allowed is None), key=lambda one: one.rank)
    if not rows:
        return None
    values = [end for one in rows for end in one.span if end is not None and end > 0]
    low = max(min([0.5, *values]) * 0.9, _SHARES[0])
    high = min(max([1.25, *values]) * 1.1, _SHARES[-1])
    ticks = tuple((share, numbers.number(share)) for share in _SHARES if low <= share <= high)
    axis = Axis(low, high, ticks, math.log)
    return _strip(
        "Limits",
        "Each value as a share of its limit, with its interval: left of the line the limit is kept.",
        axis,
        [_row(one, axis, 1.0) for one in rows],
    )


def comparison_strip(held: Sequence[Held]) -> Html | None:
    """A forest plot of the comparisons that decide: the worsening, with what is allowed as a band."""
    rows = sorted((one for one in held if one.allowed is not None), key=lambda one: one.rank)
    if not rows:
        return None
    values = [end for one in rows for end in (*one.span, one.allowed, -(one.allowed or 0)) if end is not None]
    low, high = max(min([-0.02, *values]), -1.0), min(max([0.02, *values]), 2.0)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    axis = Axis(low, high, tuple((at, signed(at)) for at in _round_places(low, high)), float)
    return _strip(
        "Comparisons",
        "The change of each metric with its interval, worse to the right; the band is what is allowed.",
        axis,
        [_row(one, axis, one.allowed or 0.0) for one in rows],
    )


def metric_strips(test: TestView) -> list[Html]:
    """A strip with intervals, from zero, for each main figure of the test that was measured several times,
    such as for each level or filter."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in test.headlines:
        parts = metric_name(name)
        metric = test.metric(name)
        if metric is not None and metric["point"] is not None:
            groups.setdefault((parts.base, parts.statistic), []).append(name)
    return [
        strip
        for names in groups.values()
        if len(names) > 1 and (strip := _metric_strip(test, names)) is not None
    ]


def _metric_strip(test: TestView, names: Sequence[str]) -> Html | None:
    spans = {}
    for name in names:
        low, point, high = (test.entry["metrics"][name][end] for end in ("lower", "point", "upper"))
        # An estimate without an interval is a dot, not an open end.
        spans[name] = Span(point, point, point) if low is None and high is None else Span(low, point, high)
    values = [end for span in spans.values() for end in span if end is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    if not _LEAST_WIDTH < high - low < _GREATEST_WIDTH:
        return None
    unit = shown_unit(names[0], test.entry["metrics"][names[0]]["unit"])
    edge = 0.03 * (high - low)
    ticks = tuple((at, numbers.quantity(at, unit)) for at in _round_places(low, high))
    axis = Axis(low - edge, high + edge, ticks, float)
    label = metric_label(names[0].replace(f"[{metric_name(names[0]).qualifier}]", ""))
    zero = element("i", class_="zero", style=axis.left(0.0))
    rows = [
        _strip_row(
            metric_name(name).qualifier or "all",
            fragment(zero, _whiskers(spans[name], axis, "plain")),
            test.claim(name),
            label=f"{name}: {test.claim(name)}",
        )
        for name in names
    ]
    return element(
        "div", element("h4", f"{label}, with intervals"), element("div", rows, _foot(axis), class_="strip")
    )


def _round_places(low: float, high: float) -> list[float]:
    """Round numbers for the ticks of an axis: at most :data:`_MOST_TICKS` multiples of 1, 2 or 5 times a
    power of ten."""
    power = 10.0 ** math.floor(math.log10(high - low) - 1)
    step = next(power * step for step in _STEPS if (high - low) / (power * step) <= _MOST_TICKS)
    return [round(at * step, 12) for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _strip(title: str, caption: str, axis: Axis, rows: Sequence[Html]) -> Html:
    return element(
        "section",
        element("h2", title, class_="plain"),
        element("p", caption, class_="meta"),
        element("div", rows[:_SHOWN_ROWS], _foot(axis), class_="strip"),
        details(f"and {len(rows) - _SHOWN_ROWS} more", rows[_SHOWN_ROWS:]) if rows[_SHOWN_ROWS:] else None,
        class_="strips",
    )


def _foot(axis: Axis) -> Html:
    ticks = [element("span", text, class_="tick", style=axis.left(value)) for value, text in axis.ticks]
    return element(
        "div",
        element("span", class_="strip-name"),
        element("span", ticks, class_="strip-axis ticks", aria_hidden="true"),
        element("span", class_="strip-value"),
        class_="strip-row strip-foot",
    )


def _strip_row(name: Child, drawn: Html, value: Child, *, label: str, **attributes: str) -> Html:
    """A row of a strip. ``label``: what is drawn, in words."""
    return element(
        "div",
        element("span", name, class_="strip-name"),
        element("span", drawn, class_="strip-axis", role="img", aria_label=label),
        element("span", value, class_="strip-value"),
        class_="strip-row",
        **attributes,
    )


def _row(one: Held, axis: Axis, bound: float) -> Html:
    tone, at = STATE_TONES[one.state], axis.place(bound)
    zero = element("i", class_="zero", style=axis.left(0.0))
    if one.allowed is None:
        line = element("i", class_="bound", style=axis.left(bound))
    elif one.state == "shown":
        line = zero
    else:
        line = fragment(element("i", class_="allowed", style=f"left:0;width:{at:.2f}%"), zero)
    distance = f" ({one.distance})" if one.distance and one.allowed is None else ""
    return _strip_row(
        fragment(element("b", one.test.name), " ", element("code", one.limit)),
        fragment(line, _whiskers(one.span, axis, tone)),
        fragment(one.measured, distance, " ", element("em", one.word, class_=tone)),
        label=f"{one.limit}: {one.measured}{distance}, {one.word}",
        data_verdict=one.test.headline,
        data_search=f"{one.test.nodeid} {one.limit}".lower(),
    )


def _whiskers(span: Span, axis: Axis, tone: str) -> Html | None:
    """The interval as a bar, its point as a dot; an end that is open, or beyond the axis, has an arrow."""
    if span == (None, None, None):
        return element("small", "no share of this limit can be drawn")
    low = axis.low if span.low is None else span.low
    high = axis.high if span.high is None else span.high
    left, right = axis.place(low), axis.place(high)
    ends = "".join(
        name
        for name, end in ((" open-low", span.low), (" open-high", span.high))
        if end is None or not axis.has(end)
    )
    style = f"left:{left:.2f}%;width:{right - left:.2f}%"
    dot = None if span.point is None else element("i", class_=f"dot {tone}", style=axis.left(span.point))
    return fragment(element("i", class_=f"bar {tone}{ends}", style=style), dot)
