"""CSV files of results: written whole or not at all, and harmless to spreadsheets."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_llmbench.redaction import outward
from pytest_llmbench.store.files import whole_file

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of texts that a spreadsheet takes for a formula, which a server's text must not become."""

Cell = str | float | int | bool | None


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a CSV file with a header and a line for each row, as they come; None is an empty cell.

    Texts leave as :func:`~pytest_llmbench.redaction.outward` gives them, with an apostrophe before one that a
    spreadsheet would take for a formula. StoreError where the file
    cannot be written; the old one, if there is one, is left as it was.
    """
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([_harmless(cell) for cell in row] for row in rows)


def _harmless(cell: Cell) -> Cell:
    if not isinstance(cell, str):
        return cell
    text = outward(cell)
    return f"'{text}" if text.startswith(_FORMULA) else text
