"""A workload of plain texts, for tests that do not care what is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.model.request import PlannedRequest


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
