"""One load at a time on a machine: between processes, never within one."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

import pytest

from pytest_llmbench.errors import StoreError
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


def test_nobody_elses_folder_and_no_link_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in a folder that all may write to can be taken: by a link to a victim's file, say."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("precious")
    own = tmp_path / f"pytest-llmbench-{os.getuid()}"
    own.symlink_to(victim)
    with pytest.raises(StoreError, match="not this user's alone"), MachineLock().held():
        pass
    own.unlink()
    own.mkdir(mode=0o700)
    own.chmod(0o777)
    with pytest.raises(StoreError, match="not this user's alone"), MachineLock().held():
        pass
    own.chmod(0o700)
    (own / "pytest-llmbench-load.lock").symlink_to(victim / "file")
    with pytest.raises(OSError, match="symbolic link"), MachineLock().held():
        pass
    (own / "pytest-llmbench-load.lock").unlink()
    with MachineLock().held():
        assert other_processes_wait(own)
    assert (victim / "file").read_text() == "precious"


def test_without_workers_nobody_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with machine_lock(None):
        assert not list(tmp_path.iterdir())
    with machine_lock("gw0"):
        (own,) = tmp_path.iterdir()
        assert other_processes_wait(own)
