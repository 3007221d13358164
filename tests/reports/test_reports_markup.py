"""HTML from values."""

from __future__ import annotations

from pytest_llmbench.reports.html_blocks import Html, details, element, fragment, paragraphs, table


def test_text_is_escaped_and_html_is_not() -> None:
    assert element("td", "a < b & c", Html("<br>")) == "<td>a &lt; b &amp; c<br></td>"


def test_attributes_are_escaped_named_and_left_out() -> None:
    built = element("th", "x", class_="a", data_column_type='"n"', scope=None)
    assert built == '<th class="a" data-column-type="&quot;n&quot;">x</th>'


def test_children_nest() -> None:
    assert fragment(["a", ["b", None]], element("br")) == "ab<br>"


def test_rows_have_heads() -> None:
    built = table(("A", "B"), [("1", "2")], caption="<C>")
    assert '<th scope="row">1</th><td>2</td>' in built
    assert "<caption>&lt;C&gt;</caption>" in built


def test_no_list_without_entries() -> None:
    assert paragraphs([]) == ""


def test_details_fold() -> None:
    assert details("s", "b") == "<details><summary>s</summary>b</details>"
    assert details("s", open_=True).startswith('<details open="">')
