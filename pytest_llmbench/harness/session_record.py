"""The results that a session has judged so far: in memory, in the journal of its report directory, in its
report. ``pytest-llmbench recover DIR`` makes the report of a killed session from its journal."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_llmbench.errors import LLMBenchError, StoreError
from pytest_llmbench.harness.report_files import (
    Files,
    Written,
    build_report,
    check_ours,
    files_in,
    github_wants_to_know,
    head_of,
    of_session,
    put_aside,
    shown,
    tell_github,
    unchanged,
    write_reports,
)
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.redaction import terminal_text
from pytest_llmbench.reports.document import ReportView
from pytest_llmbench.reports.terminal import overview
from pytest_llmbench.store import journal
from pytest_llmbench.store.files import document_of, remove_unfinished
from pytest_llmbench.store.journal import (
    ASIDE_PREFIX,
    JOURNAL_NAME,
    Journal,
    ReadJournal,
    claimed,
    held_journal,
    read_journal,
)
from pytest_llmbench.store.records_file import NOT_ON_DISK, header_of, records_lines
from pytest_llmbench.store.schema import IncompleteEntry, Report, TestEntry, UnfinishedTest, iso_utc

_BROKEN_OFF = {2: "the session was interrupted", 3: "pytest ended with an internal error"}
"""pytest's exit status → why the session is incomplete."""


def why_incomplete(found: journal.Course) -> str | None:
    """The reason why a session is incomplete; None for one that came to its end.

    The session has ended, or its process has.
    """
    if found.exit_status is None:
        return "the session was killed before its end"
    cut = "the session ended in the middle of a test" if found.unfinished else None
    return _BROKEN_OFF.get(found.exit_status, cut)


class SessionRecord:
    """The record of a session, in the process that writes the report. With a report directory, everything
    told after :meth:`begin` survives if the process is killed."""

    def __init__(self, settings: Settings, root: str = ".") -> None:
        self._settings = settings
        self._head = head_of(settings, time.time_ns(), root)
        self._course = journal.Course()
        self._journal: Journal | None = None
        self._found: Files = {}
        """Files in the report directory that an earlier session left."""
        self.said: list[str] = []
        """Messages about these files for the end of the session, a line each."""

    @property
    def entries(self) -> list[dict[str, Any]]:
        """The entries of ``report.json``, in the order in which the tests ended."""
        return self._course.entries

    def begin(self) -> str | None:
        """Claim the report directory; returns a message about what was found in it.

        Raises StoreError where another session is at work there, where files of others are in its place, or
        what a killed one left cannot be moved.
        """
        if self._settings.report is None:
            return None
        check_ours(self._settings.report)
        self._journal = Journal(self._settings.report, self._head)
        for folder in (self._settings.report, self._settings.report / "records"):
            remove_unfinished(folder)
        aside, self._found = self._journal.set_aside, files_in(self._settings.report)
        if aside is None:
            return None
        left: Files = {}
        with suppress(StoreError):  # of another version, as recovering it tells
            left = of_session(self._found, self._settings.report, read_journal(aside / JOURNAL_NAME))
        put_aside(self._settings.report, left, aside)
        return f"a session that was killed left results: pytest-llmbench recover {aside}"

    def select(self, nodeids: Sequence[str]) -> None:
        """Note the load tests that were selected, before the first begins; more may follow."""
        new = [nodeid for nodeid in nodeids if not self._course.follows(nodeid)]
        if new:
            self._note(journal.selected(new))

    def test_begins(self, nodeid: str) -> None:
        if self._course.follows(nodeid):
            self._note(journal.begun(nodeid))

    def test_ended(self, nodeid: str) -> None:
        if self._course.follows(nodeid):
            self._note(journal.ended(nodeid))

    def keep(self, entry: dict[str, Any]) -> None:
        self._note(journal.judged(entry))

    def reaudit(self, changes: Sequence[dict[str, Any]]) -> None:
        if changes:
            self._note(journal.reaudited(list(changes)))

    @property
    def incomplete(self) -> IncompleteEntry | None:
        """What is missing of the session, once it has ended; None if nothing is."""
        found, why = self._course, why_incomplete(self._course)
        if why is None:
            return None
        return IncompleteEntry(
            why=why,
            unfinished=[UnfinishedTest(nodeid=nodeid) for nodeid in found.unfinished],
            not_begun=list(found.waiting),
        )

    @property
    def not_on_disk(self) -> list[str]:
        """Files beside the results that are missing or not whole, a line each."""
        return [
            f"{entry['nodeid']}: {finding['message']}"
            for entry in self.entries
            for finding in entry["validity"]["findings"]
            if finding["check"] == NOT_ON_DISK and not finding["ok"]
        ]

    def finish(self, exit_status: int, environment: Mapping[str, str]) -> Written:
        """Write the report, and what ``environment`` asks for. If a file of the report cannot be written, the
        journal stays."""
        self._note(journal.finished(exit_status))
        self._put_earlier_aside()
        written = Written()
        if self.entries and (self._settings.report is not None or github_wants_to_know(environment)):
            try:
                written = self._write(environment)
            except Exception as error:  # noqa: BLE001 - of ours, and must not cost the verdicts
                lost = f"the report cannot be made: {type(error).__name__}: {shown(error)}"
                (written.warnings if self._settings.report is None else written.problems).append(lost)
        self._told_of_the_journal(written)
        self.close(keep=bool(written.problems))
        return written

    def _write(self, environment: Mapping[str, str]) -> Written:
        document = document_of(build_report(self._head, self.entries, self.incomplete))
        directory = self._settings.report
        written = Written() if directory is None else write_reports(directory, document)
        page = None if directory is None else str(directory / "report.html")
        told = tell_github(document, environment, path=page)
        warnings = [] if told.problem is None else [told.problem]
        return replace(written, annotations=told.annotations, warnings=warnings)

    def close(self, *, keep: bool = True) -> None:
        """Release the report directory. Safe to call twice."""
        if self._journal is not None:
            self._journal.close(keep=keep)

    def _put_earlier_aside(self) -> None:
        """Move the files of an earlier session away. Called only when there is a report to take their place:
        a session that measures nothing changes nothing."""
        directory = self._settings.report
        if directory is None or not self.entries:
            return
        try:
            place = put_aside(directory, unchanged(self._found))
        except StoreError as error:
            self.said.append(f"llmbench: {' '.join(str(error).split())}")
            return
        if place is not None:
            self.said.append(f"llmbench: the files of an earlier session are now in {place}")

    def _told_of_the_journal(self, written: Written) -> None:
        if self._journal is None or not written.problems:
            return
        if self._journal.problem is not None:
            written.problems.append(f"the journal is not whole either: {self._journal.problem}")
        else:
            where = self._journal.path.parent
            written.problems.append(f"no judgement is lost: run pytest-llmbench recover {where}")

    def _note(self, event: journal.Event) -> None:
        self._course.apply(event)
        if self._journal is not None:
            self._journal.note(event)


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
        raise _nothing_in(directory)
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


