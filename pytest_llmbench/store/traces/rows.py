"""The rows of a trace file with their places: JSON, JSON Lines, CSV, Parquet, gzipped or not."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import parse_json
from pytest_llmbench.store.datasets import (
    HALF,
    FileFormat,
    csv_rows,
    format_of,
    read_rows,
    unpacked_bytes,
    unsendable,
)
from pytest_llmbench.store.traces.sources import is_weka

MOST_LINE_BYTES: Final = 16 * 1024 * 1024
"""The longest line of JSON Lines, or of gzipped ones unpacked: some four million tokens."""
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that could be read, each with its position (``line 3``, ``row 3``), and what could not, in
    words."""

    found: tuple[tuple[str, Row], ...]
    mistakes: tuple[str, ...]


def numbered_rows(path: Path, format_: FileFormat | None = None) -> Rows:
    """All rows of the file. A broken line is a mistake beside others; a file that cannot be read raises
    SuiteError. A line that is a list is taken as a row of ``messages``."""
    chosen = format_ or format_of(path)
    found: list[tuple[str, Row]] = []
    mistakes: list[str] = []
    for place, row in _READERS[chosen](path):
        if isinstance(row, list):
            row = {"messages": row}
        if isinstance(row, Mapping):
            found.append((place, row))
        else:
            mistakes.append(f"{place} {row if isinstance(row, _Broken) else 'is no JSON object'}")
    return Rows(tuple(found), tuple(mistakes))


class _Broken(str):
    """Why a line is not a valid row."""

    __slots__ = ()


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(unpacked_bytes(path).splitlines(), start=1):
        if len(line) > MOST_LINE_BYTES:
            told = f"is {len(line) / 2**20:.1f} MiB long: at most {MOST_LINE_BYTES >> 20}"
            yield f"line {number}", _Broken(told)
        elif line.strip():
            try:
                row = parse_json(line)
            except ValueError as error:
                row = _Broken(f"is no JSON: {error}")
            yield f"line {number}", _Broken(HALF) if unsendable(row, line) else row


def _document(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a JSON document: the items of a list, or of the only list of objects in an object; any
    other object is one row."""
    try:
        content = parse_json(unpacked_bytes(path))
    except ValueError as error:
        raise SuiteError(f"no JSON: {error}", where=str(path), remedy="check the file") from error
    rows = content if isinstance(content, list) else [content]
    own = {"messages", "conversations", "resourceSpans", "spans"}
    if isinstance(content, dict) and not own & set(content) and not is_weka(content):
        lists = [each for each in content.values() if isinstance(each, list)]
        rows = lists[0] if len(lists) == 1 else [content]
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", _Broken(HALF) if unsendable(row) else row


def _table(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = unpacked_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SuiteError(f"not UTF-8 text: {error}", where=str(path)) from error
    for line, row in csv_rows(text):
        yield f"line {line}", _Broken(f"is no CSV: {row}") if isinstance(row, csv.Error) else row


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    for number, row in enumerate(read_rows(path, "parquet"), start=1):
        yield f"row {number}", row


_READERS = {"json": _document, "jsonl": _lines, "csv": _table, "parquet": _parquet}
