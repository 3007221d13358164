"""The rows of a file with their places: JSON, JSON Lines, CSV, Parquet, gzipped or not."""

from __future__ import annotations

import csv
import errno
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, zip_longest
from pathlib import Path
from typing import Any, Final, Literal

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import MOST_BYTES, open_file, parse_json, read_unpacked
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.store.traces.sources import is_weka

FileFormat = Literal["json", "jsonl", "csv", "parquet"]
_SUFFIXES: Mapping[str, FileFormat] = {
    ".json": "json",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
_PARQUET_ROWS = 256
"""Rows that are unpacked at once."""
MOST_LINE_BYTES: Final = 16 * 1024 * 1024
"""The longest line of JSON Lines, or of gzipped ones unpacked: some four million tokens."""
Row = Mapping[str, Any]


class Broken(str):
    """Why a row is none that can be used."""

    remedy = "check the file"


class _Half(Broken):
    remedy = "write the whole character, or leave out the row"


_HALF = _Half("holds half a character (a lone surrogate such as \\ud83d), which cannot be sent")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows that could be read, each with its position (``line 3``, ``row 3``), and what could not, in
    words."""

    found: tuple[tuple[str, Row], ...]
    mistakes: tuple[str, ...]


def numbered_rows(path: Path, format_: FileFormat | None = None) -> Rows:
    """All rows of the file. A broken line is a mistake beside others; a file that cannot be read raises
    SuiteError. A line that is a list is taken as a row of ``messages``."""
    found: list[tuple[str, Row]] = []
    mistakes: list[str] = []
    for place, row in rows_of(path, format_):
        if isinstance(row, list):
            row = {"messages": row}
        if isinstance(row, Mapping):
            found.append((place, row))
        else:
            mistakes.append(f"{place} {row if isinstance(row, Broken) else 'is not a JSON object'}")
    return Rows(tuple(found), tuple(mistakes))


def rows_of(path: Path, format_: FileFormat | None = None) -> Iterator[tuple[str, Any]]:
    """The rows of the file in its order, each with its position; :class:`Broken` for one that cannot be
    used. The format is that of the suffix unless it is given. SuiteError for a file that cannot be read."""
    return _READERS[format_ or format_of(path)](path)


def format_of(path: Path) -> FileFormat:
    """The file format by the suffix, without ``.gz``. SuiteError if the suffix is not known."""
    name = path.name.lower().removesuffix(".gz")
    found = _SUFFIXES.get(Path(name).suffix)
    if found is None:
        known = ", ".join(_SUFFIXES)
        raise SuiteError(
            f"the suffix does not show the format; known are {known}",
            where=str(path),
            remedy='give the format, for example format = "jsonl"',
        )
    return found


def _lines(path: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(unpacked_bytes(path).splitlines(), start=1):
        if len(line) > MOST_LINE_BYTES:
            told = f"is {quantity(len(line) / 2**20, 'MiB')} long: at most {MOST_LINE_BYTES >> 20}"
            yield f"line {number}", Broken(told)
        elif line.strip():
            try:
                row = parse_json(line)
            except ValueError as error:
                row = Broken(f"is not JSON: {error}")
            yield f"line {number}", _HALF if unsendable(row, line) else row


def _document(path: Path) -> Iterator[tuple[str, Any]]:
    """The rows of a JSON document: the items of a list, or of the only list in an object, as some exports
    have it; any other object is one row."""
    try:
        content = parse_json(unpacked_bytes(path))
    except ValueError as error:
        raise SuiteError(f"not JSON: {error}", where=str(path), remedy="check the file") from error
    rows = content if isinstance(content, list) else [content]
    own = {"messages", "conversations", "resourceSpans", "spans"}
    if isinstance(content, dict) and not own & set(content) and not is_weka(content):
        lists = [each for each in content.values() if isinstance(each, list)]
        rows = lists[0] if len(lists) == 1 else [content]
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", _HALF if unsendable(row) else row


def _table(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        text = unpacked_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SuiteError(f"not UTF-8 text: {error}", where=str(path)) from error
    for line, row in csv_rows(text):
        yield f"line {line}", Broken(f"is not CSV: {row}") if isinstance(row, csv.Error) else row


def csv_rows(text: str) -> Iterator[tuple[int, Mapping[str, Any] | csv.Error]]:
    """The rows of a CSV text, each with the line on which it begins; last, where it is broken, why. Cells may
    be as long as the text."""
    before = csv.field_size_limit(max(csv.field_size_limit(), len(text) + 1))  # of the whole interpreter
    reader, begins, found, broken = csv.reader(io.StringIO(text, newline="")), 1, [], None
    try:
        for row in reader:
            found.append((begins, row))
            begins = reader.line_num + 1
    except csv.Error as error:
        broken = error
    finally:
        csv.field_size_limit(before)
    kept = [(line, row) for line, row in found if row]
    for line, row in kept[1:]:
        names = kept[0][1]
        cells: dict[Any, Any] = dict(zip_longest(names, row[: len(names)]))
        yield line, cells | ({None: row[len(names) :]} if len(row) > len(names) else {})
    if broken is not None:
        yield begins, broken


def _parquet(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        from pyarrow import parquet
    except ImportError as error:
        raise SuiteError(
            "Parquet files need pyarrow, which is not installed",
            where=str(path),
            remedy="pip install 'pytest-llmbench[parquet]', or convert the file to JSON Lines",
        ) from error
    try:
        with open_file(path, MOST_BYTES) as raw, parquet.ParquetFile(raw) as file:
            # Neither the size of a file nor what it says of itself bounds what repetitions unpack to.
            unpacked, numbers = 0, count(1)
            for batch in file.iter_batches(_PARQUET_ROWS):
                if (unpacked := unpacked + batch.nbytes) > MOST_BYTES:
                    raise OSError(errno.EFBIG, f"its rows are more than {MOST_BYTES >> 30} GiB")
                yield from ((f"row {next(numbers)}", row) for row in batch.to_pylist())
    except (OSError, ValueError, RuntimeError) as error:  # pyarrow's own errors are of these
        raise SuiteError(f"not a Parquet file: {error}", where=str(path), remedy="check the file") from error


_READERS = {"json": _document, "jsonl": _lines, "csv": _table, "parquet": _parquet}
_HALVES = re.compile(rb"\\u[dD][89a-fA-F]")


def unsendable(row: Any, raw: bytes | None = None) -> bool:
    """Whether a row of JSON holds text that no request can carry. ``raw``: its bytes, where there are any;
    those of most rows rule it out."""
    if raw is not None and _HALVES.search(raw) is None:
        return False
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def unpacked_bytes(path: Path) -> bytes:
    """All bytes of a file, unpacked if it is gzipped. SuiteError if it cannot be read, or is too long."""
    try:
        return read_unpacked(path)
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError | ValueError) -> SuiteError:
    reason = getattr(error, "strerror", None) or str(error)
    too_long = getattr(error, "errno", None) == errno.EFBIG
    remedy = "give an extract of it" if too_long else "check the path"
    return SuiteError(f"cannot be read: {reason}", where=str(path), remedy=remedy)
