"""Plots as SVG."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from pytest_llmbench.reports import plots
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.html_blocks import extra_block
from pytest_llmbench.store import schema
from pytest_llmbench.store.files import document_of

SVG = "{http://www.w3.org/2000/svg}"
Entry = dict[str, Any]

CURVE = {
    "title": "Throughput & latency <1>",
    "x_label": "tok/s",
    "y_label": "ms",
    "series": {"a": {"x": [0.0, 10.0], "y": [1.0, 2.0]}, "b": {"x": [0.0, 10.0], "y": [2.0, 3.0]}},
    "marks": {"knee": 5.0},
    "step": False,
    "x_log": True,
}


@pytest.fixture
def cdf(entry: Entry) -> Entry:
    return TestView(entry).plots["ttft_cdf"]


def _texts(svg: str) -> list[str]:
    return ["".join(text.itertext()).strip() for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def test_a_distribution(cdf: Entry) -> None:
    svg = plots.render(cdf, "ttft_cdf")
    root = ElementTree.fromstring(svg)
    assert root.findtext(f"{SVG}title") == "Distribution of TTFT"
    assert root.findtext(f"{SVG}desc") == (
        "share of requests over TTFT (ms): TTFT with 998 points. Marked: P50 at 128.8, limit P99 at 600."
    )
    assert (root.get("role"), root.get("width")) == ("img", None)
    texts = _texts(svg)
    assert "TTFT (ms)" in texts
    assert "share of requests" in texts
    assert any(re.fullmatch(r"P50\s+128\.8", text) for text in texts)
    assert any(re.fullmatch(r"limit P99\s+600", text) for text in texts)
    assert {"100", "200", "500"} <= set(texts)


def test_the_same_data_gives_the_same_bytes(cdf: Entry) -> None:
    first = plots.render(cdf, "ttft_cdf")
    plots._drawing.cache_clear()
    assert plots.render(cdf, "ttft_cdf") == first
    assert "dc:date" not in plots.render(cdf, "ttft_cdf")


def test_two_drawings_on_a_page_have_different_ids(cdf: Entry) -> None:
    first, second = (
        set(re.findall(r'id="([^"]+)"', plots.render(cdf, "ttft_cdf", salt=salt))) for salt in "ab"
    )
    assert first
    assert not first & second


@pytest.fixture
def drawings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names on the horizontal axes of what is drawn from now on."""
    drawn, draw = list[str](), Figure.savefig

    def savefig(figure: Figure, *arguments: Any, **options: Any) -> None:
        drawn.append(figure.axes[0].get_xlabel())
        draw(figure, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return drawn


def test_pytest_html_and_the_report_show_one_drawing(drawings: list[str], report: Entry) -> None:
    report["tests"][0]["plots"]["ttft_cdf"]["x_label"] = "TTFT of this test (ms)"
    document = document_of(schema.Report.model_validate(report))
    assert "TTFT of this test" in extra_block(report["tests"][0])
    assert "TTFT of this test" in html_report(document)
    assert drawings.count("TTFT of this test (ms)") == 1


def test_another_point_is_another_drawing(drawings: list[str]) -> None:
    for last in (2.0, 2.5, 2.0):
        series = {"a": {"x": [0.0, 10.0], "y": [1.0, last]}}
        plots.render(CURVE | {"series": series, "x_label": "drawn twice"}, "p", salt=str(last))
    assert drawings == ["drawn twice"] * 2


def test_references_follow_the_ids(cdf: Entry) -> None:
    svg = plots.render(cdf, "ttft_cdf", salt='nodeid::"<&>')
    ids = re.findall(r'id="([^"]+)"', svg)
    assert len(ids) == len(set(ids)) > 1
    assert set(re.findall(r'(?:url\(|href=")#(\w+)', svg)) == set(ids)


def test_nothing_global_changes(cdf: Entry, drawings: list[str]) -> None:
    cdf = cdf | {"title": "not drawn before"}
    with mpl.rc_context({"svg.fonttype": "path", "axes.facecolor": "red"}):
        before = dict(mpl.rcParams)
        svg = plots.render(cdf, "ttft_cdf")
        assert dict(mpl.rcParams) == before
    assert len(drawings) == 1
    assert "#ff0000" not in svg


def test_ink_is_that_of_the_page(cdf: Entry) -> None:
    svg = plots.render(cdf, "ttft_cdf")
    assert "currentColor" in svg
    assert "#010203" not in svg


def test_curves_with_a_legend_and_zero_on_a_log_axis() -> None:
    svg = plots.render(CURVE, "throughput_latency")
    assert {"a", "b"} <= set(_texts(svg))
    assert "<title>Throughput &amp; latency &lt;1&gt;</title>" in svg


def test_marks_close_together_do_not_overlap(cdf: Entry) -> None:
    marks = {"P50": 126.8, "P90": 127.0, "P95": 127.1, "limit P99": 127.3}
    svg = plots.render(cdf | {"marks": marks}, "ttft_cdf")
    xs = []
    for text in ElementTree.fromstring(svg).iter(f"{SVG}text"):
        if re.match(r"P\d\d|limit", "".join(text.itertext())):
            xs.append(float(re.findall(r"translate\(([\d.]+)", str(text.get("transform")))[0]))
    assert len(xs) == 4
    assert min(b - a for a, b in pairwise(xs)) > 9


def test_an_empty_series_is_drawn_without_a_line() -> None:
    empty = CURVE | {"series": {"a": {"x": [], "y": []}}, "marks": {}}
    assert ElementTree.fromstring(plots.render(empty, "p")).tag == f"{SVG}svg"


def test_the_throughput_latency_curve(every_entry: dict[str, Entry]) -> None:
    plot = every_entry["tradeoff"]["plots"]["throughput_latency"]
    svg = plots.render(plot, "throughput_latency")
    texts = _texts(svg)
    assert {"TTFT P50", "TTFT P99", "TPOT P50", "100", "1000", "10000"} <= set(texts)
    assert any(text.startswith("knee") for text in texts)
    assert any(text.startswith("saturation") for text in texts)
    assert "#d9722e; fill-opacity: 0.18" in svg


def test_a_band_and_a_fit_on_two_log_axes(every_entry: dict[str, Entry]) -> None:
    plot = every_entry["long_context"]["plots"]["context_scaling"]
    svg = plots.render(plot, "context_scaling")
    assert {"1000", "10000", "100000", "500"} <= set(_texts(svg))
    assert svg.count("stroke-dasharray: 6.66") == 2  # the line and its key
    assert "fill-opacity: 0.18" in svg
    assert "fill-opacity: 0.18" not in plots.render(plot | {"bands": {}}, "context_scaling")


def test_a_histogram_is_filled_and_a_distribution_is_not(every_entry: dict[str, Entry], cdf: Entry) -> None:
    histogram = every_entry["itl"]["plots"]["itl_histogram"]
    assert "fill-opacity: 0.22" in plots.render(histogram, "itl_histogram")
    assert "fill-opacity: 0.22" not in plots.render(cdf, "ttft_cdf")


def test_heights_far_above_zero_are_not_squeezed(every_entry: dict[str, Entry]) -> None:
    plot = every_entry["capacity"]["plots"]["capacity_completion"]
    assert "0.98" in " ".join(_texts(plots.render(plot, "capacity_completion")))
    low = plot | {"series": {"completion": {"x": [1.0, 2.0], "y": [0.2, 1.0]}}, "bands": {}}
    assert "0.0" in _texts(plots.render(low, "capacity_completion"))


def test_a_narrow_log_axis_still_has_ticks(cdf: Entry) -> None:
    narrow = cdf | {"series": {"TTFT": {"x": [110.0, 180.0], "y": [0.5, 1.0]}}, "marks": {}}
    ticks = [text for text in _texts(plots.render(narrow, "ttft_cdf")) if re.fullmatch(r"1\d\d", text)]
    assert len(ticks) >= 3


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [
        (2.9, 15.0, ["3", "5", "7", "10"]),
        (2.9, 90.0, ["5", "10", "20", "50"]),
        (3.1, 7.2, ["4", "5", "6", "7"]),
        (0.31, 0.72, ["0.4", "0.5", "0.6", "0.7"]),
    ],
)
def test_a_log_axis_has_round_ticks_and_more_than_two(
    cdf: Entry, least: float, most: float, ticks: list[str]
) -> None:
    plot = cdf | {"series": {"TTFT": {"x": [least, most], "y": [0.5, 1.0]}}, "marks": {}}
    texts = _texts(plots.render(plot, "ttft_cdf"))
    assert texts[: texts.index("TTFT (ms)")] == ticks


