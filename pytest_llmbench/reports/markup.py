"""HTML built from values: text is escaped unless it is HTML already, so a server's words stay words."""

from __future__ import annotations

import html
import importlib.resources
from collections.abc import Iterable, Sequence
from functools import cache

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
            opening += f' {_attribute(name)}="{html.escape(value, quote=True)}"'
    return Html(f"<{opening}>" if tag in _VOID else f"<{opening}>{_joined(children)}</{tag}>")


@cache
def _attribute(name: str) -> str:
    return name.rstrip("_").replace("_", "-")


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


def table(columns: Sequence[Child], rows: Iterable[Sequence[Child]], *, caption: str | None = None) -> Html:
    """A table whose first column is its row heads."""
    head = element("tr", [element("th", column, scope="col") for column in columns])
    body = [
        element(
            "tr",
            [element("td" if i else "th", cell, scope=None if i else "row") for i, cell in enumerate(row)],
        )
        for row in rows
    ]
    whole = element(
        "table",
        element("caption", caption) if caption else None,
        element("thead", head),
        element("tbody", body),
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
