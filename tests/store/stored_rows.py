"""A records file as rows: what tests look at one by one. The package reads columns (``records_reader``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import StoreError
from pytest_llmbench.model.observation import ClockAnchor
from pytest_llmbench.model.record import Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.store.record_line import row_of
from pytest_llmbench.store.records_file import _TOO_SHORT, cut_off, damaged, header_of


@dataclass(frozen=True, slots=True)
class RecordsFile:
    """A records file as read back."""

    header: Mapping[str, Any]
    anchor: ClockAnchor
    rows: tuple[RequestRecord, ...]
    labels: tuple[str, ...]
    """The LoadPlan label of each row."""
    dropped: str | None
    """What was left out at the end of a file whose writer was killed; None for a whole file."""

    def records(self, phase: Phase | None = None) -> Records:
        """The rows as columns; with ``phase`` only those of that part of the run."""
        return Records.from_rows(row for row in self.rows if phase is None or row.phase is phase)


def read_records(path: Path) -> RecordsFile:
    """Reads a records file into rows; ``records_reader`` reads long ones.

    A cut last line is left out and told in ``dropped``; other damage raises.
    """
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise StoreError(
            f"cannot read the records: {error.strerror or error}", where=str(path), remedy="check the path"
        ) from error
    if not lines:
        raise damaged(_TOO_SHORT, path)
    header = header_of(lines[0], path)
    rows: list[tuple[RequestRecord, str]] = []
    dropped = None
    for number, line in enumerate(lines[1:], start=2):
        try:
            rows.append(row_of(line))
        except (ValueError, KeyError, TypeError) as error:
            if number < len(lines):
                raise damaged(f"line {number} is not a record: {error}", path) from error
            dropped = cut_off(number, line)
    anchor = ClockAnchor(header["anchor"]["monotonic_ns"], header["anchor"]["wall_ns"])
    return RecordsFile(
        header, anchor, tuple(row for row, _ in rows), tuple(label for _, label in rows), dropped
    )
