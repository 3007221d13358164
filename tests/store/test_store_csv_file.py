"""CSV files: whole or not at all, and no formulas of a server's making."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.store.files import Cell, write_csv


def test_numbers_stay_numbers_and_texts_are_no_formulas(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.csv"
    hostile = '=HYPERLINK("http://x")\nsecond, line'
    write_csv(path, ("a", "b", "c", "d"), [(-1.5, None, hostile, "+1"), (7, True, 'say "no"', "-")])
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [
        ["a", "b", "c", "d"],
        ["-1.5", "", f"'{hostile}", "'+1"],
        ["7", "True", 'say "no"', "'-"],
    ]


def test_what_cannot_be_written_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("old")

    def broken() -> Iterator[tuple[Cell, ...]]:
        yield (1,)
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError, match="No space left on device"):
        write_csv(path, ("a",), broken())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(StoreError, match="cannot write the file"):
        write_csv(path / "b.csv", ("a",), [])