def _nothing_in(directory: Path) -> StoreError:
    aside = sorted(directory.glob(f"{ASIDE_PREFIX}*/{JOURNAL_NAME}"))
    return StoreError(
        "there is nothing to recover: a session that ends normally writes its report and leaves no journal",
        where=str(directory),
        remedy="of earlier sessions: " + ", ".join(str(path.parent) for path in aside)
        if aside
        else "name the directory of --llm-report",
    )


def _report_of(found: ReadJournal, directory: Path) -> Report:
    entries, unreadable = [], 0
    for entry in found.course.entries:
        try:
            TestEntry.model_validate(entry)
        except ValidationError:
            unreadable += 1
        else:
            entries.append(entry)
    return build_report(found.head, entries, _incomplete(found, unreadable, entries, directory))


def _incomplete(
    found: ReadJournal, unreadable: int, entries: Sequence[dict[str, Any]], directory: Path
) -> IncompleteEntry | None:
    course, damaged = found.course, found.damaged + unreadable
    why = why_incomplete(course) or ("part of its journal is lost" if damaged else None)
    if why is None:
        return None
    known = {entry["records_file"] for entry in entries}
    records = {name: nodeid for name, nodeid in _records(directory, found.head.started) if name not in known}
    return IncompleteEntry(
        why=why,
        unfinished=[
            UnfinishedTest(
                nodeid=nodeid, records_files=[name for name, whose in records.items() if whose == nodeid]
            )
            for nodeid in course.unfinished
        ],
        not_begun=list(course.waiting),
        damaged_lines=damaged,
    )


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
    try:
        found = recover(directory)
    except LLMBenchError as error:
        print(terminal_text(str(error)), file=sys.stderr)
        return NOT_RECOVERED
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
