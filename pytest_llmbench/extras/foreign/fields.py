"""Fields of a JSON object that another tool wrote: of the expected type, or an error that names the field."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pytest_llmbench.errors import shown

T = TypeVar("T")
_LONGEST_TEXT = 200
_NAMED = 12


class WrongShapeError(ValueError):
    """A field does not have the form that the tool writes."""


class Fields:
    """A JSON object with its position in the file, for messages."""

    def __init__(self, content: Mapping[str, Any], place: str = "") -> None:
        self._content = content
        self._place = place

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None

    def section(self, name: str) -> Fields:
        """The object in a field; an empty one where there is none."""
        value = self._content.get(name)
        if value is None:
            return Fields({}, self._at(name))
        if not isinstance(value, dict):
            raise self._wrong(name, value, "not a JSON object")
        return Fields(value, self._at(name))

    def sections(self, name: str) -> list[Fields]:
        """The objects in a list; empty where there is none."""
        value = self._content.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self._wrong(name, value, "not a list of JSON objects")
        return [Fields(each, f"{self._at(name)}[{index}]") for index, each in enumerate(value)]

    def number(self, name: str, *, endless: bool = False) -> float | None:
        """A number of at least zero; None where there is none. ``endless``: it may be infinite, also written
        ``"inf"``."""
        value = self._content.get(name)
        if value is None:
            return None
        if endless and value == "inf":
            return math.inf
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(name, value, "not a number")
        try:
            found = float(value)
        except OverflowError:
            raise self._wrong(name, value, "too large a number") from None
        if math.isnan(found) or found < 0 or (math.isinf(found) and not endless):
            raise self._wrong(name, value, "not a finite number of at least zero")
        return found

    def count(self, name: str) -> int | None:
        """A whole number of at least zero; None where there is none."""
        value = self.number(name)
        if value is None:
            return None
        if value != int(value):
            raise self._wrong(name, value, "not a whole number")
        return int(value)

    def text(self, name: str) -> str | None:
        """A text, cut off where it is long; None where there is none."""
        value = self._content.get(name)
        if value is None:
            return None
        if not isinstance(value, str):
            raise self._wrong(name, value, "not text")
        return value[:_LONGEST_TEXT]

    def texts(self, name: str) -> list[str]:
        """The texts of a list; empty where there is none."""
        value = self._content.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._wrong(name, value, "not a list of texts")
        return [each[:_LONGEST_TEXT] for each in value]

    def flag(self, name: str, *, of: bool = True) -> bool:
        """Whether the field is ``of``; False also where it is absent."""
        return self._content.get(name) is of

    def as_text(self, names: Sequence[str]) -> dict[str, str]:
        """Name → simple value as text; what is absent or not a simple value is left out."""
        found = {name: self._content.get(name) for name in names}
        return {
            name: str(value)[:_LONGEST_TEXT]
            for name, value in found.items()
            if isinstance(value, str | int | float)
        }

    def figures(self, keys: Mapping[str, str], factor: float = 1.0) -> dict[str, float]:
        """Our name of a metric → its value times ``factor``, from the fields that ``keys`` names. A zero is
        left out: tools write it without any sample, and no ratio rests on a rate of zero."""
        values = {metric: self.number(key) for metric, key in keys.items()}
        return {metric: value * factor for metric, value in values.items() if value}

    def latencies(self, family: str, keys: Mapping[str, str], factor: float = 1.0) -> dict[str, float]:
        """:meth:`figures` of ``{family}.{statistic}``, by the names of statistics."""
        return self.figures({f"{family}.{statistic}": key for statistic, key in keys.items()}, factor)

    def named(self) -> str:
        """The names of the object's fields, for a message."""
        names = [shown(name) for name in self._content]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return (", ".join(names[:_NAMED]) or "none") + more

    def _at(self, name: str) -> str:
        return f"{self._place}.{name}" if self._place else name

    def _wrong(self, name: str, value: object, what: str) -> WrongShapeError:
        return WrongShapeError(f"{self._at(name)} is {shown(value)}: {what}")


def completion_rate(completed: int | None, failed: int | None) -> dict[str, float]:
    """``completion_rate``, if both counts are given; WrongShapeError if nothing was completed."""
    if completed == 0:
        raise WrongShapeError("no request completed, so there is nothing to compare with")
    if completed is None or failed is None:
        return {}
    return {"completion_rate": completed / (completed + failed)}


def mean(total: float | None, completed: int | None) -> float | None:
    return None if not total or not completed else total / completed


def list_at(content: Any, name: str, where: str) -> list[dict[str, Any]]:
    """The objects of a list that a field holds, or that ``content`` is; WrongShapeError for anything
    else."""
    return each_of(content, name, where, lambda _, entry: [entry])


def each_of(
    content: Any, name: str, where: str, read: Callable[[int, dict[str, Any]], Iterable[T]]
) -> list[T]:
    """What ``read`` makes of the entries of a list (:func:`list_at`), with their numbers from 1; one
    WrongShapeError with the mistakes of all entries, a line each."""
    entries = content.get(name) if isinstance(content, dict) else content
    if not isinstance(entries, list):
        raise WrongShapeError(f"expected a list of {where}{name}, got {shown(entries)}")
    found, mistakes = list[T](), list[str]()
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            mistakes.append(f"entry {number} of {where}{name} is {shown(entry)}: not an object")
            continue
        try:
            found += read(number, entry)
        except WrongShapeError as error:
            mistakes.append(str(error))
    if mistakes:
        raise WrongShapeError("\n".join(mistakes))
    return found


def object_at(content: Mapping[str, Any], name: str, where: str) -> dict[str, Any]:
    """The object in a field; an empty one where there is none."""
    found = content.get(name)
    if found is not None and not isinstance(found, dict):
        raise WrongShapeError(f"{where}.{name} is {shown(found)}: not an object")
    return found or {}
