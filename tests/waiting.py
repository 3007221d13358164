"""Wait for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(happened: Callable[[], bool], what: str = "it has not happened in time") -> None:
    """Until it has happened. ``what`` is said where it does not; how soon is no test's subject."""
    deadline = time.monotonic() + 90
    while not happened():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
