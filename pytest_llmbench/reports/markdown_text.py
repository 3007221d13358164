"""Markdown built from values: text stays text, whatever a server wrote into it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SHOWN_ERROR_CHARACTERS = 1_500
_LIVE = re.compile(r"(?i)(?<=[a-z])(?=://)|(?<=\bwww)(?=\.)|(?<=@)|(?<=[#!$])(?=\d)|(?<=\bGH-)(?=\d)")
"""Where sites that show Markdown see the beginning of a link, a mention, or the number of an issue. They look
for these in the finished page, so a backslash does not help; a space without width does."""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Cells have to be Markdown already."""
    return "".join([row(columns), row(["---"] * len(columns)), *map(row, rows)])


def row(cells: Iterable[str]) -> str:
    """A row of a table. Cells have to be Markdown already."""
    return "| " + " | ".join(cells) + " |\n"


def text_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are plain text."""
    return table([escape(column) for column in columns], [[plain(cell) for cell in row] for row in rows])


def bullets(texts: Iterable[str]) -> str:
    return "".join(f"- {escape(text)}\n" for text in texts)


def folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>\n\n{body}\n</details>\n"


def escape(text: str) -> str:
    """The text escaped: no markup, no mentions, no links, one line."""
    flat = " ".join(text.split())
    escaped = re.sub(r"([\\`*_{}\[\]|#~])", r"\\\1", flat.replace("&", "&amp;"))
    return _LIVE.sub("\u200b", escaped.replace("<", "&lt;").replace(">", "&gt;"))


def plain(text: str) -> str:
    """The text escaped; one with a URL as a code span, which can be copied and leads nowhere. For tables
    too."""
    return bar(code(text)) if "://" in text else escape(text)


def code(text: str) -> str:
    """The text as a code span, on one line; a code span cannot be empty."""
    flat = " ".join(text.split()) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{flat}{pad}{fence}"


def bar(text: str) -> str:
    """The text with bars escaped for a table cell: a bar ends it even inside a code span, and after a
    backslash of its own."""
    return text.replace("\\|", "\\ |").replace("|", "\\|")


def clipped(text: str, most: int) -> str:
    """The text on one line and cut to ``most`` characters, before anything is escaped."""
    flat = " ".join(text.split())
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def fence(text: str, language: str = "text") -> str:
    """The text as a fenced block; a very long one is cut."""
    shown = text if len(text) <= _SHOWN_ERROR_CHARACTERS else text[:_SHOWN_ERROR_CHARACTERS] + " …"
    ticks = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    return f"{ticks}{language}\n{shown}\n{ticks}\n"
