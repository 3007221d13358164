"""HTML blocks about one test, shared by ``report.html`` and the rows of pytest-html.

HTML is built from values: text is escaped unless it is HTML already, so a server's words stay words.

The row of pytest-html has five more columns, the last of which filters, and a block below it. No hooks.
"""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import chain, repeat
from urllib.parse import quote

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, shown_unit
from pytest_llmbench.model.result import OVER_TIME
from pytest_llmbench.reports import comparisons, plots, summaries
from pytest_llmbench.reports.comparisons import metric_label
from pytest_llmbench.reports.document import (
    TONES,
    TestView,
    fact_text,
    finding_word,
    marked,
    measured_text,
    objective_text,
    words,
)
from pytest_llmbench.reports.first_screen import first_of
from pytest_llmbench.reports.summaries import Rows, level_table

_SHOWN_LINES = 8
_LONGEST_FIGURE = 16


def pill(word: str) -> Html:
    """The word of a verdict in its colour."""
    return element("span", words(word), class_=f"pill {TONES.get(word, 'neutral')}")


def class_pill(test: TestView) -> Html:
    """The compliance class; a poor one in its colour where the marker asks for a class."""
    asked = (test.entry.get("parameters") or {}).get("compliance")
    tone = TONES.get(test.compliance, "neutral")
    tone = tone if asked or tone == "good" else "neutral"
    text = marked(test.compliance, simulated=test.simulated and test.of_the_draft)
    return element("span", text, class_=f"pill {tone}")


def filtered(test: TestView) -> dict[str, str]:
    """The attributes by which the script finds the elements of a test."""
    limits = " ".join(str(objective["metric"]) for objective in test.objectives)
    return {"data_verdict": test.headline, "data_search": f"{test.nodeid} {test.kind} {limits}".lower()}


def verdicts(test: TestView) -> Html:
    """The three judgements; for a void run also why none of its numbers counts."""
    literal = test.entry["compliance"]["verdict_literal"]
    judgements = element(
        "p",
        pill(test.headline),
        " ",
        element("span", "validity ", pill(test.entry["validity"]["verdict"]), class_="judgement"),
        element("span", "compliance ", class_pill(test), class_="judgement"),
        element("span", "literal reading ", pill(literal), class_="judgement")
        if test.of_the_draft and literal != test.compliance
        else None,
        element("span", "limits ", pill(test.judged(test.entry["gate"]["verdict"])), class_="judgement"),
        class_="verdicts",
    )
    void = [finding["message"] for finding in test.noteworthy_findings if finding["voids"]]
    why = [element("strong", "This run is void, and none of its figures is judged:")]
    return fragment(judgements, element("div", why, paragraphs(void), class_="void") if void else None)


def error(test: TestView) -> Html | None:
    text = test.entry.get("error")
    return element("pre", text, class_="error") if text else None


def attempt(test: TestView) -> Html | None:
    return None if test.attempt is None else element("p", element("strong", test.attempt))


def comparison_block(test: TestView) -> Html | None:
    """The comparisons with a baseline, those that decide first, with the effect that could have been seen."""
    found = test.comparisons
    if not found:
        return None
    rows = []
    for one in sorted(found, key=lambda one: not one.get("gated")):
        *cells, verdict = comparisons.row(one, found)
        pill_ = element("span", verdict, class_=f"pill {comparisons.TONES[one['verdict']]}")
        rows.append((*cells, pill_, str(one["reason"])))
    deciding = sum(bool(one.get("gated")) for one in found)
    columns, others = (*comparisons.COLUMNS, "Reason"), rows[deciding:]
    table_ = load_table(columns, others) if others else None
    return fragment(
        element("h4", "Comparison"),
        element("p", comparisons.caption(found), class_="meta"),
        load_table(columns, rows[:deciding]) if deciding else None,
        details(f"{len(others)} more, which decide nothing", table_) if deciding and table_ else table_,
    )


def objectives(test: TestView) -> Html:
    if not (test.objectives or test.advisory):
        return element("p", "No limits were set.") if not test.comparisons else fragment()
    rows = [
        (
            element("code", objective_text(objective), class_="nowrap"),
            measured_text(objective),
            str(objective.get("n", 0)),
            fragment("advisory " if decides_nothing else None, pill(test.judged(objective["verdict"]))),
            (objective.get("reason") or "") if test.valid else "",
        )
        for decides_nothing, limits in ((False, test.objectives), (True, test.advisory))
        for objective in limits
    ]
    columns = ("Limit", "Measured and interval", "n", "Verdict", "Reason")
    return element("div", table(columns, rows), class_="reasons")


