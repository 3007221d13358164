"""Workloads of plain texts, for tests that do not care what is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.stream import StreamedWorkload


@dataclass(frozen=True)
class TextWorkload:
    name: str = "texts"
    text: str = "hello"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [
            PlannedRequest(index, max_tokens=8, input_tokens=1, text=f"{self.text} {seed}-{index}")
            for index in range(count)
        ]

    def specification(self) -> Mapping[str, Any]:
        return {}


class Prompts(StreamedWorkload):
    """An endless sequence of prompts of 16 KiB. Says how far it has been drawn; at some request something
    happens."""

    name = "prompts"

    def __init__(self, size: int = 16_384, at: int = -1, happens: Callable[[], None] | None = None) -> None:
        self.drawn = 0
        self._text = "p" * size
        self._at, self._happens = at, happens

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        for index in count():
            self.drawn = max(self.drawn, index)
            if index == self._at and self._happens is not None:
                self._happens()
            yield PlannedRequest(index, 8, 1, text=self._text)

    def specification(self) -> dict[str, Any]:
        return {}
