"""The shape of a load: stages, each with the rate at which requests arrive while it lasts.

Written as a list of ``(second, rate)`` or ``(second, rate, name)``: from that second on requests arrive at
that rate, or at one that goes evenly from the first of two to the second, ``(second, (5, 50))``. A last rate
of 0 ends the load; without it the last stage goes on until all requests are sent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pytest_llmbench.errors import shown

Entry = tuple[float, float | tuple[float, float], str]
"""An entry of the list: when a stage begins in s, its rate or the rates of its ends in req/s, its name."""

_NAME = re.compile(r"[^\W\d][\w.-]{0,63}")
_FASTEST, _LONGEST_S, _MOST = 1e6, 1e7, 100_000_000
_FORM = "(second, rate), (second, (rate, rate at its end)) or either with a name as third"


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of a load in which the rate is constant, or goes evenly from ``rate`` to ``to_rate``."""

    name: str
    at_s: float
    end_s: float | None
    """Its end; None for a last stage that goes on until all requests are sent."""
    rate: float
    to_rate: float

    def __str__(self) -> str:
        rates = f"{self.rate:g}" if self.rate == self.to_rate else f"{self.rate:g} to {self.to_rate:g}"
        return f"{self.name} {rates} req/s from {self.at_s:g} s"

    @property
    def requests(self) -> float | None:
        """The requests that it has on average; None where it goes on."""
        return None if self.end_s is None else (self.end_s - self.at_s) * (self.rate + self.to_rate) / 2


def stages_of(entries: Sequence[Any]) -> tuple[Stage, ...]:
    """The stages of a list that :func:`stage_mistakes` finds nothing wrong with."""
    read = [_read(entry, number) for number, entry in enumerate(entries, start=1)]
    ends: list[float | None] = [at_s for at_s, _, _ in read[1:]]
    if read[-1][1] == (0.0, 0.0):
        del read[-1]
    else:
        ends.append(None)
    return tuple(
        Stage(name, at_s, end_s, *rates) for (at_s, rates, name), end_s in zip(read, ends, strict=True)
    )


def requests_of(stages: Sequence[Stage]) -> int | None:
    """The requests of a load with an end: as many as it has on average. None without an end."""
    each = [stage.requests for stage in stages]
    return None if None in each else round(sum(count for count in each if count is not None))


def mean_rate(stages: Sequence[Stage]) -> float:
    """Requests per second over the load; of one without an end that of its last stage."""
    end_s, count = stages[-1].end_s, requests_of(stages)
    return stages[-1].to_rate if end_s is None or count is None else count / end_s


def stage_mistakes(value: Any) -> list[str]:
    """What is wrong with a list of stages, as ends of sentences; empty if it is one."""
    if not isinstance(value, Sequence) or not 1 <= len(value) <= 1000:
        return [f"must be a list of 1 to 1000 stages {_FORM}, got {shown(value)}"]
    found = [
        f"entry {number} is {shown(entry)}: write {_FORM}"
        for number, entry in enumerate(value, start=1)
        if not _is_entry(entry)
    ]
    return found or _of_all([_read(entry, number) for number, entry in enumerate(value, start=1)])


def _of_all(read: Sequence[tuple[float, tuple[float, float], str]]) -> list[str]:
    found = []
    names = [name for _, _, name in read]
    if read[0][0] != 0:
        found.append(f"begins at second {read[0][0]:g}: the first stage begins at 0")
    if any(later[0] <= earlier[0] for earlier, later in pairwise(read)):
        found.append("must have stages whose seconds ascend")
    if len(set(names)) < len(names):
        found.append(f"has a name twice: {', '.join(names)}")
    first, last = read[-1][1]
    if first != last:
        found.append(f"ends with a ramp, which needs an end: add (second, {last:g}) or (second, 0)")
    if found:
        return found
    if all(rates == (0, 0) for _, rates, _ in read):
        return ["has no rate above 0: nothing would be sent"]
    count = 1 if first else requests_of(stages_of(read))
    if not count or count > _MOST:
        found.append(f"has {count} requests: give 1 to {_MOST:,}")
    return found


def _is_entry(entry: Any) -> bool:
    if isinstance(entry, str) or not isinstance(entry, Sequence) or len(entry) not in (2, 3):
        return False
    rates = entry[1] if _is_pair(entry[1]) else [entry[1]]
    named = len(entry) == 2 or (isinstance(entry[2], str) and _NAME.fullmatch(entry[2]) is not None)
    return named and _is_number(entry[0], _LONGEST_S) and all(_is_number(rate, _FASTEST) for rate in rates)


def _is_pair(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2


def _is_number(value: Any, most: float) -> bool:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return known and math.isfinite(value) and 0 <= value <= most


def _read(entry: Any, number: int) -> tuple[float, tuple[float, float], str]:
    rates = entry[1] if _is_pair(entry[1]) else (entry[1], entry[1])
    name = entry[2] if len(entry) == 3 else f"stage{number}"
    return float(entry[0]), (float(rates[0]), float(rates[1])), name


def ramp(first: float, last: float, seconds: float, hold_s: float) -> list[Entry]:
    """A load whose rate goes evenly from ``first`` to ``last`` req/s within ``seconds`` (stage ``ramp``), and
    stays there for ``hold_s`` (stage ``top``)."""
    return [(0, (first, last), "ramp"), (seconds, last, "top"), (seconds + hold_s, 0, "end")]


def steps(rates: Sequence[float], each_s: float) -> list[Entry]:
    """A load of one rate after the other in req/s, each for ``each_s`` seconds: stages ``step1``,
    ``step2``, …"""
    begun = [(number * each_s, rate, f"step{number + 1}") for number, rate in enumerate(rates)]
    return [*begun, (len(rates) * each_s, 0, "end")]


def spike(rate: float, peak: float, *, before_s: float, for_s: float, after_s: float) -> list[Entry]:
    """A load of ``rate`` req/s that rises to ``peak`` for ``for_s`` seconds and falls back: stages
    ``before``, ``spike`` and ``after``."""
    up, down = before_s, before_s + for_s
    return [(0, rate, "before"), (up, peak, "spike"), (down, rate, "after"), (down + after_s, 0, "end")]
