"""The results that a session has judged so far: in memory, in the journal of its report directory, in its
report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from pytest_llmbench.errors import StoreError
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
from pytest_llmbench.store import journal
from pytest_llmbench.store.files import document_of, remove_unfinished
from pytest_llmbench.store.journal import JOURNAL_NAME, Journal, read_journal
from pytest_llmbench.store.records_file import NOT_ON_DISK
from pytest_llmbench.store.schema import IncompleteEntry, UnfinishedTest

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
        written, directory = Written(), self._settings.report
        if directory is not None and self.entries:  # a session that measures nothing changes nothing
            try:
                place = put_aside(directory, unchanged(self._found))
            except StoreError as error:
                self.said.append(f"llmbench: {' '.join(str(error).split())}")
            else:
                told = f"llmbench: the files of an earlier session are now in {place}"
                self.said += [] if place is None else [told]
        if self.entries and (directory is not None or github_wants_to_know(environment)):
            try:
                document = document_of(build_report(self._head, self.entries, self.incomplete))
                if directory is not None:
                    written = write_reports(directory, document)
                page = None if directory is None else str(directory / "report.html")
                tell_github(document, environment, written, path=page)
            except Exception as error:  # noqa: BLE001 - of ours, and must not cost the verdicts
                lost = f"the report cannot be made: {type(error).__name__}: {shown(error)}"
                (written.warnings if directory is None else written.problems).append(lost)
        if self._journal is not None and written.problems:
            if self._journal.problem is not None:
                written.problems.append(f"the journal is not whole either: {self._journal.problem}")
            else:
                where = self._journal.path.parent
                written.problems.append(f"no judgement is lost: run pytest-llmbench recover {where}")
        self.close(keep=bool(written.problems))
        return written

    def close(self, *, keep: bool = True) -> None:
        """Release the report directory. Safe to call twice."""
        if self._journal is not None:
            self._journal.close(keep=keep)

    def _note(self, event: journal.Event) -> None:
        self._course.apply(event)
        if self._journal is not None:
            self._journal.note(event)
