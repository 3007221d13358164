"""A records file as rows: what tests look at one by one. The package reads columns (``records_file``)."""

from __future__ import annotations

from pathlib import Path

from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.store.record_line import row_of


def rows_of(path: Path) -> list[tuple[RequestRecord, str]]:
    """The rows of a plain file, and their labels."""
    return [row_of(line) for line in path.read_bytes().splitlines()[1:]]
