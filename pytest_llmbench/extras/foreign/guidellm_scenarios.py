"""Scenarios of GuideLLM, flat (to 0.5) or with ``spec``: their levels made flat, for its table of words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import shown
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, list_at, object_at
from pytest_llmbench.extras.foreign.recipes import Recipe, recipes_of
from pytest_llmbench.extras.foreign.tool_words import GUIDELLM
from pytest_llmbench.input_files import parse_json

_OPEN: Final = {"constant": "constant", "async": "constant", "poisson": "poisson"}


def of_guidellm(content: Any, folders: Sequence[Path]) -> Iterator[Recipe]:
    metadata = object_at(content, "metadata", "the scenario")
    name = Fields(object_at(metadata, "labels", "metadata")).text("name") or "scenario"
    spec = object_at(content, "spec", "the scenario") or content
    changes = list_at(content, "benchmarks", "the scenario's ") if "benchmarks" in content else [{}]
    for number, change in enumerate(changes, start=1):
        given = scenario_fields(deepcopy(spec), change)
        own = name if len(changes) == 1 else f"{name}-{number}"
        yield from recipes_of(GUIDELLM, own, given, None, folders)


def scenario_fields(spec: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario without its levels. ``change``: dotted paths, ``constraints[0].count``, with values."""
    for path, value in change.items():
        *steps, last = (int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path))
        place: Any = spec
        try:
            for step in steps:
                place = place[step]
            place[last] = value
        except (LookupError, TypeError):
            raise WrongShapeError(f"benchmarks names {shown(path)}, which spec lacks") from None
    found = {key: value for key, value in spec.items() if not isinstance(value, dict | list)}
    profile = spec.get("profile", spec.get("rate_type", "sweep"))
    profile = profile if isinstance(profile, dict) else {"kind": profile, "rate": spec.get("rate")}
    kind, rate = Fields(profile, "profile").text("kind") or "", profile.get("rate")
    found |= {key: value for key, value in profile.items() if key not in ("kind", "rate")}
    for key in ("profile", "rate_type", "rate", "data"):
        found.pop(key, None)
    if kind in _OPEN:
        found |= {"rate": rate, "arrival": _OPEN[kind]}
    elif kind in ("concurrent", "synchronous"):
        found["streams"] = 1 if kind == "synchronous" else profile.get("streams", rate)
    elif kind != "throughput":
        found[f"profile {kind}"] = True
    for constraint in list_at(spec, "constraints", "spec.") if "constraints" in spec else ():
        found[str(constraint.get("kind"))] = constraint.get("count", constraint.get("duration"))
    found |= object_at(spec, "backend", "spec") if isinstance(spec.get("backend"), dict) else {}
    found.pop("kind", None)
    return found | _data(spec.get("data"))


def _data(data: Any) -> dict[str, Any]:
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if isinstance(data, str) and data.startswith("{"):
        data = parse_json(data)
    elif isinstance(data, str) and "=" in data:
        data = {key.strip(): int(value) if value.strip().isdigit() else value
                for key, _, value in (each.partition("=") for each in data.split(","))}  # fmt: skip
    if not isinstance(data, dict):
        return {f"data {shown(data)}": True}
    buckets = data.get("prefix_buckets")
    if isinstance(buckets, list) and len(buckets) == 1 and isinstance(buckets[0], dict):
        bucket = {key: value for key, value in buckets[0].items() if key != "bucket_weight"}
        data = {key: value for key, value in data.items() if key != "prefix_buckets"} | bucket
    one = {"turns": 1, "kind": "synthetic_text"}
    return {key: value for key, value in data.items() if one.get(key) != value}
