"""The ranges of options of the embedded engine, and the mistakes in values outside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers from ``least`` to ``most``."""

    least: float = 0
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is outside."""
    below: bool = False
    """Whether ``most`` itself is outside."""
    or_none: bool = False

    def __contains__(self, value: float | None) -> bool:
        if value is None:
            return self.or_none
        if (self.above and value == self.least) or (self.below and value == self.most):
            return False
        return math.isfinite(value) and self.least <= value <= self.most

    def __str__(self) -> str:
        least = f"above {self.least}" if self.above else f"{self.least} or more"
        if self == SHARE:
            return "a share from 0 to 1"
        if self.most == math.inf:
            return least + (", or none" if self.or_none else "")
        if self.above or self.below:
            return f"{least} and {'below' if self.below else 'at most'} {self.most}"
        return f"from {self.least} to {self.most}"


SHARE = Range(most=1)


def out_of_range(values: Any, ranges: Mapping[str, Range]) -> list[str]:
    """The mistakes in the values by these names, of a mapping or of an object; empty if there are none."""
    named = values if isinstance(values, Mapping) else {name: getattr(values, name) for name in ranges}
    return [
        f"{name} is {shown(named[name])}; it must be {allowed}"
        for name, allowed in ranges.items()
        if named[name] not in allowed
    ]


def shown(value: object) -> str:
    """An option's value as it is written in a scenario."""
    return str(value).removesuffix(".0")
