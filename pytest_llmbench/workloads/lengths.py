"""Distributions of lengths, in tokens (section 4.3.1: kind, parameters, bounds), and whether a workload is
completely specified (section 4.3.1).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Final, Protocol

from pytest_llmbench.errors import SuiteError, as_python, shown
from pytest_llmbench.model.request import Workload

MOST_TOKENS: Final = 10_000_000
"""Most tokens of one prompt or reply; no model reads more."""


class LengthLaw(Protocol):
    """A distribution of whole numbers of tokens, at least 1. A frozen value."""

    @property
    def type(self) -> str:
        """The kind of distribution, in the draft's words: fixed, uniform, normal, lognormal, empirical."""

    @property
    def params(self) -> Mapping[str, Any]:
        """The parameters of the distribution as JSON values; together with ``type`` they define it."""

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest length that can be drawn."""

    def draw(self, generator: random.Random) -> int:
        """The next length. Which numbers it takes from the generator is part of the definition."""

    def at_least(self, tokens: int) -> float:
        """Probability that a drawn length is ``tokens`` or more."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Return ``tokens``, always. Takes nothing from the generator."""

    type = "fixed"

    tokens: int

    def __post_init__(self) -> None:
        _settle(self)
        _refuse(_length_mistakes("tokens", self.tokens), "Fixed")

    @property
    def params(self) -> Mapping[str, Any]:
        return {"tokens": self.tokens}

    @property
    def bounds(self) -> tuple[int, int]:
        return self.tokens, self.tokens

    def draw(self, generator: random.Random) -> int:  # noqa: ARG002 - every law is drawn with a generator
        return self.tokens

    def at_least(self, tokens: int) -> float:
        return float(self.tokens >= tokens)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Whole numbers from ``low`` to ``high``, both included, equally likely. One ``randint`` per draw."""

    type = "uniform"

    low: int
    high: int

    def __post_init__(self) -> None:
        _settle(self)
        _refuse(_bounds_mistakes(self.low, self.high), "Uniform")

    @property
    def params(self) -> Mapping[str, Any]:
        return {"min": self.low, "max": self.high, "mean": (self.low + self.high) / 2}

    @property
    def bounds(self) -> tuple[int, int]:
        return self.low, self.high

    def draw(self, generator: random.Random) -> int:
        return generator.randint(self.low, self.high)

    def at_least(self, tokens: int) -> float:
        return min(1.0, max(0.0, (self.high - tokens + 1) / (self.high - self.low + 1)))


@dataclass(frozen=True, slots=True)
class Normal:
    """Normal with ``mean`` and standard deviation ``sd``, rounded half to even and clamped to low..high.

    One ``normalvariate`` per draw; clamping does not redraw (AMB-36).
    """

    type = "normal"

    mean: float
    sd: float
    low: int
    high: int

    def __post_init__(self) -> None:
        _settle(self)
        mistakes = _bounds_mistakes(self.low, self.high) + _number_mistakes("mean", self.mean, MOST_TOKENS)
        _refuse(mistakes + _spread_mistakes("sd", self.sd, MOST_TOKENS), "Normal")

    @property
    def params(self) -> Mapping[str, Any]:
        return {"mean": self.mean, "sd": self.sd, "min": self.low, "max": self.high, **_ROUNDING}

    @property
    def bounds(self) -> tuple[int, int]:
        return self.low, self.high

    def draw(self, generator: random.Random) -> int:
        return _clamped(generator.normalvariate(self.mean, self.sd), self.low, self.high)

    def at_least(self, tokens: int) -> float:
        if tokens <= self.low or tokens > self.high:
            return float(tokens <= self.low)
        return _normal_tail((tokens - 0.5 - self.mean) / self.sd)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """exp of a normal with mean ``mu`` and deviation ``sigma``, rounded half to even, clamped to low..high.

    One ``lognormvariate`` per draw; clamping does not redraw (AMB-36).
    """

    type = "lognormal"

    mu: float
    sigma: float
    low: int
    high: int

    def __post_init__(self) -> None:
        _settle(self)
        # e to the power of more than 709 is no number any more; these bounds are far from it.
        mistakes = _bounds_mistakes(self.low, self.high) + _number_mistakes("mu", self.mu, 50)
        _refuse(mistakes + _spread_mistakes("sigma", self.sigma, 20), "LogNormal")

    @property
    def params(self) -> Mapping[str, Any]:
        return {"mu": self.mu, "sigma": self.sigma, "min": self.low, "max": self.high, **_ROUNDING}

    @property
    def bounds(self) -> tuple[int, int]:
        return self.low, self.high

    def draw(self, generator: random.Random) -> int:
        return _clamped(generator.lognormvariate(self.mu, self.sigma), self.low, self.high)

    def at_least(self, tokens: int) -> float:
        if tokens <= self.low or tokens > self.high:
            return float(tokens <= self.low)
        return _normal_tail((math.log(tokens - 0.5) - self.mu) / self.sigma)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of ``tokens``, equally likely. One ``choice`` per draw, also where there is only one length."""

    type = "empirical"

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        _settle(self)
        _refuse(_list_mistakes("tokens", self.tokens), "Choice")

    @property
    def params(self) -> Mapping[str, Any]:
        mean = sum(self.tokens) / len(self.tokens)
        return {"choice": list(self.tokens), "min": min(self.tokens), "max": max(self.tokens), "mean": mean}

    @property
    def bounds(self) -> tuple[int, int]:
        return min(self.tokens), max(self.tokens)

    def draw(self, generator: random.Random) -> int:
        return generator.choice(self.tokens)

    def at_least(self, tokens: int) -> float:
        return sum(length >= tokens for length in self.tokens) / len(self.tokens)


