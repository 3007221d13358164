"""``pytest-llmbench recover DIR``: the report of a session that was killed, from its journal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from pytest_llmbench.errors import StoreError
from pytest_llmbench.harness.report_files import (
    Written,
    build_report,
    files_in,
    of_session,
    put_aside,
    write_reports,
)
from pytest_llmbench.harness.session_record import why_incomplete
from pytest_llmbench.redaction import terminal_text
from pytest_llmbench.reports.document import ReportView
from pytest_llmbench.reports.terminal import overview
from pytest_llmbench.store.files import document_of
from pytest_llmbench.store.journal import ASIDE_PREFIX, JOURNAL_NAME, ReadJournal, claimed, held_journal
from pytest_llmbench.store.records_file import header_of, records_lines
from pytest_llmbench.store.schema import IncompleteEntry, Report, TestEntry, UnfinishedTest, iso_utc

GOOD, NOT_GOOD, NOT_RECOVERED = 0, 1, 2


@dataclass(frozen=True)
class Recovered:
    report: Report
    written: Written
    good: bool
    """Whether the session had come to its end and all its tests had passed."""


def recover(directory: Path) -> Recovered:
    """Write the report of the session whose journal is in ``directory``, and remove the journal.

    Raises StoreError where there is no journal, or where its session is still running.
    """
    path = directory / JOURNAL_NAME
    if not path.is_file():
        aside = sorted(directory.glob(f"{ASIDE_PREFIX}*/{JOURNAL_NAME}"))
        raise StoreError(
            "there is nothing to recover: a session that ends normally writes its report and leaves no "
            "journal",
            where=str(directory),
            remedy="of earlier sessions: " + ", ".join(str(path.parent) for path in aside)
            if aside
            else "name the directory of --llm-report",
        )
    try:
        descriptor = claimed(path)
    except OSError as error:
        raise StoreError(
            f"cannot open the journal: {error.strerror or error}",
            where=str(path),
            remedy="recover as the user who ran the session",
        ) from error
    try:
        found = held_journal(path, descriptor)
        report = _report_of(found, directory)
        files = files_in(directory)
        own = of_session(files, directory, found)
        put_aside(directory, {path: changed_ns for path, changed_ns in files.items() if path not in own})
        written = write_reports(directory, document_of(report))
        if not written.problems:
            path.unlink()
    finally:
        os.close(descriptor)
    good = found.course.exit_status == 0 and report.incomplete is None
    return Recovered(report, written, good)


def _report_of(found: ReadJournal, directory: Path) -> Report:
    entries, unreadable = [], 0
    for entry in found.course.entries:
        try:
            TestEntry.model_validate(entry)
        except ValidationError:
            unreadable += 1
        else:
            entries.append(entry)
    course, damaged = found.course, found.damaged + unreadable
    why = why_incomplete(course) or ("part of its journal is lost" if damaged else None)
    if why is None:
        return build_report(found.head, entries)
    known = {entry["records_file"] for entry in entries}
    records = {name: nodeid for name, nodeid in _records(directory, found.head.started) if name not in known}
    unfinished = [
        UnfinishedTest(
            nodeid=nodeid, records_files=[name for name, whose in records.items() if whose == nodeid]
        )
        for nodeid in course.unfinished
    ]
    incomplete = IncompleteEntry(
        why=why, unfinished=unfinished, not_begun=list(course.waiting), damaged_lines=damaged
    )
    return build_report(found.head, entries, incomplete)


def _records(directory: Path, started: str) -> Iterator[tuple[str, str]]:
    """The records files of this session, as a report names them, each with the node id of its test."""
    for path in sorted((directory / "records").glob("*.jsonl*")):
        try:
            with records_lines(path) as each:
                header = header_of(next(each, b""), path)
        except (OSError, StoreError):
            continue  # killed before its first line was whole
        # The anchor of a replay is virtual time.
        if iso_utc(path.stat().st_mtime_ns) >= started:
            yield path.relative_to(directory).as_posix(), str(header.get("nodeid", ""))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench recover",
        description="Write the report of a killed session, from what it had judged until then.",
        epilog="Exit status: 0 the session had ended and all tests had passed, 1 the report is "
        "incomplete or a test did not pass, 2 there is no report.",
    )
    parser.add_argument("directory", type=Path, help="the directory of --llm-report")
    directory = parser.parse_args(list(arguments)).directory
    if directory.name == JOURNAL_NAME:
        directory = directory.parent
    found = recover(directory)
    document = document_of(found.report)
    for line in overview(document, width=shutil.get_terminal_size().columns):
        print(terminal_text(line.text))
    view = ReportView(document)
    print(terminal_text(view.incomplete or view.tally))
    for path in found.written.paths:
        print(f"report: {path}")
    for problem in found.written.problems:
        print(terminal_text(f"ERROR: {problem}"), file=sys.stderr)
    if found.written.problems:
        return NOT_RECOVERED
    return GOOD if found.good else NOT_GOOD
