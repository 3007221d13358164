"""Files of limits beside the tests: written by ``--llm-calibrate``, reviewed like code.

A table for each test, a line for each metric, in the metric's unit; a number, or one for each place::

    [test_first_token]
    "ttft.p50" = 480.0
    output_token_throughput = { h100 = 3800.0, mi300 = 3050.0 }
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import parse_toml, read_bytes
from pytest_llmbench.store.files import write_text

_HEAD = (
    "# Limits by test and metric, in the metric's unit. Written by --llm-calibrate: review them like code.\n"
)


def read_limits(path: Path) -> dict[str, dict[str, Any]]:
    """Test → metric → number, or place → number. SuiteError where the file cannot be read or has another
    form; the numbers themselves are for the markers to check."""
    try:
        found = parse_toml(read_bytes(path))
    except (OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise SuiteError(f"cannot be read: {told}", where=f"limits {path}", remedy=_REMEDY) from None
    loose = [name for name, own in found.items() if not isinstance(own, dict)]
    if loose:
        told = f"{', '.join(loose)} must be inside a table [name_of_the_test]"
        raise SuiteError(told, where=f"limits {path}", remedy=_REMEDY)
    return found


_BARE = re.compile(r"[A-Za-z0-9_-]+")
_REMEDY = "correct it, or let --llm-calibrate write it"


def of_test(every: Mapping[str, Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """The limits of a test by its name, or by that without its parameters; empty without limits."""
    return every.get(name, every.get(name.partition("[")[0], {}))


def write_limits(
    path: Path, test: str, proposed: Mapping[str, float], place: str = ""
) -> tuple[list[str], list[str]]:
    """Put proposed limits of a test into the file, and give the metrics that were written, and those of the
    test for which nothing is proposed.

    A test that is there keeps its choice of metrics. ``place``: whose numbers they are; empty: the numbers
    are for all places.

    :raises SuiteError: what is there cannot be read. StoreError: the file cannot be written.
    """
    every = read_limits(path) if path.exists() else {}
    own = every.setdefault(test, {})
    written = [metric for metric in proposed if metric in own or not own]
    for metric in written:
        number, before = proposed[metric], own.get(metric)
        by_place = before if isinstance(before, dict) else {}
        own[metric] = {**by_place, place: number} if place else number
    tables = []
    for name, limits in every.items():
        told = [f"[{_key(name)}]\n"]
        for metric, value in limits.items():
            if isinstance(value, dict):
                each = ", ".join(f"{_key(place)} = {json.dumps(number)}" for place, number in value.items())
                told.append(f"{_key(metric)} = {{ {each} }}\n")
            else:
                told.append(f"{_key(metric)} = {json.dumps(value)}\n")
        tables.append("".join(told))
    write_text(path, "\n".join([_HEAD, *tables]))
    return written, [metric for metric in own if metric not in proposed]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else json.dumps(name, ensure_ascii=False)
