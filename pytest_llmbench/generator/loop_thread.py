"""An event loop of our own in a thread of our own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
LoopFactory = Callable[[], asyncio.AbstractEventLoop]


def fastest_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, asyncio's otherwise. The process-wide policy stays as it is."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def describe_loop(loop: asyncio.AbstractEventLoop) -> str:
    """``uvloop`` or ``asyncio``, as the self-check reports it."""
    return type(loop).__module__.partition(".")[0]


class LoopThread:
    """Runs a loop until closed. A loop that the caller may be running itself is of no concern to it."""

    def __init__(self, factory: LoopFactory = fastest_loop) -> None:
        self.loop = factory()
        self._thread = threading.Thread(target=self._run, name="llmbench-load", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        """Stop the loop and wait for the thread. Safe to call twice."""
        if self.loop.is_closed():
            return
        self.submit(self.loop.shutdown_default_executor()).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
