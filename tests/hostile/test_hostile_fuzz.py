"""What the fuzzer begins with and what it has found, by each target once; ``fuzz.py`` runs them for hours."""

from __future__ import annotations

import pytest
from fuzz_targets import TARGETS, begin, with_other_values
from hypothesis import given, settings
from hypothesis import strategies as st

HEADER = b'{"anchor": {"monotonic_ns": 1, "wall_ns": 1}, "schema": "pytest-llmbench/records/1.2"}\n'
LABELLED = TARGETS["records"][1][0].splitlines()[1]
JSON_TARGETS = (
    "report", "baseline", "journal", "calibration", "selftest", "loads", "catalogue",
    "tokenizer", "records", "rows",
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
    begin(target, seeds)


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
    with_other_values(target, seeds)


@pytest.mark.parametrize(("name", "data"), REGRESSIONS)
def test_what_was_found(name: str, data: bytes) -> None:
    TARGETS[name][0](data)
