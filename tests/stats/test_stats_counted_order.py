"""Ranks found by counting are those of the sorted numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pytest_llmbench.stats.counted import CountedOrder, look_up
from pytest_llmbench.stats.percentiles import ordered_percentile, percentile_ranks


class Passes:
    """The numbers some at a time, and how often they have been gone through."""

    def __init__(self, numbers: npt.NDArray[np.int64], at_once: int = 97) -> None:
        self.numbers, self.at_once, self.count = numbers, at_once, 0

    def __call__(self) -> Iterator[npt.NDArray[np.int64]]:
        self.count += 1
        for first in range(0, len(self.numbers), self.at_once):
            yield self.numbers[first : first + self.at_once]
        yield self.numbers[:0]


KINDS: dict[str, tuple[int, Callable[[np.random.Generator], Any]]] = {
    "spread": (2, lambda random: random.lognormal(16, 0.5, 2000)),
    "all alike": (2, lambda random: np.full(2000, 5_000_000)),
    "ties": (2, lambda random: random.integers(0, 3, 2000) * 1_000_000),
    "one number": (2, lambda random: [7]),
    "at the edges of cells": (2, lambda random: random.integers(0, 9, 2000) * 4096 - random.integers(0, 2)),
    "a pause of an hour": (4, lambda random: [*random.integers(0, 10**7, 2000), 3_600 * 10**9]),
    "below zero": (3, lambda random: random.integers(-(10**7), 10**7, 2000)),
    "as far apart as can be": (6, lambda random: [-(2**61), 2**62, *random.integers(0, 10**6, 50)]),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_every_rank(kind: str, seed: int) -> None:
    most, make = KINDS[kind]
    numbers = np.asarray(make(np.random.default_rng(seed)), dtype=np.float64).astype(np.int64)
    expected, passes = np.sort(numbers), Passes(numbers)
    order = CountedOrder(passes, len(numbers), per_unit=1e6)
    # More of them than are looked for at once, and some twice.
    order.look_up([*range(len(numbers)), 0, len(numbers) - 1])
    found = [order[rank] for rank in range(len(numbers))]
    assert found == (expected / 1e6).tolist()
    alone = Passes(numbers, at_once=10_000)
    assert CountedOrder(alone, len(numbers))[-1] == expected[-1]
    assert alone.count <= most


def test_what_was_looked_up_takes_no_further_pass() -> None:
    passes = Passes(np.random.default_rng(1).integers(0, 10**8, 5000))
    order = CountedOrder(passes, 5000)
    qs = (50.0, 90.0, 99.9, 100.0)
    look_up(order, percentile_ranks(len(order), qs))
    assert passes.count == 2
    found = [ordered_percentile(order, q) for q in qs]
    assert passes.count == 2
    assert found == pytest.approx(np.percentile(passes.numbers, qs).tolist())
    # The cells have been counted; only what lies in them is counted anew.
    assert order[1234] == np.sort(passes.numbers)[1234]
    assert passes.count == 3


def test_a_sorted_vector_has_nothing_to_look_up() -> None:
    look_up(np.array([1.0, 2.0]), (0, 1))


@pytest.mark.parametrize("rank", [3, -4])
def test_a_rank_that_there_is_not(rank: int) -> None:
    with pytest.raises(IndexError, match=f"no rank {rank} among 3 numbers"):
        CountedOrder(Passes(np.arange(3)), 3)[rank]
