"""One load at a time on one machine, across the worker processes of pytest-xdist.

Two workers that load the same server measure each other; so do two that load a server each, since servers and
load generators share the machine's cores and accelerators. Each user has one lock for all of it, whatever the
endpoint. A single process needs none, and neither does a replay: nothing is sent and no time passes.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

_NAME = "pytest-llmbench-load.lock"


class MachineLock:
    """A lock between processes. The process that holds it may take it again, so that nested calls do not wait
    for it."""

    def __init__(self, folder: Path | None = None) -> None:
        """``folder``: where the lock file lies; by default the user's folder among the machine's temporary
        files."""
        self._folder = folder
        self._guard = threading.Lock()
        self._holders = 0
        self._descriptor = -1

    @contextmanager
    def held(self) -> Generator[None, None, None]:
        """Hold the lock, after waiting for other processes; the kernel releases it if this one dies."""
        with self._guard:
            if self._holders == 0:
                from pytest_llmbench.own_folder import user_folder  # a process alone holds no lock

                path = (self._folder or user_folder()) / _NAME
                descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX)
                except BaseException:  # Ctrl-C while waiting
                    os.close(descriptor)
                    raise
                self._descriptor = descriptor
            self._holders += 1
        try:
            yield
        finally:
            with self._guard:
                self._holders -= 1
                if self._holders == 0:
                    os.close(self._descriptor)


_OF_THIS_PROCESS = MachineLock()


def machine_lock(worker: str | None) -> AbstractContextManager[None]:
    """Hold the lock while a server is started or loaded. ``worker``: that of pytest-xdist; None without
    xdist: no lock."""
    return nullcontext() if worker is None else _OF_THIS_PROCESS.held()
