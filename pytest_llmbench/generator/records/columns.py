"""Records as a file of columns, and the columns of several workers merged; long ones a block at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_llmbench.columns.blocks import BlockFile, block_of, joined, records_of
from pytest_llmbench.columns.log import MEMORY_BYTES, RecordLog
from pytest_llmbench.columns.log import merged as merged_files
from pytest_llmbench.generator.records.spool import SpoolReader
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import BLOCK, Records


def write_columns(records: Records, path: Path) -> None:
    """Write records to a file of blocks."""
    with BlockFile(path) as file:
        _fill(file, records)
        file.seal()


def read_columns(path: Path, memory_bytes: int = MEMORY_BYTES) -> Records:
    """Read what :func:`write_columns` wrote. Long runs stay in a file, which belongs to the Records
    returned."""
    with BlockFile.opened(path) as file:
        if path.stat().st_size > memory_bytes:
            return merged_files([file])
        if not file.places:
            return Records.from_rows(())
        return records_of(joined([file.read(place) for place in file.places]), file.vocabulary)


def merged(parts: Sequence[Records], *, memory_bytes: int = MEMORY_BYTES, block_rows: int = BLOCK) -> Records:
    """All requests of several workers, ordered by submission, as ``Records.from_rows`` orders them.

    Each part is in order already. Short ones are merged in memory; of long ones only as much is in memory as
    was in flight at once, and some blocks.
    """
    filled = [part for part in parts if len(part)]
    if len(filled) < 2:
        return filled[0] if filled else Records.from_rows(())
    log = RecordLog(memory_bytes=memory_bytes)
    try:
        for part in filled:
            for block in part.blocks(block_rows):
                log.extend(block)
        return log.records()
    finally:
        log.close()


def spooled_records(spool: SpoolReader, more: Iterable[RequestRecord] = ()) -> Records:
    """The requests in a spool, and ``more``, as columns."""
    log = RecordLog()
    try:
        for columns in spool.columns():
            log.extend(Records.from_columns(columns))
        log.extend(Records.from_rows(more))
        return log.records()
    finally:
        log.close()


def _fill(file: BlockFile, records: Records) -> None:
    for block in records.blocks(BLOCK):
        file.append(block_of(block, file.vocabulary))
