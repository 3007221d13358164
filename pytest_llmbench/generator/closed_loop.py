"""Closed loop: a fixed number in flight; each end, success or not, is replaced at once (METHODOLOGY §3)."""

from __future__ import annotations

import asyncio

from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.prepared import PreparedRequests
from pytest_llmbench.generator.transport import Exchange

_AT_ONCE = 16


async def keep_full(
    dispatcher: Dispatcher, requests: PreparedRequests, *, start_ns: int, concurrency: int
) -> None:
    """Fires ``concurrency`` requests together and replaces each that ends, until all have been sent.

    A replacement is due at the instant that the request before it in the slot ended. On return the last ones
    are still in flight.
    """
    all_sent = asyncio.Event()

    def send(due_ns: int) -> None:
        if len(requests):
            dispatcher.dispatch(requests.take(), due_ns)
            requests.top_up()
        if not len(requests):
            all_sent.set()

    def replace(ended: Exchange) -> None:
        send(ended.finished_ns)

    dispatcher.then = replace
    for slot in range(concurrency):
        send(start_ns)
        if slot % _AT_ONCE == _AT_ONCE - 1:
            await asyncio.sleep(0)  # lets the first answers be read
    await all_sent.wait()


__all__ = ["keep_full"]
