"""A server of this package as a child process that never outlives its parent: both sides of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from pytest_llmbench.errors import SUTError
from pytest_llmbench.model.numbers import trimmed

_LOG_TAIL_LINES = 20
_LOG_TAIL_BYTES = 16_384
_STOP_S = 3.0


class ChildServer:
    """A running server. Use as a context manager, or :meth:`stop` it.

    The child watches its standard input, a pipe from this process, and ends when it closes
    (:func:`end_with_parent`): so it ends even if this process is killed. It has a session of its own, so that
    Ctrl-C reaches this process alone and what is being measured can still be brought to its end.
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str] = (), *, where: str = "", deadline_s: float
    ) -> None:
        """Start ``module`` and wait until it prints the line of JSON that says it is ready (:attr:`ready`).

        :raises SUTError: the process ends, or is not ready within ``deadline_s``.
        """
        command = [sys.executable, "-P", "-m", module, *arguments]
        self._name = name
        self._log = tempfile.TemporaryFile(prefix="llmbench-child-")  # noqa: SIM115 - stop() closes it
        self._child = subprocess.Popen(
            [*command, "--parent-pipe"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self.ready: dict[str, Any] = json.loads(self._first_line(time.monotonic() + deadline_s))
        except BaseException as error:
            self._end()
            text = self._said()
            self._log.close()
            if not isinstance(error, ValueError | TimeoutError):
                raise  # not ours, for instance Ctrl-C: only the child had to be ended first
            late = isinstance(error, TimeoutError)
            how = f"is not ready after {trimmed(deadline_s)} s" if late else "did not start"
            raise SUTError(
                f"the {name} {how} (exit status {self._child.returncode}){text}",
                where=where or None,
                remedy=f"try it by hand: {' '.join(command)}",
            ) from error

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        """End the process; does nothing when it has ended already."""
        self._end()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.stop()

    def does_not_answer(self, error: Exception, where: str) -> SUTError:
        """The error of a request to the server that failed, with what became of the process."""
        status = self._child.poll()
        ended = "" if status is None else f"; its process has ended with status {status}"
        said = "" if self._log.closed else self._said()
        return SUTError(
            f"the {self._name} does not answer: {error}{ended}{said}", where=where, remedy="start another one"
        )

    def _first_line(self, deadline_s: float) -> bytes:
        """The first line; where the output ended before, what came until then. :raises TimeoutError: there is
        none at ``deadline_s`` (monotonic)."""
        output = self._child.stdout
        assert output is not None
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(output, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(deadline_s - time.monotonic(), 0.0)):
                    raise TimeoutError
                read = os.read(output.fileno(), 65536)
                if not read:
                    break
                line += read
        return line

    def _end(self) -> None:
        child = self._child
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def _said(self) -> str:
        """The last lines of the child's log, formatted for an error message; empty if it wrote none."""
        # pread, because the child writes at the position that it shares with this file object
        size = os.fstat(self._log.fileno()).st_size
        written = os.pread(self._log.fileno(), _LOG_TAIL_BYTES, max(size - _LOG_TAIL_BYTES, 0))
        lines = written.decode(errors="replace").splitlines()[-_LOG_TAIL_LINES:]
        return "".join(f"\n  | {line}" for line in lines)


def end_with_parent() -> None:
    """End this process when standard input closes, or when its parent is no longer the present one.

    The second is for a parent that has forked: the fork keeps the pipe's other end open.
    """
    parent_pid = os.getppid()

    def watch() -> None:
        try:
            while os.getppid() == parent_pid:
                readable, _, _ = select.select([0], [], [], 1.0)
                if readable and not os.read(0, 4096):
                    break
        finally:  # also when standard input cannot be watched: better no server than one that nobody stops
            os._exit(0)

    threading.Thread(target=watch, daemon=True).start()
