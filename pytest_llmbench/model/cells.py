"""The cells of a table: values, and the one place where they become text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Literal, NamedTuple

from pytest_llmbench.model import numbers
from pytest_llmbench.model.estimate import Estimate


class Amount(NamedTuple):
    """A number that is no estimate. None: not measured."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate by the name of its metric, which tells how it is shown. None: not measured."""

    name: str
    estimate: Estimate | None
    part: Literal["value", "interval", "both", "change"] = "value"
    reported_from: int = 0
    """Fewest samples with which the TTFT test may state it. Elsewhere fewer make it indicative (AMB-47)."""

    @property
    def text(self) -> str:
        estimate = self.estimate
        if estimate is None:
            return "" if self.part == "interval" else numbers.NOT_MEASURED
        if estimate.defined and estimate.n < self.reported_from:
            return "" if self.part == "interval" else f"n < {self.reported_from}, not reported"
        metric = {each.name: getattr(estimate, each.name) for each in fields(Estimate)}
        metric["unit"] = numbers.shown_unit(self.name, estimate.unit)
        if self.part == "interval":
            return numbers.interval_of(metric)
        if self.part == "change":
            return numbers.change(metric)
        text = numbers.estimate(metric) if self.part == "both" else numbers.point(metric)
        return text if self.reported_from else numbers.tagged(text, self.name, metric)


Cell = str | int | Amount | Figure
Row = tuple[Cell, ...]


def text_of(cell: Cell) -> str:
    if isinstance(cell, Figure):
        return cell.text
    return numbers.quantity(*cell) if isinstance(cell, Amount) else str(cell)


def cells(
    metrics: Mapping[str, Estimate], names: Iterable[str], part: Literal["value", "both"] = "value"
) -> tuple[Figure, ...]:
    """The metrics of these names, as cells."""
    return tuple(Figure(name, metrics.get(name), part) for name in names)


def with_intervals(rows: Iterable[tuple[str, Cell]]) -> tuple[Row, ...]:
    """Rows of a title, a value and its interval, of rows of a title and a value."""
    return tuple(
        (title, cell, replace(cell, part="interval") if isinstance(cell, Figure) else "")
        for title, cell in rows
    )
