"""The command that happens to a system while load is running: a restart, a scale-out, a fail-over."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_llmbench.errors import SuiteError, SUTError, shown
from pytest_llmbench.model.plan import LoadPlan

_AFTER_LOAD_S = 60.0
_MOST_TOLD = 500


@dataclass
class Event:
    """What became of it."""

    begun_ns: int | None = None
    process: subprocess.Popen[bytes] | None = None


@contextmanager
def event_command(plan: LoadPlan, now_ns: Callable[[], int]) -> Generator[Event, None, None]:
    """Run the command of the plan by the shell so long after the load was begun, and wait for its end.

    Raises SuiteError where the load ended first, SUTError where the command failed, or did not end within a
    minute after the load.
    """
    event, over = Event(), threading.Event()
    with tempfile.TemporaryFile() as output:

        def act() -> None:
            if over.wait(plan.event_at_s):
                return
            event.begun_ns = now_ns()
            event.process = subprocess.Popen(
                ["/bin/sh", "-c", plan.event],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

        thread = threading.Thread(target=act, name="llmbench-event", daemon=True)
        thread.start()
        try:
            yield event
        finally:
            over.set()
            thread.join()
            status = _ended(event.process)
        output.seek(0)
        said = output.read()[-_MOST_TOLD:].decode(errors="replace").strip()
    where = f"event {shown(plan.event)}"
    if event.begun_ns is None:
        raise SuiteError(
            f"the load ended before second {plan.event_at_s:g}, so nothing happened in it",
            where=where,
            remedy="lower event_at_s, or make the load longer",
        )
    if status is None:
        raise SUTError(f"the command did not end within {_AFTER_LOAD_S:g} s after the load", where=where)
    if status:
        raise SUTError(f"the command ended with status {status}: {said or 'it said nothing'}", where=where)


def _ended(process: subprocess.Popen[bytes] | None) -> int | None:
    """Its status; None where it had to be ended."""
    if process is None:
        return None
    try:
        return process.wait(timeout=_AFTER_LOAD_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None
