"""Request classes of the fairness test: each class takes a range of lengths of one workload.

AMB-07: the class is drawn by the mix ratio, then input and output from the base workload's laws, each redrawn
until it lies in the range of the class. The order of the draws is ours, as the draft names none (AMB-07).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.workloads.bulk_random import BulkRandom
from pytest_llmbench.workloads.lengths import LengthLaw, mean_between, probability_between
from pytest_llmbench.workloads.stream import Rewording, StreamedWorkload
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SyntheticWorkload

Range = tuple[int, int]

_RAREST = 1e-4
"""Least share of the draws within a range: below it drawing would take forever."""


@dataclass(frozen=True, slots=True)
class RequestClass:
    """Requests whose input and output limit lie in the given ranges (both ends included), and their share."""

    name: str
    input: Range
    output: Range
    share: float


SHORT: Final = RequestClass("short", input=(64, 256), output=(32, 128), share=0.8)
LONG: Final = RequestClass("long", input=(1024, 4096), output=(256, 1024), share=0.2)
"""Two request classes of the draft's example (section 5.6.2), mixed 80 to 20."""


@dataclass(frozen=True, slots=True)
class ClassMix(StreamedWorkload):
    """The base workload, conditional on classes. Requests carry the name of their class as ``class_label``.

    Per request: one ``random()`` picks the class by the cumulative shares in the order given; the input
    length is drawn until it lies in the range of the class, then the output limit, then the ids. It keeps
    the name and the standing of its base.
    """

    classes: tuple[RequestClass, ...] = (SHORT, LONG)
    base: SyntheticWorkload = SYNTHETIC_SKEWED

    def __post_init__(self) -> None:
        mistakes = _mistakes(self)
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"request classes of {self.base.name!r}")

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def standard(self) -> bool:
        return self.base.standard

    def isolated(self, name: str) -> ClassMix:
        """The workload with this class alone, the baseline of the fairness test."""
        return replace(self, classes=(replace(self.named(name), share=1.0),))

    def named(self, name: str) -> RequestClass:
        """The class called ``name``."""
        for candidate in self.classes:
            if candidate.name == name:
                return candidate
        known = ", ".join(candidate.name for candidate in self.classes)
        raise SuiteError(f"no request class {name!r}", where=self.where, remedy=f"there are: {known}")

    def mean_tokens(self, name: str | None = None) -> float:
        """Expected input plus output limit of a request of class ``name``; without a name that of the mix.

        Exact, from the laws as rounded and clamped. AMB-08 makes class rates from it.
        """
        if name is None:
            return math.fsum(each.share * self.mean_tokens(each.name) for each in self.classes)
        wanted = self.named(name)
        laws = self.base.input_tokens, self.base.output_tokens
        return mean_between(laws[0], *wanted.input) + mean_between(laws[1], *wanted.output)

    @property
    def draws_anew(self) -> bool:
        return True

    def rewording(self) -> Rewording:
        return self.base.rewording()

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        generator = BulkRandom(seed)
        cumulated = list(accumulate(each.share for each in self.classes))
        index = 0
        while True:
            point = generator.random()
            picked = next((c for c, end in zip(self.classes, cumulated, strict=True) if point < end), None)
            picked = picked or self.classes[-1]
            input_tokens = _draw_inside(self.base.input_tokens, picked.input, generator)
            max_tokens = _draw_inside(self.base.output_tokens, picked.output, generator)
            yield self.base.request(generator, index, input_tokens, max_tokens, picked.name)
            index += 1

    def specification(self) -> Mapping[str, Any]:
        classes = [
            {"name": c.name, "input": list(c.input), "output": list(c.output), "share": c.share}
            for c in self.classes
        ]
        base = dict(self.base.specification())
        order = ["class", "input length until in range", "output limit until in range", "token ids"]
        return base | {"classes": classes, "generation": dict(base["generation"]) | {"order": order}}


def _draw_inside(law: LengthLaw, wanted: Range, generator: BulkRandom) -> int:
    while True:
        tokens = law.draw(generator)
        if wanted[0] <= tokens <= wanted[1]:
            return tokens


def _mistakes(mix: ClassMix) -> list[str]:
    if not mix.classes:
        return ["there are none: give at least one"]
    found = []
    names = [each.name for each in mix.classes]
    if len(set(names)) < len(names) or "" in names:
        found.append(f"the names are {names}: give each class a name of its own")
    found += [
        f"the share of {each.name!r} is {each.share}: give a number above 0"
        for each in mix.classes
        if not each.share > 0
    ]
    if not found and abs(math.fsum(each.share for each in mix.classes) - 1) > 1e-9:
        found.append(f"the shares {[each.share for each in mix.classes]} do not add up to 1")
    laws = {"input": mix.base.input_tokens, "output": mix.base.output_tokens}
    return found + [
        f"{side} {wanted[0]} to {wanted[1]} of {each.name!r} is out of reach: the base draws such a length "
        f"in {max(0.0, probability_between(law, *wanted)):.2g} of all cases"
        for each in mix.classes
        for side, law in laws.items()
        for wanted in [each.input if side == "input" else each.output]
        if probability_between(law, *wanted) < _RAREST
    ]