@dataclass(frozen=True, slots=True)
class Empirical:
    """Lengths as observed: ``tokens[i]`` with a probability proportional to ``weights[i]``.

    Without weights all are equally likely, so a plain list of observed lengths will do; a histogram is
    lengths with their counts. One ``random`` per draw, looked up in the cumulative weights in the order
    given.
    """

    type = "empirical"

    tokens: tuple[int, ...]
    weights: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        _settle(self)
        mistakes = _list_mistakes("tokens", self.tokens)
        if self.weights is not None:
            mistakes += _weight_mistakes(self.tokens, self.weights)
        _refuse(mistakes, "Empirical")

    @classmethod
    def histogram(cls, counts: Mapping[int, float]) -> Empirical:
        """Make a distribution from a mapping of each length to how often it occurs."""
        return cls(tuple(counts), tuple(counts.values()))

    @property
    def params(self) -> Mapping[str, Any]:
        total = math.fsum(self._weights)
        mean = math.fsum(length * w for length, w in zip(self.tokens, self._weights, strict=True)) / total
        histogram = [[length, w] for length, w in zip(self.tokens, self._weights, strict=True)]
        return {"histogram": histogram, "min": self.bounds[0], "max": self.bounds[1], "mean": mean}

    @property
    def bounds(self) -> tuple[int, int]:
        possible = [length for length, w in zip(self.tokens, self._weights, strict=True) if w > 0]
        return min(possible), max(possible)

    def draw(self, generator: random.Random) -> int:
        cumulated = _cumulated(self._weights)
        place = bisect_right(cumulated, generator.random() * cumulated[-1], hi=len(cumulated) - 1)
        return self.tokens[place]

    def at_least(self, tokens: int) -> float:
        pairs = zip(self.tokens, self._weights, strict=True)
        return math.fsum(w for length, w in pairs if length >= tokens) / math.fsum(self._weights)

    @property
    def _weights(self) -> tuple[float, ...]:
        return (1,) * len(self.tokens) if self.weights is None else self.weights


def law_of(lengths: Any, what: str) -> LengthLaw:
    """The distribution for what an author gave: a number is fixed, a pair uniform, a list chooses among its
    lengths, a mapping is a histogram, and a distribution is itself. Raises SuiteError for anything else,
    which it calls ``what``."""
    lengths = as_python(lengths)
    if isinstance(lengths, int) and not isinstance(lengths, bool):
        return Fixed(lengths)
    if isinstance(lengths, Mapping):
        return Empirical.histogram(lengths)
    if isinstance(lengths, tuple) and len(lengths) == 2:
        return Uniform(*lengths)
    if isinstance(lengths, Sequence) and not isinstance(lengths, str):
        return Choice(tuple(lengths))
    if hasattr(lengths, "draw"):
        law: LengthLaw = lengths
        return law
    raise SuiteError(f"{what} is {shown(lengths)}: give a number, a pair, a list, a histogram or a law")


_ROUNDING: Mapping[str, Any] = {"rounding": "half to even, then clamped"}


def specification_of(law: LengthLaw, tokenizer: str) -> dict[str, Any]:
    """A distribution as section 4.3.1 wants it stated: kind, parameters, unit and tokenizer."""
    return {"type": law.type, "params": dict(law.params), "unit": "tokens", "tokenizer": tokenizer}


def probability_between(law: LengthLaw, low: int, high: int) -> float:
    """Probability of a length from ``low`` to ``high``, both included."""
    return law.at_least(low) - law.at_least(high + 1)


def mean_between(law: LengthLaw, low: int | None = None, high: int | None = None) -> float:
    """Expected length, given that it is between ``low`` and ``high`` (default: the bounds of the
    distribution).

    Exact up to rounding: the sum over k of P(length ≥ k), by the law's own distribution after rounding and
    clamping. Raises SuiteError where the law never gives such a length.
    """
    low = max(law.bounds[0], law.bounds[0] if low is None else low)
    high = min(law.bounds[1], law.bounds[1] if high is None else high)
    inside = probability_between(law, low, high) if low <= high else 0.0
    if inside <= 0:
        raise SuiteError(f"the law {law!r} gives no length from {low} to {high}", where="workload")
    beyond = law.at_least(high + 1)
    return low + math.fsum(law.at_least(k) - beyond for k in range(low + 1, high + 1)) / inside


