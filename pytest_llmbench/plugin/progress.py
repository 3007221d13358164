"""The live line while load is running: overwritten in place, erased at the end."""

from __future__ import annotations

import threading
from typing import Any

import pytest

_INTERVAL_S = 0.25


class ProgressLine:
    """The generator leaves its latest figures here; a thread of our own writes them.

    A terminal can block (Ctrl-S, a slow link), and the measuring loop must never wait for one.
    """

    def __init__(self, reporter: pytest.TerminalReporter) -> None:
        self._reporter = reporter
        self._latest: tuple[str, Any] | None = None
        self._shown = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._show, name="llmbench-progress", daemon=True)
        self._thread.start()

    def __call__(self, label: str, progress: Any) -> None:
        self._latest = (label, progress)

    def _show(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            if self._latest is not None:
                self._write(self._text(*self._latest))

    def _text(self, label: str, progress: Any) -> str:
        failed = f", {progress.failed} failed" if progress.failed else ""
        return (
            f"  {label}: {progress.submitted}/{progress.planned} sent, {progress.ok} ok{failed}, "
            f"{progress.in_flight} in flight, {progress.elapsed_s:.0f} s"
        )

    def _write(self, text: str) -> None:
        self._reporter.write("\r" + text.ljust(self._shown), flush=True)
        self._shown = len(text)

    def clear(self) -> None:
        """Erase the line; returns at once even if the terminal is blocked."""
        self._ended.set()
        self._thread.join(timeout=1.0)
        if self._shown and not self._thread.is_alive():
            self._reporter.write("\r" + " " * self._shown + "\r", flush=True)


__all__ = ["ProgressLine"]
