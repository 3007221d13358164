"""The journal: what a session has judged, line by line, and the directory that it holds by it."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import StoreError
from pytest_llmbench.redaction import REDACTED, keep_secret
from pytest_llmbench.store import journal
from pytest_llmbench.store.environment import this_environment
from pytest_llmbench.store.journal import (
    JOURNAL_NAME,
    Course,
    Journal,
    JournalHead,
    held_journal,
    read_journal,
)
from pytest_llmbench.store.schema import Generator, Sut

KEY = "sk-canary-0123456789abcdef"


def head(started: str = "2026-01-20T09:30:00.125Z", endpoint: str = "replay") -> JournalHead:
    return JournalHead(
        pid=os.getpid(),
        started=started,
        generator=Generator(version="0"),
        environment=this_environment(),
        sut=Sut(endpoint=endpoint, model=None, api=None),
    )


def entry(nodeid: str, **more: Any) -> dict[str, Any]:
    return {"nodeid": nodeid, "duration_s": 1.0, "compliance": "early", **more}


def elsewhere(code: str, folder: Path) -> subprocess.Popen[str]:
    """``code`` in a process of its own, which has ``folder`` and a claimed journal ``held``."""
    program = f"""
import os, sys, time
from pathlib import Path
from pytest_llmbench.store.journal import claimed, JOURNAL_NAME
folder = Path(sys.argv[1])
held = claimed(folder / JOURNAL_NAME)
{textwrap.dedent(code)}
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_what_is_noted_is_read_back(tmp_path: Path) -> None:
    written = Journal(tmp_path, head())
    for event in (
        journal.selected(["a", "b", "c", "d"]),
        journal.begun("a"),
        journal.judged(entry("a")),
        journal.ended("a"),
        journal.begun("b"),
        journal.ended("b"),  # skipped: no entry
        journal.begun("c"),
        journal.reaudited([{"nodeid": "a", "duration_s": 1.0, "compliance": "late"}]),
    ):
        written.note(event)
    written.close(keep=True)
    found = read_journal(tmp_path / JOURNAL_NAME)
    assert found.head == head()
    assert found.damaged == 0
    assert found.course.entries == [entry("a") | {"compliance": "late"}]
    assert list(found.course.unfinished) == ["c"]
    assert list(found.course.waiting) == ["d"]
    assert found.course.exit_status is None


def test_an_attempt_that_began_anew_is_unfinished() -> None:
    state = Course()
    for event in (journal.begun("a"), journal.judged(entry("a")), journal.ended("a"), journal.begun("a")):
        state.apply(event)
    assert list(state.unfinished) == ["a"]
    assert len(state.entries) == 1
    state.apply(journal.finished(1))
    assert state.exit_status == 1


def test_secrets_stay_out(tmp_path: Path) -> None:
    keep_secret(KEY)
    written = Journal(tmp_path, head(endpoint=f"http://host/{KEY}"))
    written.note(journal.judged(entry(f"test[{KEY}]", error=f"Bearer {KEY}")))
    written.close(keep=True)
    text = (tmp_path / JOURNAL_NAME).read_text("utf-8")
    assert KEY not in text
    assert text.count(REDACTED) == 3


def test_each_event_is_written_once(tmp_path: Path) -> None:
    """The size of the journal follows the events: nothing is written again for each test."""
    written, path = Journal(tmp_path, head()), tmp_path / JOURNAL_NAME
    sizes = []
    for number in range(50):
        before = path.stat().st_size
        written.note(journal.judged(entry(f"{number:03}", text="x" * 10_000)))
        sizes.append(path.stat().st_size - before)
    assert len(set(sizes)) == 1
    written.close(keep=False)
    assert not path.exists()


def test_a_full_disk_loses_only_what_it_did_not_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = Journal(tmp_path, head())
    written.note(journal.judged(entry("first")))
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        real(descriptor, bytes(data[:40]))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.os, "write", full)
    written.note(journal.judged(entry("second")))
    monkeypatch.setattr(journal.os, "write", real)
    written.note(journal.judged(entry("third")))
    assert written.problem is not None
    assert "No space left" in written.problem
    written.close(keep=True)
    found = read_journal(tmp_path / JOURNAL_NAME)
    assert [each["nodeid"] for each in found.course.entries] == ["first", "third"]
    assert found.damaged == 1


def test_a_directory_is_held_until_its_holder_ends(tmp_path: Path) -> None:
    holder = elsewhere("print('ready', flush=True); sys.stdin.readline()", tmp_path)
    with pytest.raises(StoreError, match=r"another session.*is writing to this report directory"):
        Journal(tmp_path, head())
    holder.kill()
    holder.communicate()
    ours = Journal(tmp_path, head())
    assert ours.set_aside is None  # nothing was in it
    ours.close(keep=False)


def test_a_child_of_a_killed_session_does_not_hold_the_directory(tmp_path: Path) -> None:
    """As a server that a fixture forked, and that lives on."""
    forked = """
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    print("ready", flush=True)
    print(child, flush=True)
    time.sleep(60)
    """
    holder = elsewhere(forked, tmp_path)
    assert holder.stdout is not None
    child = int(holder.stdout.readline())
    holder.kill()
    holder.wait()
    try:
        os.kill(child, 0)  # it lives
        Journal(tmp_path, head()).close(keep=False)
    finally:
        os.kill(child, 9)
        holder.communicate()


