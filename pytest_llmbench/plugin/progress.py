"""The live line while load is running: overwritten in place, and what stood there put back."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any

_INTERVAL_S = 0.25
_ERASE_LINE = "\r\x1b[2K"


def own_terminal() -> int | None:
    """A file descriptor of the terminal, or None where there is none (a log, CI, another front end).

    To be called while pytest does not capture: during a test, its standard output is a file.
    """
    if os.environ.get("CI"):
        return None
    with contextlib.suppress(
        AttributeError, OSError, ValueError
    ):  # no stdout at all, or none with a descriptor
        if sys.stdout.isatty():
            return os.dup(sys.stdout.fileno())
    return None


class ProgressLine:
    """The generator leaves its latest figures here; a thread of our own writes them.

    A terminal can block (Ctrl-S, a slow link), and the measuring loop must never wait for one.
    """

    def __init__(self, terminal: int, line_below: str) -> None:
        self._terminal = terminal
        self._line_below = line_below
        self._latest: tuple[str, Any] | None = None
        self._shown = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="llmbench-progress", daemon=True)
        self._thread.start()

    def __call__(self, label: str, progress: Any) -> None:
        self._latest = (label, progress)

    def _show(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            if self._latest is not None:
                self._shown = True
                self._write(progress_text(*self._latest))

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: nobody to tell
            os.write(self._terminal, f"{_ERASE_LINE}{text}".encode())

    def clear(self) -> None:
        """Put back the line that was there; returns soon even if the terminal is blocked."""
        self._ended.set()
        self._thread.join(timeout=1.0)
        if self._shown and not self._thread.is_alive():
            self._write(self._line_below)


def progress_text(label: str, progress: Any) -> str:
    """``label: 120/1000 sent, 114 ok, 2 failed, 4 in flight, 6 s``, or what is said in words."""
    if isinstance(progress, str):
        return f"  {label}: {progress}"
    failed = f", {progress.failed} failed" if progress.failed else ""
    return (
        f"  {label}: {progress.submitted}/{progress.planned} sent, {progress.ok} ok{failed}, "
        f"{progress.in_flight} in flight, {progress.elapsed_s:.0f} s"
    )
