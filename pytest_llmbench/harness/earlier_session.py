"""What an earlier session left in a report directory: put aside, so that no directory holds files of two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.report_files import REPORT_FILES
from pytest_llmbench.store.instants import iso_utc
from pytest_llmbench.store.journal import ReadJournal, free_name
from pytest_llmbench.store.report_file import REPORT_NAME

EARLIER_PREFIX = "earlier-"
"""The prefix of the folders that files of earlier sessions are put into."""

_MEASURED: tuple[str, ...] = (
    "records/*.jsonl.gz",
    "records/*.jsonl",
    "records/*.loads.json",
    "sequence/*.json*",
)

Files = Mapping[Path, int]
"""Files, each with the instant of its last change in nanoseconds."""


def files_in(directory: Path) -> Files:
    """Every file of a report, of records and of sequences.

    The names of a report are anybody's (``summary.md``), and taken for ours only beside a ``report.json``.
    """
    names = _MEASURED
    if (directory / REPORT_NAME).is_file():
        names += REPORT_FILES
    found = sorted(path for name in names for path in directory.glob(name) if path.is_file())
    return {path: path.stat().st_mtime_ns for path in found}


def of_session(files: Files, directory: Path, journal: ReadJournal) -> Files:
    """Those of ``files`` that the session of ``journal`` wrote: it names them, or they changed since."""
    named = {entry.get(key) for entry in journal.course.entries for key in ("records_file", "loads_file")}
    started = journal.head.started
    return {
        path: changed_ns
        for path, changed_ns in files.items()
        if iso_utc(changed_ns) >= started or path.relative_to(directory).as_posix() in named
    }


def unchanged(files: Files) -> Files:
    """Those of ``files`` that nobody has written anew or taken away since."""
    return {
        path: changed_ns
        for path, changed_ns in files.items()
        if path.is_file() and path.stat().st_mtime_ns == changed_ns
    }


def put_aside(directory: Path, files: Files, place: Path | None = None) -> Path | None:
    """Move ``files`` of ``directory`` into ``place``, by default a new folder named after the last change.

    Returns the folder; None where there is no file. Raises StoreError where one cannot be moved.
    """
    if not files:
        return None
    place = place or free_name(directory, EARLIER_PREFIX, iso_utc(max(files.values())))
    try:
        for path in files:
            target = place / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    except OSError as error:
        raise StoreError(
            f"what an earlier session wrote cannot be put aside: {error.strerror or error}",
            where=str(directory),
            remedy="remove it, or name another directory with --llm-report",
        ) from error
    return place
