"""The columns and blocks for pytest-html: five more columns, the last of which filters, and a block below the
row. Strings of escaped HTML, no hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, shown_unit
from pytest_llmbench.model.result import OVER_TIME
from pytest_llmbench.reports import html_blocks
from pytest_llmbench.reports.document import TONES, TestView, words
from pytest_llmbench.reports.first_screen import first_of
from pytest_llmbench.reports.html_blocks import Child, Html, asset, element, fragment
from pytest_llmbench.reports.vocabulary import metric_label

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
    return [
        verdict,
        _lines(f"{metric_label(o['metric'])}: {_point(o)}" for o in test.objectives),
        _lines(f"{o['op']} {numbers.quantity(o['limit'], _unit(o))}" for o in test.objectives),
        _lines(
            "" if o["point"] is None else numbers.interval(o["lower"], o["upper"], _unit(o), o.get("n"))
            for o in test.objectives
        ),
        compliance,
    ]


def _point(objective: Entry) -> str:
    if objective["point"] is None:
        return numbers.NOT_MEASURED
    return numbers.against(objective["point"], objective["limit"], _unit(objective))


def _unit(objective: Entry) -> str:
    return shown_unit(objective["metric"], objective["unit"])


def _lines(texts: Iterable[str]) -> Html:
    return fragment([element("div", text or "–") for text in texts])


def _drawn(test: TestView) -> list[str]:
    """The ids of the plots to draw. Drawing takes time, so plots over time are there only for tests in which
    something is wrong."""
    return [plot_id for plot_id in test.plots if test.headline != "PASS" or plot_id not in OVER_TIME]


def extra_block(entry: Entry, shown: dict[str, str] | None = None) -> str:
    """The block of one test for ``extras.html``: verdicts, limits, tables and plots.

    :param shown: table or plot → the test whose block has it; filled here. Tests that share a load have the
        same ones, and name that test instead.
    """
    test = TestView(entry)
    shown = {} if shown is None else shown
    owners = {id_: shown.setdefault(test.picture(id_), test.nodeid) for id_ in _drawn(test)}
    of_tables = {id_: shown.setdefault(f"{id_} {table}", test.nodeid) for id_, table in test.tables.items()}
    own_tables = [id_ for id_, owner in of_tables.items() if owner == test.nodeid]
    elsewhere = dict.fromkeys(o for o in (*of_tables.values(), *owners.values()) if o != test.nodeid)
    return element(
        "div",
        element("style", asset("pytest_html.css")),
        element("p", element("b", test.headline), f" · {test.kind} · {test.judgements}"),
        html_blocks.attempt(test),
        html_blocks.objectives(test),
        html_blocks.comparison_block(test),
        html_blocks.headlines(test),
        element("p", test.completion) if test.measured else None,
        element("p", "Tables and pictures of the shared load: ", ", ".join(elsewhere)) if elsewhere else None,
        html_blocks.result_tables(test, own_tables),
        html_blocks.level_block(test),
        html_blocks.figures(test, [i for i, o in owners.items() if o == test.nodeid], salt=test.nodeid),
        html_blocks.notes(test),
        html_blocks.configuration(test) if test.measured_by == test.nodeid else None,
        class_="llmbench",
    )
