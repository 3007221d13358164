"""``python -m pytest_llmbench.harness.group_guard`` ends a process group when the process that started it
dies.

A server that a variant launches is another program, and does not watch us. A signal that the kernel sends at
our death would reach only the one process that we started, not its workers, and would be sent when a mere
thread of ours ends. So a small process of our own waits at a pipe from us, and ends the whole group once the
pipe closes and nobody has said that the group is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

_OVER = b"over\n"
STOP_S = 30.0
"""Seconds until a group that was asked to stop is killed: a large engine needs a while to free its
accelerators."""
_GATE = """
import os, signal, sys
for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and the command would inherit
    signal.signal(number, signal.SIG_DFL)
tells = int(sys.argv[1])
os.set_inheritable(tells, False)
if not os.read(0, 1):
    sys.exit()  # nobody is there any more
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    os.write(tells, str(error.errno).encode())
"""
"""Program of a group's first process until it becomes the command. Its arguments: the pipe for an error, and
the command."""
_PAUSE_S = 0.02
_LOOK_S = 1.0


class GroupGuard:
    """The guard as the session sees it. It is started before the group, so that a session killed at any
    instant leaves no group behind."""

    def __init__(self) -> None:
        """Start the guard. Raises OSError if it cannot be started."""
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def start_group(
        self, command: Sequence[str], *, cwd: Path | None, env: Mapping[str, str], output: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start the first process of the group, which becomes ``command`` when the guard knows of it.

        Raises OSError as Popen does.
        """
        told, tells = os.pipe()
        with os.fdopen(told, "rb") as answer:
            try:
                child = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _GATE, str(tells), *command],
                    cwd=cwd,
                    env=env,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(tells,),
                )
            finally:
                os.close(tells)
            try:
                self.watch(child.pid)
                assert child.stdin is not None
                with contextlib.suppress(BrokenPipeError), child.stdin:
                    child.stdin.write(b"\n")
                error = answer.read()  # to its end: the command runs, or never will
            except BaseException:
                child.kill()
                child.wait()
                raise
        if error:
            child.wait()
            raise OSError(int(error), os.strerror(int(error)))
        return child

    def watch(self, leader: int) -> None:
        """Watch a process group. ``leader``: process id of its first process, which has just been started."""
        self._write(f"{leader} {started(leader)}\n".encode())

    def dismiss(self) -> None:
        """End the guard: the group has ended, or never existed. Safe to call twice."""
        self._write(_OVER)
        with contextlib.suppress(OSError, ValueError):
            self._process.communicate()

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # somebody has ended it, or it is dismissed
            self._process.stdin.write(line)
            self._process.stdin.flush()


def started(pid: int) -> str:
    """The instant at which the kernel started ``pid``, in ticks since the boot; empty if there is no such
    process.

    An id together with its start belongs to one process for ever.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return stat.rpartition(")")[2].split()[19]  # behind the name, which may hold anything
    except (OSError, IndexError):
        return ""


def main() -> None:
    # Not getppid(): we may have been left alone already, while we were starting.
    told = _until_alone(int(sys.argv[1]))
    first, _, rest = told.partition(b"\n")
    if first and not (rest or first == _OVER.strip()):
        leader, _, since = first.decode().partition(" ")
        end_group(int(leader), since)


def _until_alone(parent: int) -> bytes:
    """Read from the pipe until it closes, or until its other end is left to a fork of a dead parent; returns
    what was read."""
    told = b""
    while True:
        alone = os.getppid() != parent
        readable, _, _ = select.select([0], [], [], 0 if alone else _LOOK_S)
        if not readable:
            if alone:
                return told
            continue
        read = os.read(0, 4096)
        if not read:
            return told
        told += read


def end_group(
    leader: int,
    since: str = "",
    stop_s: float = STOP_S,
    kill_s: float = 0.0,
    reap: Callable[[], object] = lambda: None,
) -> None:
    """End a process group, by force if it does not go within ``stop_s``; ``kill_s``: how long it is then
    awaited. ``reap`` takes the exit of a leader that is a child of ours, which else counts as one of the
    group."""
    for ending, patience_s in ((signal.SIGTERM, stop_s), (signal.SIGKILL, kill_s)):
        deadline = time.monotonic() + patience_s
        if not signal_group(leader, ending, since):
            return
        while time.monotonic() < deadline:
            reap()
            if not signal_group(leader, 0, since):
                return
            time.sleep(_PAUSE_S)


def signal_group(leader: int, number: int, since: str = "") -> bool:
    """Send a signal to the group. False if nobody is left. A group id is not given to a new process while the
    group has members, so a leader with another start time means that our group is gone."""
    now = started(leader)
    if now and since and now != since:
        return False
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


if __name__ == "__main__":
    main()
