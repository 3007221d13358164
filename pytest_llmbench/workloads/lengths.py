"""Laws that lengths are drawn from, in tokens (METHODOLOGY §4.1: kind, parameters, bounds)."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pytest_llmbench.errors import SuiteError


class LengthLaw(Protocol):
    """A distribution of whole numbers of tokens, at least 1. A frozen value."""

    @property
    def type(self) -> str:
        """Its kind, in the draft's words: fixed, uniform, normal, lognormal, empirical."""

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters as JSON values; together with ``type`` they define the law."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest length that can be drawn."""

    def draw(self, generator: random.Random) -> int:
        """The next length. What it takes from the generator is part of the law's definition."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``tokens``. Takes nothing from the generator."""

    tokens: int

    def __post_init__(self) -> None:
        _refuse(_length_mistakes("tokens", self.tokens), "Fixed")

    @property
    def type(self) -> str:
        return "fixed"

    @property
    def params(self) -> Mapping[str, Any]:
        return {"tokens": self.tokens}

    @property
    def bounds(self) -> tuple[int, int]:
        return self.tokens, self.tokens

    def draw(self, generator: random.Random) -> int:  # noqa: ARG002 - every law is drawn with a generator
        return self.tokens


@dataclass(frozen=True, slots=True)
class Uniform:
    """Whole numbers from ``low`` to ``high``, both included, equally likely. One ``randint`` per draw."""

    low: int
    high: int

    def __post_init__(self) -> None:
        mistakes = _length_mistakes("low", self.low) + _length_mistakes("high", self.high)
        if not mistakes and self.low > self.high:
            mistakes = [f"low is {self.low} and high is {self.high}: the lower bound comes first"]
        _refuse(mistakes, "Uniform")

    @property
    def type(self) -> str:
        return "uniform"

    @property
    def params(self) -> Mapping[str, Any]:
        return {"min": self.low, "max": self.high, "mean": (self.low + self.high) / 2}

    @property
    def bounds(self) -> tuple[int, int]:
        return self.low, self.high

    def draw(self, generator: random.Random) -> int:
        return generator.randint(self.low, self.high)


def specification_of(law: LengthLaw, tokenizer: str) -> dict[str, Any]:
    """A law as METHODOLOGY §4.1 wants it stated: kind, parameters, unit and whose tokens they are."""
    return {"type": law.type, "params": dict(law.params), "unit": "tokens", "tokenizer": tokenizer}


def _length_mistakes(name: str, value: object) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return []
    return [f"{name} is {value!r}: give a whole number of tokens, at least 1"]


def _refuse(mistakes: list[str], law: str) -> None:
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=f"length law {law}")


__all__ = ["Fixed", "LengthLaw", "Uniform", "specification_of"]
