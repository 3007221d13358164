"""What the fuzzer begins with and what it has found, by each target once; ``fuzz.py`` runs them for hours."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from fuzz_targets import TARGETS
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = b'{"anchor": {"monotonic_ns": 1, "wall_ns": 1}, "schema": "pytest-llmbench/records/1.2"}\n'
LABELLED = TARGETS["records"][1][0].splitlines()[1]
JSON_TARGETS = (
    "report", "baseline", "foreign result", "journal", "calibration", "selftest", "loads", "catalogue",
    "list of tests", "tokenizer", "records", "rows",
)  # fmt: skip
_HERE = "another value"
OTHER_VALUES = (
    b"1e999", b"-1e300", b"NaN", b"1" + b"0" * 5000, b"1" + b"0" * 30, b"-1", b"0", b"true", b"null", b'"x"',
    b'"\\ud83d"', b'"' + b"9" * 5000 + b'"', b"[]", b"{}", b'["x"]', b'{"x": "x"}', b"[" * 60 + b"]" * 60,
    b"[" * 100_000, b'{"$array": [1], "dtype": "' + b"9" * 5000 + b'"}',
)  # fmt: skip
REGRESSIONS: list[tuple[str, bytes]] = [
    ("csv", b"\n" + TARGETS["csv"][1][0]),
    ("records", HEADER.replace(b"1", b"1e999", 1) + LABELLED),
    ("records", HEADER + b"[1, 2]\n" + LABELLED),
    ("records", HEADER + b"[" * 100_000 + b"\n" + LABELLED),
    ("records", HEADER + LABELLED.replace(b'"r"', b"null")),
    ("records", HEADER + LABELLED.replace(b'"index": 0', b'"index": 1e999')),
    ("records", HEADER + LABELLED.replace(b'"index": 0', b'"index": 9223372036854775808')),
    ("report", b'{"a": ' + b"[" * 100_000),
    ("baseline", b"[" * 100_000),
]


@pytest.mark.parametrize("name", TARGETS)
def test_where_it_begins(name: str) -> None:
    target, seeds = TARGETS[name]
    for seed in (*seeds, b"", b"\x00", b"\xff" * 50, b"[" * 100, *(seed[: len(seed) // 2] for seed in seeds)):
        target(seed)


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=30)
@given(place=st.integers(0, 500), put=st.binary(max_size=6), which=st.integers(0, 9))
def test_a_seed_with_bytes_changed(name: str, place: int, put: bytes, which: int) -> None:
    target, seeds = TARGETS[name]
    seed = seeds[which % len(seeds)]
    target(seed[:place] + put + seed[place + len(put) :])


@pytest.mark.parametrize("name", JSON_TARGETS)
def test_a_value_of_another_kind(name: str) -> None:
    """Every value of a file of JSON in turn, or a sample of them, is another."""
    target, seeds = TARGETS[name]
    changed = [each for seed in seeds for each in _with_other_values(seed)]
    for data in random.Random(1).sample(changed, min(120, len(changed))):
        target(data)


def _with_other_values(seed: bytes) -> Iterator[bytes]:
    lines = seed.splitlines()
    for number, line in enumerate(lines):
        content = json.loads(line)
        for place in list(_places(content)):
            told = json.dumps(_replaced(content, place, _HERE)).encode()
            for other in OTHER_VALUES:
                changed = told.replace(json.dumps(_HERE).encode(), other, 1)
                yield b"\n".join([*lines[:number], changed, *lines[number + 1 :]])


def _places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    inner = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content if isinstance(content, list) else ())
    )
    for key, value in inner:
        yield from _places(value, (*path, key))


def _replaced(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    changed = content.copy()
    changed[path[0]] = _replaced(content[path[0]], path[1:], value)
    return changed


@pytest.mark.parametrize(("name", "data"), REGRESSIONS)
def test_what_was_found(name: str, data: bytes) -> None:
    TARGETS[name][0](data)
