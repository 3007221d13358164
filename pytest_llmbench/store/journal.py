"""``journal.jsonl`` in the report directory: the results that a session has judged so far, written as it
goes.

The first line says what the session is; each further line is an event of the course of its tests, which is
followed in memory too. So a session that is killed loses nothing that was judged: ``pytest-llmbench recover``
makes the report from it. A session that ends by itself writes its report and removes the journal.

The journal is also how a directory is claimed. While a session lives it holds a lock on the file, which the
kernel takes away from a process that dies: no process id can be mistaken for another, and a directory that
several machines or containers share is covered as far as its file system has locks. Where it has none, nobody
is refused.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError

from pytest_llmbench.errors import StoreError, shown
from pytest_llmbench.input_files import MOST_BYTES, parse_json, read_at_most, read_bytes, refuse_no_file
from pytest_llmbench.redaction import outward_value
from pytest_llmbench.store.schema import Environment, Generator, Instant, Shape, Sut, iso_utc

Event = Mapping[str, Any]


def selected(nodeids: list[str]) -> Event:
    """Event: the load tests that are going to run."""
    return {"event": "selected", "nodeids": nodeids}


def begun(nodeid: str) -> Event:
    return {"event": "begun", "nodeid": nodeid}


def ended(nodeid: str) -> Event:
    return {"event": "ended", "nodeid": nodeid}


def judged(entry: Mapping[str, Any]) -> Event:
    """Event: a test was judged. ``entry``: that of ``report.json``, in plain JSON types."""
    return {"event": "judged", "entry": entry}


def reaudited(changes: list[Mapping[str, Any]]) -> Event:
    """Event: compliance has changed. ``changes``: ``nodeid``, ``duration_s`` and the new ``compliance`` of
    each result."""
    return {"event": "reaudited", "changes": changes}


def finished(exit_status: int) -> Event:
    """Event: the session has come to its end."""
    return {"event": "finished", "exit_status": exit_status}


@dataclass
class Course:
    """The state of a session after its events so far."""

    entries: list[dict[str, Any]] = field(default_factory=list)
    """The entries of ``report.json``, in the order in which they were judged."""
    waiting: dict[str, None] = field(default_factory=dict)
    """Node ids of tests that have not begun, in order."""
    unfinished: dict[str, None] = field(default_factory=dict)
    """Node ids of tests that have begun, and have neither ended nor a result."""
    exit_status: int | None = None
    """The exit status of pytest; None before the end."""
    _known: set[str] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        """Apply an event. Raises KeyError, TypeError or ValueError for an invalid one."""
        match event["event"]:
            case "selected":
                known = self._known
                new = dict.fromkeys(_text(nodeid) for nodeid in event["nodeids"] if nodeid not in known)
                known.update(new)
                self.waiting.update(new)
            case "begun":
                self.waiting.pop(event["nodeid"], None)
                self.unfinished[_text(event["nodeid"])] = None
            case "ended":
                self.unfinished.pop(event["nodeid"], None)
            case "judged":
                self._judged(event["entry"])
            case "reaudited":
                # The duration tells the attempts of one test apart.
                changed = {(one["nodeid"], one["duration_s"]): one["compliance"] for one in event["changes"]}
                for entry in self.entries:
                    if (key := (entry["nodeid"], entry["duration_s"])) in changed:
                        entry["compliance"] = changed[key]
            case "finished":
                self.exit_status = int(event["exit_status"])
            case other:
                raise KeyError(other)

    def follows(self, nodeid: str) -> bool:
        """Whether the test is one of the selected ones."""
        return nodeid in self._known

    def _judged(self, entry: Mapping[str, Any]) -> None:
        nodeid, attempts = _text(entry["nodeid"]), entry.get("attempts", 1)
        self.unfinished.pop(nodeid, None)
        for place, other in enumerate(self.entries):
            # An earlier attempt, which this one lists. What is none, and has its name, stays (--dist=each).
            if other["nodeid"] == nodeid and other.get("attempts", 1) < attempts:
                del self.entries[place]
                break
        self.entries.append({**entry, "nodeid": nodeid})


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(f"expected a text, got {type(value).__name__}")


JOURNAL_NAME = "journal.jsonl"
JOURNAL_SCHEMA: Final = "pytest-llmbench/journal/1.0"
_CUT = b'{"schema":"pytest-llmbench/journal/'
_HEAD = re.compile(rb'\{ ?"schema": ?"pytest-llmbench/journal/')
_LONGEST_HEAD = 1 << 20
ASIDE_PREFIX = "interrupted-"
"""The prefix of the folders to which journals of killed sessions are moved."""

_HELD = (errno.EACCES, errno.EAGAIN)
_DURABLE = ("judged", "reaudited", "finished")
"""Events that survive a loss of power; all survive the process."""


class JournalHead(Shape):
    """The part of a report about the session as a whole."""

    schema_: Literal["pytest-llmbench/journal/1.0"] = Field(default=JOURNAL_SCHEMA, alias="schema")
    pid: int
    started: Instant
    generator: Generator
    environment: Environment
    sut: Sut
    """The system under test, as far as the options tell."""


class Journal:
    """The journal of a running session, by which it claims the directory."""

    def __init__(self, directory: Path, head: JournalHead) -> None:
        """Claim ``directory`` and start the journal.

        Raises StoreError where another session is at work there, or nothing can be written.
        """
        self.path = directory.absolute() / JOURNAL_NAME  # a test may go to another directory, and stay there
        self._descriptor = -1
        self.problem: str | None = None
        """Why events could not be written, from the first failure; None without one."""
        self.set_aside: Path | None = None
        """Path that the journal of a killed session has been moved to; None if there was none."""
        self._torn, found = False, True
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._descriptor = claimed(self.path)
            if os.fstat(self._descriptor).st_size:
                self.set_aside = self._put_aside()
            found = False
            self._write(head.plain(), durable=True)
        except StoreError:
            self.close(keep=True)
            raise
        except OSError as error:
            self.close(keep=found)
            raise StoreError(
                f"the journal cannot be written: {error.strerror or error}",
                where=str(self.path),
                remedy="check that the report directory is writable and has space left",
            ) from error

    def note(self, event: Event) -> None:
        """Write an event. A disk that fails does not end the session: see :attr:`problem`."""
        try:
            self._write(event, durable=event["event"] in _DURABLE)
        except OSError as error:
            self._torn = True
            self.problem = self.problem or f"{self.path}: {error.strerror or error}"

    def close(self, *, keep: bool) -> None:
        """Release the directory. Safe to call twice."""
        if self._descriptor < 0:
            return
        if not keep and _is_at(self.path, self._descriptor):
            self.path.unlink(missing_ok=True)
        os.close(self._descriptor)
        self._descriptor = -1

    def _write(self, line: Any, *, durable: bool) -> None:
        # After a line that was cut off this one begins anew, so that only the other is lost.
        before = "\n" if self._torn else ""
        text = before + json.dumps(outward_value(line), ensure_ascii=False, separators=(",", ":")) + "\n"
        rest = memoryview(text.encode())
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self._torn = False
        if durable:
            os.fsync(self._descriptor)

    def _put_aside(self) -> Path | None:
        """Move the journal of a killed session away, and claim the directory with a new file; returns where
        it is now."""
        try:
            left = held_journal(self.path, self._descriptor)
        except StoreError:
            instant = self._of_another_version()
        else:
            judged_some = left.course.entries or left.course.unfinished
            instant = left.head.started if judged_some else None
        place = None
        if instant is not None:
            place = free_name(self.path.parent, ASIDE_PREFIX, instant)
            place.mkdir()
            self.path.rename(place / JOURNAL_NAME)
        else:
            self.path.unlink()
        stale, self._descriptor = self._descriptor, claimed(self.path)
        os.close(stale)
        return place

    def _of_another_version(self) -> str | None:
        """The instant of the last change of a journal that cannot be read; None for one whose session was
        killed before its first line was whole. StoreError for a file that is no journal of ours."""
        beginning = os.pread(self._descriptor, _LONGEST_HEAD, 0)
        if not (_HEAD.match(beginning) or _CUT.startswith(beginning)):
            raise StoreError(
                "it is not a journal of pytest-llmbench, and a session would overwrite it",
                where=str(self.path),
                remedy="move it, or name another directory with --llm-report",
            )
        return iso_utc(os.fstat(self._descriptor).st_mtime_ns) if b"\n" in beginning else None


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    try:
        refuse_no_file(descriptor)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def claimed(path: Path) -> int:
    """Claim the journal ``path``, made if there is none; returns a descriptor that this process alone
    holds.

    Raises StoreError while another process holds it. The lock is one of ``fcntl``: a child that is forked
    does not inherit it, so a server that outlives a killed session does not hold the directory. The price:
    opening and closing the file anywhere else in this process would give it free.
    """
    while True:
        descriptor = _opened(path)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _HELD:
                os.close(descriptor)
                raise _in_use(path) from error
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder ended, and removed it, between the two steps


@dataclass(frozen=True)
class ReadJournal:
    """A journal as read back from its file."""

    head: JournalHead
    course: Course
    damaged: int
    """Number of lines that could not be read; 1 for a session that was killed while it wrote."""


def read_journal(path: Path) -> ReadJournal:
    """Read the journal of another process.

    Raises StoreError for what is no journal, or one of another version.
    """
    try:
        return _parsed(read_bytes(path), path)
    except OSError as error:
        raise _unreadable(path, error) from error


def held_journal(path: Path, descriptor: int) -> ReadJournal:
    """The journal read from the descriptor of :func:`claimed`, which stays open and claimed."""
    os.lseek(descriptor, 0, os.SEEK_SET)
    try:
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return _parsed(read_at_most(file, MOST_BYTES), path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> StoreError:
    return StoreError(
        f"cannot read the journal: {error.strerror or error}", where=str(path), remedy="check the path"
    )


def _parsed(data: bytes, path: Path) -> ReadJournal:
    first, *rest = data.split(b"\n")
    head = _head(first, path)
    course, damaged = Course(), 0
    for line in filter(None, rest):
        try:
            course.apply(parse_json(line))
        except (ValueError, KeyError, TypeError, OverflowError):
            damaged += 1
    return ReadJournal(head, course, damaged)


def _head(line: bytes, path: Path) -> JournalHead:
    try:
        content = parse_json(line)
        schema = content["schema"]
        if schema == JOURNAL_SCHEMA:
            return JournalHead.model_validate(content)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        raise StoreError(
            "its first line does not say what session it is of",
            where=str(path),
            remedy="there is nothing to recover from it; remove it",
        ) from error
    raise StoreError(
        f"the journal is in {shown(schema)}, this version reads {JOURNAL_SCHEMA!r}",
        where=str(path),
        remedy="recover with the version of pytest-llmbench that wrote it",
    )


def _in_use(path: Path) -> StoreError:
    try:
        head = read_journal(path).head
    except StoreError:  # it has begun a moment ago
        who = "another session"
    else:
        command = " ".join(head.environment.command)
        who = f"another session (process {head.pid}, since {head.started}: {command})"
    return StoreError(
        f"{who} is writing to this report directory",
        where=str(path.parent),
        remedy="wait for its end, or name another directory with --llm-report",
    )


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    ours = os.fstat(descriptor)
    return (found.st_dev, found.st_ino) == (ours.st_dev, ours.st_ino)


def free_name(directory: Path, prefix: str, instant: str) -> Path:
    """The path of a folder that does not exist yet, named after an instant:
    ``interrupted-20260120T093000Z``."""
    stem = prefix + instant[:19].replace("-", "").replace(":", "") + "Z"
    place, number = directory / stem, 1
    while place.exists():
        number += 1
        place = directory / f"{stem}-{number}"
    return place