def test_the_legend_lies_below_and_makes_the_figure_higher(cdf: Entry) -> None:
    line = {"x": [1.0, 2.0], "y": [0.5, 1.0]}

    def drawn(names: list[str]) -> tuple[float, list[str]]:
        svg = plots.render(cdf | {"series": dict.fromkeys(names, line)}, "ttft_cdf")
        box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)
        assert box is not None
        return float(box[2]), [text for text in _texts(svg) if text in names]

    few, _ = drawn(["a", "b", "c"])
    assert drawn(["x" * 30, "y"])[0] == few
    long = [f"{'x' * 35}{number}" for number in range(30)]
    many, named = drawn(long)
    assert named == long[:24]
    assert few < many < 3 * few


def test_counts_have_no_ticks_between_them(cdf: Entry) -> None:
    plot = cdf | {"series": {"under way": {"x": [1.0, 2.0], "y": [0.0, 4.0]}}, "marks": {}, "step": False}
    assert {"0", "1", "2", "3", "4"} <= set(_texts(plots.render(plot, "requests")))
    assert "0.5" not in _texts(plots.render(plot, "requests"))


def test_a_plot_of_an_earlier_schema_is_drawn(cdf: Entry) -> None:
    old = {name: value for name, value in cdf.items() if name not in ("bands", "y_log")}
    assert plots.render(old, "ttft_cdf") == plots.render(cdf, "ttft_cdf")