@lru_cache(maxsize=32)
def _cumulated(weights: tuple[float, ...]) -> list[float]:
    total = 0.0
    return [total := total + weight for weight in weights]


def _clamped(value: float, low: int, high: int) -> int:
    return max(low, min(high, round(value)))


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2)) / 2


def _settle(law: Any) -> None:
    """Give a law Python's own numbers."""
    for each in fields(law):
        object.__setattr__(law, each.name, as_python(getattr(law, each.name)))


def _length_mistakes(name: str, value: object) -> list[str]:
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_TOKENS:
        return []
    return [f"{name} is {shown(value)}: give a whole number of tokens, at least 1, at most {MOST_TOKENS:,}"]


def _bounds_mistakes(low: object, high: object) -> list[str]:
    mistakes = _length_mistakes("low", low) + _length_mistakes("high", high)
    if not mistakes and low > high:  # type: ignore[operator]
        mistakes = [f"low is {low} and high is {high}: the lower bound comes first"]
    return mistakes


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf


def _number_mistakes(name: str, value: float, most: float) -> list[str]:
    if _is_number(value) and abs(value) <= most:
        return []
    return [f"{name} is {shown(value)}: give a number from {-most:,} to {most:,}"]


def _spread_mistakes(name: str, value: float, most: float) -> list[str]:
    if _is_number(value) and 0 < value <= most:
        return []
    return [f"{name} is {shown(value)}: give a number above 0, at most {most:,}"]


def _list_mistakes(name: str, values: tuple[int, ...]) -> list[str]:
    if not isinstance(values, tuple) or not values:
        return [f"{name} is {shown(values)}: give a tuple of lengths, at least one"]
    return [mistake for place, v in enumerate(values) for mistake in _length_mistakes(f"{name}[{place}]", v)][
        :5
    ]


def _weight_mistakes(tokens: tuple[int, ...], weights: tuple[float, ...]) -> list[str]:
    if not isinstance(weights, tuple) or len(weights) != len(tokens):
        return ["weights do not match tokens: give a tuple with one weight for each length"]
    wrong = [weight for weight in weights if not (_is_number(weight) and weight >= 0)]
    if wrong or not 0 < sum(weights) < math.inf:
        return [f"weights {shown(wrong or list(weights))}: give numbers, none negative, not all 0"]
    return []


def _refuse(mistakes: list[str], law: str) -> None:
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=f"length law {law}")


REQUIRED_ITEMS = (
    "input_length.type",
    "input_length.params",
    "input_length.unit",
    "input_length.tokenizer",
    "output_length.type",
    "output_length.params",
    "output_length.unit",
    "output_length.tokenizer",
    "output_length.control",
    "content.domain",
    "content.language",
    "content.system_prompt.present",
    "content.system_prompt.typical_tokens",
    "prefix_sharing.fraction",
    "prefix_sharing.length",
    "temperature",
    "stop",
)
"""Items that every workload has to state. ``stop`` may be an empty list; nothing else may be empty."""

DATASET_ITEMS = ("dataset.name", "dataset.version", "dataset.subset_method", "dataset.preprocessing")
"""Items that a workload from a data set has to state as well (section 4.3.3)."""

CONTROLS = ("max_tokens", "stop", "both")
LENGTH_TYPES = ("fixed", "uniform", "normal", "lognormal", "empirical")

_MAY_BE_EMPTY = ("stop", "dataset.preprocessing")


def check_specification(workload: Workload) -> list[str]:
    """The items that are missing or not in the draft's vocabulary, in words; empty if the specification is
    complete."""
    specification: Any = workload.specification()
    if not isinstance(specification, Mapping):
        return [f"specification() gives {type(specification).__name__}, not a mapping"]
    items = REQUIRED_ITEMS + (DATASET_ITEMS if "dataset" in specification else ())
    found = [f"{item} is missing" for item in items if not _is_given(specification, item)]
    for side in ("input_length", "output_length"):
        found += _outside(specification, f"{side}.type", LENGTH_TYPES)
    return found + _outside(specification, "output_length.control", CONTROLS)


def _is_given(specification: Mapping[str, Any], item: str) -> bool:
    value = _look_up(specification, item)
    return value is not None and (item in _MAY_BE_EMPTY or value not in ("", [], {}, ()))


def _outside(specification: Mapping[str, Any], item: str, vocabulary: tuple[str, ...]) -> list[str]:
    if not _is_given(specification, item) or _look_up(specification, item) in vocabulary:
        return []
    return [f"{item} is {_look_up(specification, item)!r}: choose one of {', '.join(vocabulary)}"]


def _look_up(specification: Mapping[str, Any], item: str) -> Any:
    value: Any = specification
    for key in item.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value