def headlines(test: TestView) -> Html | None:
    """The main figures of the test, and the test whose measurement they rest on."""
    known = [(metric_label(name), test.claim(name)) for name in test.headlines]
    return fragment(
        pairs(known) if known else None, [element("p", text) for text in (*test.sharing, *test.void_loads)]
    )


def rows_table(found: Rows) -> Html:
    return table(found.columns, found.rows) if found.rows else element("p", numbers.NOT_MEASURED)


def level_block(test: TestView) -> Html | None:
    """A folded table of every level; the tables of the draft come first."""
    if not test.levels:
        return None
    levels = level_table(test.levels)
    summary = f"All {len(levels.rows)} levels: offered, achieved, latency, completion, queue"
    return details(summary, load_table(levels.columns, levels.rows))


def load_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    """A wide table: figures stay on one line, reasons and node ids may break."""
    shown = []
    for row in rows:
        kinds = [
            "breaks" if column == "Measured by" else None if len(cell) > _LONGEST_FIGURE else "nowrap"
            for column, cell in zip(columns, row, strict=True)
        ]
        shown.append([element("span", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)])
    return element("div", table(columns, shown), class_="wide")


def deviations(test: TestView) -> Html:
    groups = [
        fragment(element("p", heading), long_list(texts, "requirements"))
        for heading, texts in summaries.deviations(test)
    ]
    return fragment(groups) if groups else element("p", "none")


def long_list(texts: list[str], what: str) -> Html:
    """A list with the first few items shown and the rest folded."""
    first, rest = texts[:_SHOWN_LINES], texts[_SHOWN_LINES:]
    more = details(f"and {len(rest)} more {what}", paragraphs(rest)) if rest else None
    return fragment(paragraphs(first) or element("p", "none"), more)


def result_tables(test: TestView, shown: Collection[str] | None = None) -> list[Html]:
    """The tables of a test; with ``shown`` only those of these ids."""
    return [
        table(entry["columns"], entry["rows"], caption=entry["title"])
        for id_, entry in test.tables.items()
        if shown is None or id_ in shown
    ]


def figures(test: TestView, drawn: Collection[str], *, salt: str = "") -> list[Html]:
    """The plots with the ids ``drawn``, in the order of the test."""
    return [
        element("figure", Html(plots.render(plot, plot_id, salt=salt)), element("figcaption", plot["title"]))
        for plot_id, plot in test.plots.items()
        if plot_id in drawn
    ]


def findings(test: TestView) -> Html:
    rows = [
        (finding["check"], element("span", word, class_=f"pill {tone}"), finding["message"])
        for finding in sorted(test.findings, key=lambda finding: bool(finding["ok"]))
        for word, tone in [finding_word(finding)]
    ]
    return table(("Check", "State", "What was seen"), rows) if rows else element("p", "No check was made.")


def checks(test: TestView) -> Html:
    """The validity checks; folded if all are ok."""
    amiss = len(test.noteworthy_findings)
    told = f"{amiss} of {len(test.findings)} not as they should be" if amiss else "all ok"
    return details(
        f"Validity checks: {told}", findings(test), open_=any(f["voids"] for f in test.noteworthy_findings)
    )


def ledger(test: TestView) -> Html:
    """Every requirement with its status, reason and evidence, those that prevent compliance first."""
    order = {"unmet": 0, "met": 1, "not_applicable": 2}
    effects = {"blocks": 0, "downgrades": 1}
    entries = sorted(
        test.requirements, key=lambda r: (order[r["status"]], effects.get(r.get("effect", "none"), 2))
    )
    rows = []
    for r in entries:
        lines = "\n".join(f"{key} = {fact_text(value)}" for key, value in r["evidence"].items())
        rows.append(
            (
                fragment(element("code", r["id"]), element("br"), element("small", r.get("statement") or "")),
                fragment(r["level"], element("br"), element("small", r.get("effect", "none"))),
                pill(r["status"]),
                fragment(r["reason"], element("pre", lines, class_="evidence") if lines else None),
            )
        )
    counts = ", ".join(f"{sum(r['status'] == s for r in entries)} {words(s)}" for s in order)
    summary = f"All {len(entries)} requirements: {counts}"
    return details(
        summary,
        table(("Requirement", "Level, effect", "Status", "Reason and evidence"), rows),
        class_="searched",
    )


def configuration(test: TestView) -> Html:
    return pairs((item["item"], item["text"]) for item in test.entry.get("configuration") or ())