def test_a_journal_that_is_removed_as_it_is_claimed_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, path = journal.fcntl.lockf, tmp_path / JOURNAL_NAME
    tries: list[int] = []

    def lock(descriptor: int, kind: int) -> None:
        if not tries:
            path.unlink()  # its holder ends between our opening and our locking
        tries.append(descriptor)
        real(descriptor, kind)

    monkeypatch.setattr(journal.fcntl, "lockf", lock)
    ours = Journal(tmp_path, head())
    assert len(tries) == 2
    assert read_journal(path).head == head()
    ours.close(keep=False)


def test_a_file_system_without_locks_refuses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(journal.fcntl, "lockf", none)
    Journal(tmp_path, head()).close(keep=False)


def test_left_results_are_put_aside_under_the_start_of_their_session(tmp_path: Path) -> None:
    for expected in ("interrupted-20260120T093000Z", "interrupted-20260120T093000Z-2"):
        killed = Journal(tmp_path, head())
        killed.note(journal.judged(entry("a")))
        killed.close(keep=True)
        following = Journal(tmp_path, head("2026-01-21T00:00:00.000Z"))
        assert following.set_aside == tmp_path / expected
        assert read_journal(tmp_path / expected / JOURNAL_NAME).course.entries == [entry("a")]
        assert read_journal(following.path).course.entries == []
        following.close(keep=False)


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        (b'{"event": "of others"}\n', "stays"),
        (b"[" * 100_000, "stays"),
        (b"\0" * 100, "stays"),
        (b'{"schema":"pytest-llmbench/journal/9.9","pid":1}\n{"event":"judged"}\n', "aside"),
        (b'{"schema":"pytest-llmbench/journal/1.0","pid":1e999}\n', "aside"),
        (b'{"schema":"pytest-llmbench/journal/1.0","pi', "gone"),
        (b'{"sch', "gone"),
    ],
)
def test_what_lies_in_place_of_the_journal(tmp_path: Path, content: bytes, kept: str) -> None:
    """A journal is not lost because this version cannot read it, nor is a file of others."""
    path = tmp_path / JOURNAL_NAME
    path.write_bytes(content)
    if kept == "stays":
        with pytest.raises(StoreError, match="not a journal of pytest-llmbench"):
            Journal(tmp_path, head())
        assert path.read_bytes() == content
        return
    following = Journal(tmp_path, head())
    following.close(keep=False)
    assert (following.set_aside is not None) == (kept == "aside")
    if following.set_aside is not None:
        assert (following.set_aside / JOURNAL_NAME).read_bytes() == content
    assert not path.exists()


def test_a_pipe_in_place_of_the_journal_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / JOURNAL_NAME)
    with pytest.raises(StoreError, match="it is a pipe"):
        Journal(tmp_path, head())


def test_reading_by_the_descriptor_keeps_the_claim(tmp_path: Path) -> None:
    kept = Journal(tmp_path, head())
    kept.note(journal.judged(entry("a")))
    kept.close(keep=True)
    descriptor = journal.claimed(tmp_path / JOURNAL_NAME)
    try:
        assert len(held_journal(tmp_path / JOURNAL_NAME, descriptor).course.entries) == 1
        code = "import sys, pathlib\nfrom pytest_llmbench.store.journal import claimed\n"
        code += "claimed(pathlib.Path(sys.argv[1]))"
        other = [sys.executable, "-c", code, str(tmp_path / JOURNAL_NAME)]
        done = subprocess.run(other, capture_output=True, text=True, timeout=60)
        assert done.returncode == 1
        assert "is writing to this report directory" in done.stderr
    finally:
        os.close(descriptor)


def test_a_journal_without_room_for_its_first_line_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journal.os, "write", full)
    with pytest.raises(StoreError, match="No space left"):
        Journal(tmp_path, head())
    assert list(tmp_path.iterdir()) == []


def test_the_journal_goes_wherever_the_session_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ours = Journal(Path("out"), head())
    monkeypatch.chdir("/")
    ours.close(keep=False)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_link_in_place_of_the_journal_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept", "utf-8")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / JOURNAL_NAME).symlink_to(victim)
    with pytest.raises(StoreError, match="cannot be written"):
        Journal(tmp_path / "out", head())
    assert victim.read_text("utf-8") == "kept"


def test_the_first_line_says_what_the_session_is(tmp_path: Path) -> None:
    Journal(tmp_path, head()).close(keep=True)
    first = json.loads((tmp_path / JOURNAL_NAME).read_text("utf-8").splitlines()[0])
    assert first["schema"] == "pytest-llmbench/journal/1.0"
    assert first["pid"] == os.getpid()
    assert first["environment"]["python"]


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000,
        '{"event":"judged","entry":' + '{"a":' * 1000 + "1" + "}" * 1001,
        '{"event":"finished","exit_status":1e999}',
        '{"event":"finished","exit_status":' + "1" * 5000 + "}",
        '{"event":"judged","entry":{"nodeid":[1]}}',
        '{"event":"selected","nodeids":[5]}',
        '{"event":"begun","nodeid":5}',
        '{"event":[]}',
    ],
)
def test_a_line_that_no_session_writes_is_damage(line: str, tmp_path: Path) -> None:
    path = tmp_path / JOURNAL_NAME
    path.write_text(head().model_dump_json(by_alias=True) + f"\n{line}\n", "utf-8")
    assert read_journal(path).damaged == 1
    path.write_text(line, "utf-8")
    with pytest.raises(StoreError, match="first line"):
        read_journal(path)
    with pytest.raises(StoreError, match="not a journal of pytest-llmbench"):
        Journal(tmp_path, head())
