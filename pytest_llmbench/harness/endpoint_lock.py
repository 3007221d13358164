"""One load at a time on one endpoint, across the worker processes of pytest-xdist.

Two workers that load the same server at once would measure each other. The lock is per endpoint and host; a
single process needs none.
"""

from __future__ import annotations

import fcntl
import hashlib
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def endpoint_lock(endpoint: str, worker: str | None) -> Generator[None, None, None]:
    """Held while measuring; released by the kernel if the process dies."""
    if worker is None:
        yield
        return
    name = hashlib.sha256(endpoint.encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"pytest-llmbench-{name}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["endpoint_lock"]