def selfcheck(test: TestView) -> Html:
    """The self-check of the load generator, in readable units."""
    check = test.entry["selfcheck"]
    if check is None:
        return element("p", "The load generator did not run.")
    rows = []
    for name, value in check.items():
        spoken = name.removesuffix("_ns").replace("_", " ").replace("p50", "P50").replace("p99", "P99")
        if value is None:
            text = numbers.NOT_MEASURED
        elif not isinstance(value, int | float):  # a report that somebody else wrote
            text = str(value)
        elif name.endswith("_ns"):
            text = numbers.quantity(value / 1e6, "ms")
        elif name.endswith("_share"):
            text = numbers.percentage(value) + (" of one core" if name == "cpu_share" else "")
        else:
            text = str(value)
        rows.append((spoken[0].upper() + spoken[1:], text))
    return details("Load generator self-check", table(("Figure", "Value"), rows))


def all_metrics(test: TestView) -> Html:
    """All metrics in groups: the whole test first, then each level, class or configuration."""
    columns, metrics = ("Metric", "Value and interval", "n", "Method"), test.entry["metrics"]
    groups = []
    for qualifier, names in test.by_qualifier().items():
        rows = []
        for name in names:
            label = metric_label(name, qualified=False)
            named = fragment(label, element("br"), element("small", name))
            rows.append((named, test.stated(name), str(metrics[name]["n"]), metrics[name]["method"]))
        groups.append(table(columns, rows, caption=qualifier or None))
    return details(f"All {len(metrics)} metrics", groups)


def notes(test: TestView) -> Html | None:
    texts = [*test.next_steps, *(test.entry.get("notes") or ())]
    if not texts:
        return None
    paths = test.entry.get("profile_files") or ()
    files = [element("li", element("a", path, href=quote(path))) for path in paths]
    profile = [element("p", "Files of the profiler:"), element("ul", files)] if files else []
    return fragment(element("h4", "Notes and next steps"), paragraphs(texts), profile)


_VOID = frozenset({"br", "hr", "input", "meta"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Child = str | Iterable["Child"] | None


def element(tag: str, *children: Child, **attributes: str | None) -> Html:
    """An element: ``element("td", "a < b", class_="num")``. Children may nest; an attribute that is None is
    left out."""
    opening = tag
    for name, value in attributes.items():
        if value is not None:
            opening += f' {name.rstrip("_").replace("_", "-")}="{html.escape(value, quote=True)}"'
    return Html(f"<{opening}>" if tag in _VOID else f"<{opening}>{_joined(children)}</{tag}>")


@cache
def asset(name: str) -> Html:
    """The text of a style sheet or script of the reports."""
    return Html(importlib.resources.files("pytest_llmbench.reports").joinpath(name).read_text("utf-8"))


def fragment(*children: Child) -> Html:
    """The children, one after another."""
    return Html(_joined(children))


def _joined(children: Iterable[Child]) -> str:
    # A list: join would make one of a generator, and a large page has a hundred thousand children.
    return "".join([child if isinstance(child, Html) else _text(child) for child in children])


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, str):
        return html.escape(child, quote=False)
    return _joined(child)


def table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Child]],
    *,
    caption: str | None = None,
    kind: str | None = None,
    attributes: Iterable[dict[str, str]] = (),
) -> Html:
    """A table whose first column is its row heads.

    ``kind``: classes of the style sheet; cells of a ``stacked`` one stand below each other on a narrow
    screen, with their labels. ``attributes``: those of each row.
    """
    head = element("tr", [element("th", column, scope="col") for column in columns])
    body = []
    for row, more in zip(rows, chain(attributes, repeat({})), strict=False):
        labels = columns if kind else repeat(None)
        cells = [
            element("td" if at else "th", cell, scope=None if at else "row", data_label=label)
            for at, (cell, label) in enumerate(zip(row, labels, strict=False))
        ]
        body.append(element("tr", cells, **more))
    whole = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", head),
        element("tbody", body),
        class_=kind,
    )
    return element("div", whole, class_="scroll")


def pairs(entries: Iterable[tuple[str, Child]]) -> Html:
    """A description list of names and values."""
    return element("dl", [fragment(element("dt", name), element("dd", value)) for name, value in entries])


def details(summary: Child, *children: Child, open_: bool = False, class_: str | None = None) -> Html:
    """A part that can be folded."""
    shown = "" if open_ else None
    return element("details", element("summary", summary), *children, class_=class_, open=shown)


def paragraphs(texts: Iterable[str]) -> Html:
    items = [element("li", text) for text in texts]
    return element("ul", items) if items else Html("")


COLUMNS = ("Verdict", "Value", "Limit", "Interval", "Compliance")
CLASSES = ("unconditional", "conditional", "not_compliant", "none", "other")
"""Classes by which rows are filtered: a compliance class; a load test without one; a test that is not
ours."""
_CLASS_WORDS = {"none": "without a class", "other": "other tests"}
_COLOURS = {"good": "#17693a", "bad": "#a3201f", "warn": "#7a5200", "neutral": "#4a5560"}


