"""Keeps the garbage collector quiet while load is running, in real time or in virtual: a collection goes
through all that a session holds."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_THRESHOLD = (200_000, 50, 1_000)


@dataclass
class Collections:
    """How often the collector ran, all generations together."""

    count: int = 0


@contextmanager
def quiet_gc() -> Iterator[Collections]:
    """Set objects made so far aside and raise the thresholds, so that a collection is rare and cheap.

    The collector of the whole process is touched, so its settings are put back whatever happens. A freeze
    that somebody else made is left alone.
    """
    thresholds = gc.get_threshold()
    ours = not frozen_by_others()
    before = _collections()
    seen = Collections()
    gc.set_threshold(*_THRESHOLD)
    if ours:
        gc.freeze()
    try:
        yield seen
    finally:
        seen.count = _collections() - before
        gc.set_threshold(*thresholds)
        if ours:
            gc.unfreeze()


def frozen_by_others() -> bool:
    """Whether somebody else has frozen objects. They are counted one by one: tens of milliseconds for a large
    frozen program."""
    return gc.get_freeze_count() > 0


def _collections() -> int:
    return sum(int(generation["collections"]) for generation in gc.get_stats())
