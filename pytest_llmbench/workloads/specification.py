"""Checks whether a workload is completely specified (section 4.3.1 of the draft)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_llmbench.model.request import Workload

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
