"""Amounts of load: requests, tokens and time between bounds, without drawing a long sequence to its end."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from pytest_llmbench.methodology.amounts import Bounds
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.stream import stream_of

SAMPLE_REQUESTS = 12_000
"""Of longer loads the tokens are reckoned from so many requests …"""
SAMPLE_TOKENS = 4_000_000
"""… or from those with so many input tokens, which long contexts reach sooner."""
_FEWEST_SAMPLED = 500
"""Where it is not known how many requests there will be."""
_SIGMAS = 4.0
"""What is reckoned lies within so many standard errors."""
_SLACK = 0.02
_BETWEEN_SEQUENCES = 0.1
"""Sequences with shared prefixes differ by about this share: each draws a few prefixes of its own."""


@dataclass(frozen=True)
class Span:
    """A quantity between bounds."""

    least: float = 0.0
    most: float = 0.0
    per_rps: float = 0.0
    """Comes to ``most`` for each request per second that the system completes at most."""
    worst: float = 0.0
    """In place of ``most`` where replies fail or are short, and loads are measured again."""
    worst_per_rps: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(
            self.least + other.least,
            self.most + other.most,
            self.per_rps + other.per_rps,
            self.worst + other.worst,
            self.worst_per_rps + other.worst_per_rps,
        )

    def times(self, factor: float) -> Span:
        every = (self.least, self.most, self.per_rps, self.worst, self.worst_per_rps)
        return Span(*(factor * each for each in every))

    def worst_text(self, shown: Callable[[float], str] = lambda value: f"{value:,.0f}") -> str:
        more = f" + {shown(self.worst_per_rps)} per req/s" if self.worst_per_rps else ""
        return shown(self.worst) + more

    def text(self, shown: Callable[[float], str] = lambda value: f"{value:,.0f}") -> str:
        """``1,100``, ``[104, 1,100]`` or ``[104, 1,100 + 12 per req/s]``."""
        if self.per_rps:
            return f"[{shown(self.least)}, {shown(self.most)} + {shown(self.per_rps)} per req/s]"
        if shown(self.least) == shown(self.most):
            return shown(self.most)
        return f"[{shown(self.least)}, {shown(self.most)}]"


@dataclass(frozen=True)
class Amount:
    """``seconds``: of loads with a nominal length; of the others the system decides."""

    requests: Span = field(default_factory=Span)
    input_tokens: Span = field(default_factory=Span)
    output_tokens: Span = field(default_factory=Span)
    seconds: Span = field(default_factory=Span)
    open_ended: bool = False
    """Some of the measured load takes as long as the system needs."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
            self.open_ended or other.open_ended,
        )

    def times(self, count: int) -> Amount:
        return Amount(
            self.requests.times(count),
            self.input_tokens.times(count),
            self.output_tokens.times(count),
            self.seconds.times(count),
            self.open_ended,
        )

    def price(self, per_million_input: float, per_million_output: float) -> Span:
        return self.input_tokens.times(per_million_input / 1e6) + self.output_tokens.times(
            per_million_output / 1e6
        )

    def describe(self) -> str:
        """In words: ``[least, most]`` of each."""
        return (
            f"requests {self.requests.text()}, input tokens {self.input_tokens.text()}, output tokens "
            f"{self.output_tokens.text()}, {self._duration()}"
        )

    @property
    def is_worse(self) -> bool:
        """The worst case is more than the usual one."""
        return self.requests.worst > self.requests.most

    def describe_worst(self) -> str:
        return (
            f"{self.requests.worst_text()} requests, {self.input_tokens.worst_text()} input and "
            f"{self.output_tokens.worst_text()} output tokens"
        )

    def _duration(self) -> str:
        if self.open_ended and self.seconds.most == 0:
            return "duration set by the SUT (closed loop)"
        more = ", and closed loops as long as the SUT needs" if self.open_ended else ""
        return f"{self.seconds.text(_time)} of measured load{more}"


def _time(seconds: float) -> str:
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


Lengths = npt.NDArray[np.int64]


class Sampler:
    """Draws the beginning of each sequence once."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str, int], tuple[Lengths, Lengths]] = {}

    def amount(self, load: Bounds) -> Amount:
        more = load.attempts * load.per_rps
        requests = Span(load.least, load.most, load.per_rps, load.at_worst, more)
        inputs, outputs = self._lengths(load)
        exact, spread = load.one_sequence and load.first < len(inputs), 0.0
        if exact:
            inputs, outputs = inputs[load.first :], outputs[load.first :]
        if not load.one_sequence and load.workload.specification()["prefix_sharing"]["fraction"]:
            spread = _BETWEEN_SEQUENCES
        seconds = Span(load.least_s, load.most_s, worst=load.attempts * load.most_s)
        asked = _tokens(inputs, requests, exact, spread)
        # A reply may end before its limit, after one token or none.
        answered = replace(_tokens(outputs, requests, exact, 0.0), least=0.0)
        open_ended = load.open_ended and load.phase is Phase.MEASURE
        return Amount(requests, asked, answered, seconds, open_ended)

    def _lengths(self, load: Bounds) -> tuple[Lengths, Lengths]:
        least = _FEWEST_SAMPLED if load.per_rps else 0
        wanted = min(SAMPLE_REQUESTS, load.first + max(load.at_worst, least))
        key = (load.workload.name, str(load.workload.specification()), load.seed)
        if key not in self._samples or len(self._samples[key][0]) < wanted:
            self._samples[key] = _sampled(load.workload, load.seed, wanted)
        return self._samples[key]


def _sampled(workload: Workload, seed: int, count: int) -> tuple[Lengths, Lengths]:
    inputs: list[int] = []
    outputs: list[int] = []
    tokens = 0
    for request in islice(stream_of(workload, seed), count):
        inputs.append(request.input_tokens)
        outputs.append(request.max_tokens)
        tokens += request.input_tokens
        if tokens > SAMPLE_TOKENS:
            break
    return np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64)


def _tokens(lengths: Lengths, requests: Span, exact: bool, spread: float) -> Span:
    """Exact for the beginning of a sequence that was drawn; else from the lengths of the sample."""
    known = len(lengths)
    if not known:
        return Span()
    mean, deviation = float(lengths.mean()), float(lengths.std())
    error = _SIGMAS * deviation / math.sqrt(known) + spread * mean

    def total(count: float, sign: int) -> float:
        if exact and count <= known:
            return float(lengths[: int(count)].sum())
        return max(0.0, count * (mean + sign * error) + sign * _SIGMAS * deviation * math.sqrt(count))

    most, worst = total(requests.most, 1), total(requests.worst, 1)
    if requests.per_rps:
        # √x grows slower than any share of x: the deviation of so many more requests, as a share and a sum.
        fixed = (_SIGMAS * deviation) ** 2 / (4 * _SLACK * mean)
        most, worst = most + fixed, worst + fixed
    each = mean * (1 + _SLACK) + error
    more, worst_more = each * requests.per_rps, each * requests.worst_per_rps
    return Span(total(requests.least, -1), most, more, worst, worst_more)


__all__ = ["SAMPLE_REQUESTS", "SAMPLE_TOKENS", "Amount", "Sampler", "Span"]
