"""A records file as rows: what tests look at one by one. The package reads columns (``records_file``)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.store.record_line import row_of
from pytest_llmbench.store.records_file import RecordsHeader, RecordsWriter

HEADER = RecordsHeader(ClockAnchor(0, 0), "a.py::a", {})


def written(path: Path, rows: Iterable[RequestRecord], label: str = "measure") -> Path:
    """The path, at which a file has these rows."""
    with RecordsWriter(path, HEADER) as writer:
        for row in rows:
            writer.write(row, label)
    return path


def rows_of(path: Path) -> list[tuple[RequestRecord, str]]:
    """The rows of a plain file, and their labels."""
    return [row_of(line) for line in path.read_bytes().splitlines()[1:]]
