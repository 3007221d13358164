"""Values of any origin as plain JSON values, so that they cross processes and survive a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass
from enum import Enum

from pydantic import JsonValue


def plain(value: object) -> JsonValue:
    """``value`` in dicts, lists, str, int, float, bool and None only.

    NumPy scalars and arrays become numbers and lists, sets become sorted lists, dataclasses dicts. A number
    that is not finite becomes None, which stands for undefined everywhere; JSON has no NaN. Anything else
    (a path, a date) becomes its text: evidence must not be lost at the end of a run for want of a type.
    """
    if isinstance(value, Enum):
        return plain(value.value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str | int | float):
        return _plain_scalar(value)
    if isinstance(value, Mapping):
        return {str(plain(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, Set):
        return [plain(entry) for entry in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if callable(as_python := getattr(value, "tolist", None)):  # NumPy arrays and scalars
        return plain(as_python())
    return str(value)


def plain_object(value: object) -> dict[str, JsonValue]:
    """:func:`plain` of a mapping or dataclass, as the dict that it is."""
    converted = plain(value)
    if not isinstance(converted, dict):
        raise TypeError(f"{type(value).__name__} does not become a JSON object")
    return converted


def plain_number(value: float | None) -> float | None:
    """A finite number, or None; also of a whole number that is too large for one."""
    try:
        return None if value is None or not math.isfinite(value) else float(value)
    except OverflowError:
        return None


def _plain_scalar(value: str | int | float) -> JsonValue:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return int(value)
    return float(value) if math.isfinite(value) else None
