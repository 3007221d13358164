"""One load at a time on a machine: between processes, never within one."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from pytest_llmbench.harness.machine_lock import MachineLock, machine_lock


def other_processes_wait(folder: Path) -> bool:
    """A descriptor of its own is to flock what another process is."""
    (file,) = folder.iterdir()
    descriptor = os.open(file, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_others_wait_until_the_last_holder_is_done(tmp_path: Path) -> None:
    lock = MachineLock(tmp_path)
    with lock.held():
        with lock.held():
            assert other_processes_wait(tmp_path)
        assert other_processes_wait(tmp_path)
    assert not other_processes_wait(tmp_path)
    with pytest.raises(ZeroDivisionError), lock.held():
        _ = 1 / 0
    assert not other_processes_wait(tmp_path)


def test_two_processes_take_turns(tmp_path: Path) -> None:
    mine, other = MachineLock(tmp_path), MachineLock(tmp_path)
    began, taken = threading.Event(), threading.Event()

    def take() -> None:
        began.set()
        with other.held():
            taken.set()

    with mine.held():
        waiting = threading.Thread(target=take)
        waiting.start()
        assert began.wait(10)
        assert not taken.wait(0.2)
    assert taken.wait(10)
    waiting.join(10)


def test_a_file_of_another_user_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with MachineLock(tmp_path).held():
        pass
    real = os.open

    def protected(path: object, flags: int, *mode: int) -> int:
        if flags & os.O_CREAT:  # fs.protected_regular
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *mode)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", protected)
    lock = MachineLock(tmp_path)
    with lock.held():
        monkeypatch.undo()
        assert other_processes_wait(tmp_path)


def test_without_workers_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with machine_lock(None):
        assert not list(tmp_path.iterdir())
    with machine_lock("gw0"):
        assert other_processes_wait(tmp_path)