def test_rows_are_bars_in_their_order() -> None:
    plot = {
        "title": "Slowest", "x_label": "ms", "y_label": "request", "rows": ["#7 at 2.0 s", "#3 <at> 1 s"],
        "series": {"to the first token": {"x": [0.0, 90.0, 0.0, 60.0], "y": [0.0, 0.0, 1.0, 1.0]},
                   "output": {"x": [90.0, 130.0], "y": [0.0, 0.0]}},
        "marks": {},
    }  # fmt: skip
    svg = plots.render(plot, "slowest_requests")
    assert svg.index("#7 at 2.0 s") < svg.index("#3 &lt;at&gt; 1 s")
    heights = [float(y) for y in re.findall(r'y="([\d.]+)" transform="[^"]*">#', svg)]
    assert len(heights) == 2
    assert heights[0] < heights[1]
    assert "to the first token" in svg
    assert "output" in svg


def _bars(*parts: str) -> Entry:
    series = {name: {"x": [at, at + 1.0], "y": [0.0, 0.0]} for at, name in enumerate(parts)}
    return {
        "title": "t",
        "x_label": "s",
        "y_label": "turn",
        "rows": ["turn 1"],
        "series": series,
        "marks": {},
    }


def _colour_of(svg: str, part: str) -> str:
    """That of the lines of the legend and of the bars is one; parts stand in the order of their bars."""
    strokes = re.findall(r"stroke: (#[0-9a-f]{6}); stroke-width: 7", svg)
    names = [text for text in _texts(svg) if text in ("queue of the server", "to the first token", "output")]
    return strokes[names.index(part)]


def test_a_part_has_the_same_colour_whatever_stands_before_it() -> None:
    whole = plots.render(_bars("queue of the server", "to the first token", "output"), "a")
    part = plots.render(_bars("to the first token", "output"), "b")
    for name in ("to the first token", "output"):
        assert _colour_of(whole, name) == _colour_of(part, name)


def test_numbers_of_turns_have_no_ticks_between_them() -> None:
    plot = {
        "title": "TTFT by turn", "x_label": "turn", "y_label": "ms", "marks": {}, "step": False,
        "series": {"P50": {"x": [1.0, 2.0, 3.0], "y": [7.5, 8.5, 9.25]}},
    }  # fmt: skip
    ticks = [text for text in _texts(plots.render(plot, "ttft_by_turn")) if re.fullmatch(r"[\d.]+", text)]
    assert {"1", "2", "3"} <= set(ticks)
    assert not {"1.0", "1.5", "2.5"} & set(ticks)


def test_letters_that_no_font_has_are_no_warning_of_the_suite(cdf: Entry) -> None:
    """Warnings are errors here, as in suites that ask for it."""
    svg = plots.render(cdf | {"x_label": "遅延 (ms)", "title": "遅延の分布"}, "japanese")
    assert "遅延 (ms)" in _texts(svg)


def test_a_picture_that_fails_costs_the_picture(cdf: Entry) -> None:
    """Series of two lengths are no plot."""
    svg = plots.render(cdf | {"series": {"TTFT": {"x": [1.0, 2.0], "y": [1.0]}}}, "broken")
    assert "<title>Distribution of TTFT</title>" in svg
    assert "not drawn: matplotlib says ValueError: x and y must have same first dimension" in svg
