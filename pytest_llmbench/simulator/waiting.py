"""Queues of sequences that wait for a place in the batch: one class per scheduling order."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Entry = TypeVar("Entry")


class FirstComeFirstServed(Generic[Entry]):
    """Sequences leave in the order they came."""

    def __init__(self) -> None:
        self._entries: deque[Entry] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, entry: Entry) -> None:
        self._entries.append(entry)

    def pop(self) -> Entry:
        """Remove and return the next one."""
        return self._entries.popleft()

    def discard(self, entry: Entry) -> bool:
        """Take out one that has given up; False if it does not wait here."""
        try:
            self._entries.remove(entry)
        except ValueError:
            return False
        return True


__all__ = ["FirstComeFirstServed"]