def header_cells() -> list[str]:
    """The header cells ``<th>``, sortable like pytest-html's own."""
    return [element("th", name, class_="sortable", data_column_type=f"llm{name.lower()}") for name in COLUMNS]


def row_cells(entry: Entry | None) -> list[str]:
    """The cells ``<td>`` of a row; empty for a test that is not ours (``entry`` None)."""
    names = [f"col-llm{name.lower()}" for name in COLUMNS]
    names[-1] += f" {_filtered_as(compliance_class(entry))}"
    contents = [None] * len(COLUMNS) if entry is None else _contents(TestView(entry))
    return [element("td", content, class_=name) for name, content in zip(names, contents, strict=True)]


def compliance_class(entry: Entry | None) -> str:
    """The class of a row, one of :data:`CLASSES`."""
    if entry is None:
        return "other"
    test = TestView(entry)
    return test.compliance if test.measured and test.of_the_draft else "none"


def class_filter(present: Collection[str]) -> str | None:
    """A checkbox for each class that is ``present`` in the rows; None if all rows have one class.

    Without a script: pytest-html makes its rows anew whenever somebody sorts or filters by outcome.
    """
    shown = [name for name in CLASSES if name in present]
    if len(shown) < 2:
        return None
    boxes = [
        element(
            "label",
            element("input", type="checkbox", checked="", id=f"show-{_filtered_as(name)}"),
            f" {_CLASS_WORDS.get(name, words(name))} ",
        )
        for name in shown
    ]
    rules = "".join(
        f"body:has(#show-{_filtered_as(name)}:not(:checked)) "
        f"#results-table tbody:has(td.{_filtered_as(name)}){{display:none}}"
        for name in shown
    )
    return element("p", "Compliance: ", boxes, element("style", Html(rules)))


def _filtered_as(name: str) -> str:
    return f"llm-class-{name}"


def _contents(test: TestView) -> list[Child]:
    colour = _COLOURS[TONES[test.headline]]
    verdict = element("span", test.headline, style=f"color:{colour};font-weight:600")
    compliance = test.compliance_text if test.measured else ""
    if not test.objectives:
        compared = first_of(test)
        if compared is not None:
            return [verdict, compared.measured, compared.limit, "", compliance]
        return [verdict, test.first_figure, "no limit", "", compliance]
    lines = []
    for each in test.objectives:
        unit, value, ends = shown_unit(each["metric"], each["unit"]), numbers.NOT_MEASURED, "–"
        if each["point"] is not None:
            value = numbers.against(each["point"], each["limit"], unit)
            ends = numbers.interval(each["lower"], each["upper"], unit, each.get("n"))
        limit = f"{each['op']} {numbers.quantity(each['limit'], unit)}"
        lines.append((f"{metric_label(each['metric'])}: {value}", limit, ends))
    cells = [fragment([element("div", text) for text in column]) for column in zip(*lines, strict=True)]
    return [verdict, *cells, compliance]


def extra_block(entry: Entry, shown: dict[str, str] | None = None) -> str:
    """The block of one test for ``extras.html``: verdicts, limits, tables and plots.

    :param shown: table or plot → the test whose block has it; filled here. Tests that share a load have the
        same ones, and name that test instead.
    """
    test = TestView(entry)
    shown = {} if shown is None else shown
    # Drawing takes time: plots over time are there only for tests in which something is wrong.
    drawn = [id_ for id_ in test.plots if test.headline != "PASS" or id_ not in OVER_TIME]
    owners = {id_: shown.setdefault(test.picture(id_), test.nodeid) for id_ in drawn}
    of_tables = {id_: shown.setdefault(f"{id_} {table}", test.nodeid) for id_, table in test.tables.items()}
    own_tables = [id_ for id_, owner in of_tables.items() if owner == test.nodeid]
    elsewhere = dict.fromkeys(o for o in (*of_tables.values(), *owners.values()) if o != test.nodeid)
    return element(
        "div",
        element("style", asset("pytest_html.css")),
        element("p", element("b", test.headline), f" · {test.kind} · {test.judgements}"),
        attempt(test),
        objectives(test),
        comparison_block(test),
        headlines(test),
        element("p", test.completion) if test.measured else None,
        element("p", "Tables and pictures of the shared load: ", ", ".join(elsewhere)) if elsewhere else None,
        result_tables(test, own_tables),
        level_block(test),
        figures(test, [i for i, o in owners.items() if o == test.nodeid], salt=test.nodeid),
        notes(test),
        configuration(test) if test.measured_by == test.nodeid else None,
        class_="llmbench",
    )
