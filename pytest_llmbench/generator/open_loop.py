"""Open loop: requests leave when the schedule says so, whatever became of earlier ones (METHODOLOGY §3)."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.generator.dispatcher import Dispatcher
from pytest_llmbench.generator.pacing import Pacer
from pytest_llmbench.generator.prepared import PreparedRequests


async def keep_schedule(
    dispatcher: Dispatcher,
    requests: PreparedRequests,
    *,
    start_ns: int,
    offsets_ns: Iterable[int],
    pacer: Pacer,
) -> None:
    """Sends request i at ``start_ns + offsets_ns[i]``, or at once when that has passed.

    The schedule is absolute, so one late send does not shift the next, and its lag stands in its record.
    """
    for offset_ns in offsets_ns:
        request = requests.take()
        due_ns = start_ns + offset_ns
        await pacer.until(due_ns)
        dispatcher.dispatch(request, due_ns)
        requests.top_up()


__all__ = ["keep_schedule"]
