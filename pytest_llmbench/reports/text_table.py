"""Tables of plain text that fit a terminal: names are cut in their middle before numbers are."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_GAP = 2
_KNOWN_ROOM, _LEAST_ROOM = 16, 6
"""Widths down to which names are shortened, first to the one, then to the other; only then is anything else
shortened."""
_NUMBER = re.compile(r"[-+<>]?\s?\d[\d.,]*(\s\S+)?(\s[\[(].*)?|\[.*\]")
"""Cells that are numbers: ``3``, ``524 ms``, ``+4.2 % [+1.0, +7.2]``, ``[498, 561]``."""


def text_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], *, width: int, whole: Collection[str] = ()
) -> list[str]:
    """The lines of a table: head, rule and a line for each row; numbers are flush right.

    Where ``width`` is too small, names are cut, the longest first; after them numbers and the columns
    ``whole``. A table of very many columns may be wider all the same.
    """
    flat = [[re.sub(r"\s", " ", cell) for cell in row] for row in rows]
    numeric = [_is_numeric([row[at] for row in flat]) for at in range(len(columns))]
    kept = [own or name in whole for own, name in zip(numeric, columns, strict=True)]
    widths = _widths([list(columns), *flat], kept, width - _GAP * (len(columns) - 1))
    lines = [_line(columns, widths, numeric), "-" * (sum(widths) + _GAP * (len(widths) - 1))]
    return [*lines, *(_line(row, widths, numeric) for row in flat)]


def cut_within(text: str, width: int) -> str:
    """The text cut in its middle: names differ at their ends, and a limit has its number there."""
    text = re.sub(r"\s", " ", text)
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether most cells of a column are numbers, perhaps with a unit or an interval."""
    filled = [cell for cell in cells if cell]
    return 2 * sum(bool(_NUMBER.fullmatch(cell)) for cell in filled) > len(filled)


def _widths(rows: Sequence[Sequence[str]], kept: Sequence[bool], width: int) -> list[int]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for least, everything in ((_KNOWN_ROOM, False), (_LEAST_ROOM, False), (_LEAST_ROOM, True)):
        while sum(widths) > width:
            large = [at for at, own in enumerate(widths) if own > least and (everything or not kept[at])]
            if not large:
                break
            widths[max(large, key=widths.__getitem__)] -= 1
    return widths


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    shown = (
        cut_within(cell, width).rjust(width) if right else cut_within(cell, width).ljust(width)
        for cell, width, right in zip(cells, widths, numeric, strict=True)
    )
    return (" " * _GAP).join(shown).rstrip()
