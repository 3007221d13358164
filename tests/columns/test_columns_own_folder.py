"""Temporary files of dead processes are removed, those of live ones never."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from pytest_llmbench import own_folder as module
from pytest_llmbench.own_folder import own_folder, remove_leftovers, user_folder


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def process(tmp_path: Path, code: str) -> subprocess.Popen[str]:
    """Has a folder of its own with a file in it, says which, runs ``code``."""
    program = f"""
import os, sys, time
from pytest_llmbench.own_folder import own_folder
folder = own_folder()
(folder / "spool").write_text("records")
{textwrap.dedent(code)}
"""
    environment = dict(os.environ, TMPDIR=str(tmp_path))
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )


def folder_of(started: subprocess.Popen[str]) -> Path:
    assert started.stdout is not None
    return Path(started.stdout.readline().strip())


def test_the_folder_goes_with_its_process(tmp_path: Path) -> None:
    ended = process(tmp_path, "print(folder, flush=True)")
    text, _ = ended.communicate(timeout=60)
    assert not Path(text.strip()).exists()
    assert list(user_folder().iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    dead = process(tmp_path, "print(folder, flush=True); sys.stdin.read()")
    live = process(tmp_path, "print(folder, flush=True); sys.stdin.read()")
    left, kept = folder_of(dead), folder_of(live)
    dead.send_signal(signal.SIGKILL)
    dead.communicate()
    assert (left / "spool").exists()
    foreign = user_folder() / "pytest-llmbench-load.lock"
    foreign.touch()
    ours = own_folder()
    assert not left.exists()
    assert not left.with_suffix(".lock").exists()
    assert (kept / "spool").exists()
    assert foreign.exists()
    assert ours.is_dir()
    live.communicate("")
    assert not kept.exists()


def test_one_folder_per_process(tmp_path: Path) -> None:
    assert own_folder() == own_folder()
    remove_leftovers(user_folder())  # and it does not take its own for a leftover
    assert own_folder().is_dir()


def test_a_fork_that_ends_does_not_take_the_folder_with_it(tmp_path: Path) -> None:
    code = """
    child = os.fork()
    if child == 0:
        sys.exit()  # runs what the interpreter does at its end
    os.waitpid(child, 0)
    print((folder / "spool").exists(), flush=True)
    """
    text, _ = process(tmp_path, code).communicate(timeout=60)
    assert text.strip() == "True"


def test_a_fork_has_a_folder_of_its_own(tmp_path: Path) -> None:
    code = """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        print(own_folder() != folder, flush=True)
        os._exit(0)
    os.waitpid(child, 0)
    """
    text, _ = process(tmp_path, code).communicate(timeout=60)
    assert text.strip() == "True"


def test_a_lock_that_a_sweep_takes_first_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    real, swept = module._locked, []

    def late(descriptor: int) -> bool:
        if not swept:
            swept.append(descriptor)
            remove_leftovers(user_folder())  # between the making of the lock and its holding
        return real(descriptor)

    monkeypatch.setattr(module, "_locked", late)
    made = module._made(user_folder())
    try:
        assert made.path.is_dir()
        remove_leftovers(user_folder())
        assert made.path.is_dir()
    finally:
        module._remove(made)


def test_without_locks_nothing_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = process(tmp_path, "print(folder, flush=True); sys.stdin.read()")
    left = folder_of(dead)
    dead.kill()
    dead.communicate()

    def none(descriptor: int, kind: int) -> None:
        raise OSError("No locks available")

    monkeypatch.setattr(module.fcntl, "flock", none)
    remove_leftovers(user_folder())
    assert left.exists()
