"""A launched server does not outlive a killed session, and a stranger with its number is left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from pytest_llmbench.harness import group_guard
from pytest_llmbench.harness.group_guard import GroupGuard, started

SERVER = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print(worker.pid, flush=True)
time.sleep(300)
"""
"""With a process of its own, as an engine has its workers."""


@pytest.fixture
def group() -> Iterator[subprocess.Popen[str]]:
    leader = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    yield leader
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader.pid, signal.SIGKILL)
    leader.communicate()


def members(leader: subprocess.Popen[str]) -> list[psutil.Process]:
    assert leader.stdout is not None
    return [psutil.Process(leader.pid), psutil.Process(int(leader.stdout.readline()))]


def session(group: subprocess.Popen[str], then: str) -> subprocess.Popen[str]:
    """A process that watches the group, and says the id of its guard."""
    program = f"""
import sys
from pytest_llmbench.harness.group_guard import GroupGuard
guard = GroupGuard()
guard.watch({group.pid})
print(guard._process.pid, flush=True)
{textwrap.dedent(then)}
"""
    return subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_the_whole_group_ends_with_a_killed_session(group: subprocess.Popen[str]) -> None:
    both = members(group)
    ours = session(group, "sys.stdin.read()")
    assert ours.stdout is not None
    guard = psutil.Process(int(ours.stdout.readline()))
    ours.kill()
    ours.communicate()
    group.wait(30)
    assert psutil.wait_procs([*both, guard], timeout=30)[1] == []


def test_a_fork_that_keeps_the_pipe_open_keeps_nothing_running(group: subprocess.Popen[str]) -> None:
    both = members(group)
    forking = """
    import os, time
    child = os.fork()
    if child == 0:
        time.sleep(300)
        os._exit(0)
    print(child, flush=True)
    sys.stdin.read()
    """
    ours = session(group, forking)
    assert ours.stdout is not None
    _, child = ours.stdout.readline(), int(ours.stdout.readline())
    ours.kill()
    ours.wait()
    try:
        group.wait(30)
        assert psutil.wait_procs(both, timeout=30)[1] == []
    finally:
        os.kill(child, signal.SIGKILL)
        ours.communicate()


def test_a_group_that_was_dismissed_is_left_alone(group: subprocess.Popen[str]) -> None:
    both = members(group)
    guard = GroupGuard()
    guard.watch(group.pid)
    guard.dismiss()
    guard.dismiss()
    assert guard._process.returncode == 0
    assert all(process.is_running() for process in both)


def test_a_guard_without_a_group_ends() -> None:
    guard = GroupGuard()
    guard.dismiss()
    assert guard._process.returncode == 0


def test_another_process_with_the_same_number_is_left_alone(group: subprocess.Popen[str]) -> None:
    both = members(group)
    assert started(group.pid).isdigit()
    group_guard.end_group(group.pid, str(int(started(group.pid)) - 1))
    assert all(process.is_running() for process in both)
    assert started(2**22 + 1) == ""


def test_the_guard_is_cheap() -> None:
    """It loads nothing of ours: it is there as long as the server is."""
    code = "import sys, pytest_llmbench.harness.group_guard; print(*sys.modules)"
    text = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    ).stdout
    heavy = {"numpy", "pydantic", "httpx", "scipy"}
    assert not heavy & set(text.split())
    assert Path(group_guard.__file__).exists()


def test_a_session_that_is_killed_before_its_guard_knows_the_group_leaves_nothing() -> None:
    program = """
import os, sys, time
from pytest_llmbench.harness.group_guard import GroupGuard

def told_never(guard, leader):
    print(leader, guard._process.pid, flush=True)
    time.sleep(300)

GroupGuard.watch = told_never
GroupGuard().start_group(["sleep", "300"], cwd=None, env=dict(os.environ), output=sys.stderr)
"""
    ours = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert ours.stdout is not None
    left = [psutil.Process(int(pid)) for pid in ours.stdout.readline().split()]
    ours.kill()
    ours.communicate()
    assert len(left) == 2
    assert psutil.wait_procs(left, timeout=30)[1] == []


def test_the_command_finds_what_it_would_find_by_itself(tmp_path: Path) -> None:
    """No input, no pipe of ours, no further signal that is ignored, its own folder and environment."""
    says = "readlink /proc/$$/fd/0; ls /proc/$$/fd; grep SigIgn /proc/$$/status; pwd; echo $SAID; echo $1"
    command, env = ["sh", "-c", says, "sh", "two words"], {**os.environ, "SAID": "yes"}
    usual = subprocess.run(
        command, cwd=tmp_path, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True
    )
    guard = GroupGuard()
    with (tmp_path / "output").open("wb") as output:
        child = guard.start_group(command, cwd=tmp_path, env=env, output=output)
    assert child.wait(30) == 0
    guard.dismiss()
    found = (tmp_path / "output").read_bytes()
    assert found == usual.stdout
    assert b"two words" in found


@pytest.mark.parametrize("name", ["missing", "not-a-program"])
def test_a_command_that_cannot_be_run_is_an_error_as_of_popen(tmp_path: Path, name: str) -> None:
    (tmp_path / "not-a-program").write_text("x", "utf-8")
    with pytest.raises(OSError) as usual:
        subprocess.Popen([str(tmp_path / name)])
    guard = GroupGuard()
    with pytest.raises(OSError) as ours, (tmp_path / "output").open("wb") as output:
        guard.start_group([str(tmp_path / name)], cwd=None, env=dict(os.environ), output=output)
    guard.dismiss()
    assert (ours.value.errno, ours.value.strerror) == (usual.value.errno, usual.value.strerror)
