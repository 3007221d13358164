"""Reads ``records/*.jsonl.gz``, and unpacked files, to analyse a finished run again.

They become Records, in bounded memory.

    for label, records in read_records(path).items():
        distribution("ttft", latency.ttft_ms(records))

A test sends several plans: warm-up, probes, runs, levels; ``labels`` says which of them are wanted, and
:func:`read_runs` keeps apart what follows one another. The records are what the run itself had, number for
number, so every metric comes out the same to the last digit. What is not of single requests (start and end of
a load, readings of the engine) is not in this file.

Lines become columns some thousand at a time; beyond :data:`~pytest_llmbench.columns.MEMORY_BYTES` of
columns they go to a temporary file, which lives as long as the Records over it.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from pytest_llmbench.columns import MEMORY_BYTES, RecordLog
from pytest_llmbench.errors import StoreError
from pytest_llmbench.input_files import lines, open_file
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.store.record_line import row_reader
from pytest_llmbench.store.records_file import cut_off, damaged, header_of

ROWS = 4096
"""Maximum number of lines that are rows at once."""
ENTRIES = 1_000_000
"""Maximum number of entries of such rows, in chunks and server instants."""


@dataclass(frozen=True)
class StoredRun:
    """The records of one plan, as far as labels tell plans apart."""

    label: str
    records: Records


@dataclass(frozen=True)
class StoredRuns:
    """The runs in a records file."""

    header: Mapping[str, Any]
    runs: tuple[StoredRun, ...]
    """The runs in order; a run goes as far as the label stays the same."""
    dropped: str | None
    """What was left out at the end of a file whose writer was killed; None for a complete file."""


def read_records(
    path: Path,
    *,
    labels: Collection[str] | None = None,
    memory_bytes: int = MEMORY_BYTES,
    rows: int = ROWS,
) -> Mapping[str, Records]:
    """Label → its records in order of submission; all labels by default.

    ``memory_bytes``: of the columns of a label that are kept in memory; ``rows``: lines that become columns
    together. Raises StoreError for what is no records file, and for damage that is not a cut end.
    """
    logs: dict[str, _Filling] = {}
    with _of_their_kinds(path):
        for label, row in _Lines(path).rows(labels):
            if label not in logs:
                logs[label] = _Filling(RecordLog(memory_bytes=memory_bytes), rows)
            logs[label].append(row)
        return {label: filling.records() for label, filling in logs.items()}


def read_runs(path: Path, *, labels: Collection[str] | None = None) -> StoredRuns:
    """The runs of a file in order. Raises as :func:`read_records`."""
    lines = _Lines(path)
    runs: list[StoredRun] = []
    filling, current = _Filling(), ""
    with _of_their_kinds(path):
        for label, row in lines.rows(labels):
            if len(filling) and label != current:
                runs.append(StoredRun(current, filling.records()))
                filling = _Filling()
            current = label
            filling.append(row)
        if len(filling):
            runs.append(StoredRun(current, filling.records()))
    return StoredRuns(lines.header, tuple(runs), lines.dropped)


@contextmanager
def _of_their_kinds(path: Path) -> Iterator[None]:
    """Turn errors from wrong types in a line into a StoreError: a line that is JSON may hold a text where a
    number belongs, or a number too large for its column."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise damaged(f"a record has a value of the wrong type: {error}", path) from error


@dataclass
class _Filling:
    """Collects rows into columns."""

    log: RecordLog = field(default_factory=lambda: RecordLog(memory_bytes=MEMORY_BYTES))
    most_rows: int = ROWS
    rows: list[RequestRecord] = field(default_factory=list)
    entries: int = 0

    def __len__(self) -> int:
        return len(self.log) + len(self.rows)

    def append(self, row: RequestRecord) -> None:
        self.rows.append(row)
        self.entries += len(row.chunk_ns) + len(row.server_token_ns)
        if len(self.rows) >= self.most_rows or self.entries >= ENTRIES:
            self._flush()

    def records(self) -> Records:
        """All records; nothing can be appended after that."""
        self._flush()
        found = self.log.records()
        self.log.close()
        return found

    def _flush(self) -> None:
        self.log.extend(Records.from_rows(self.rows))
        self.rows, self.entries = [], 0


class RecordsLines(Iterator[bytes]):
    """The lines of a records file, unpacked if it is gzipped, up to where it was cut off."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._path = path
        packed = path.suffix == ".gz"
        self._file = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if packed else file
        self._lines = lines(self._file)
        self.cut = False
        """Whether a gzipped file has no end. Known once all lines have been read."""

    def __next__(self) -> bytes:
        try:
            return next(self._lines)
        except EOFError:
            self.cut = True
            raise StopIteration from None
        except (gzip.BadGzipFile, zlib.error) as error:
            raise damaged(f"it cannot be decompressed: {error}", self._path) from error


@contextmanager
def records_lines(path: Path) -> Iterator[RecordsLines]:
    """Open a records file; gives its lines, the header first. Raises OSError, and StoreError for a damaged
    one."""
    with open_file(path) as file:
        yield RecordsLines(file, path)


class _Lines:
    """The lines of a file; ``header`` and ``dropped`` are known once all have been read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.header: Mapping[str, Any] = {}
        self.dropped: str | None = None

    def rows(self, labels: Collection[str] | None) -> Iterator[tuple[str, RequestRecord]]:
        try:
            with records_lines(self._path) as each:
                self.header = header_of(next(each, b""), self._path)
                row_of = row_reader(self.header)
                bad: tuple[int, bytes, Exception] | None = None
                for number, line in enumerate(each, start=2):
                    if bad is not None:
                        raise damaged(f"line {bad[0]} is not a record: {bad[2]}", self._path) from bad[2]
                    try:
                        row, label = row_of(line)
                    except (ValueError, KeyError, TypeError) as error:
                        bad = number, line, error
                        continue
                    if labels is None or label in labels:
                        yield label, row
                if bad is not None:
                    self.dropped = cut_off(bad[0], bad[1])
                elif each.cut:
                    self.dropped = (
                        "the file has no end: its writer was killed, and later requests are missing"
                    )
        except OSError as error:
            raise StoreError(
                f"cannot read the records: {error.strerror or error}",
                where=str(self._path),
                remedy="check the path",
            ) from error
