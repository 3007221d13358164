"""Percentiles of small whole numbers that have only been counted: exact, whatever the number of samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def percentiles_of_counts(counts: npt.NDArray[np.int64], qs: Sequence[float]) -> list[float]:
    """Type 7 percentiles of a sample that has the number i ``counts[i]`` times, at least one of them."""
    reached = np.cumsum(counts)
    n = int(reached[-1]) if len(reached) else 0
    if n == 0:
        raise ValueError("no samples, no percentile")

    def at(rank: int) -> float:
        return float(np.searchsorted(reached, rank, side="right"))

    found = []
    for q in qs:
        rank = (n - 1) * q / 100
        low = math.floor(rank)
        below = at(low)
        found.append(below if rank == low else below + (rank - low) * (at(low + 1) - below))
    return found


def summed_counts(one: npt.NDArray[np.int64], other: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The counts of both samples together."""
    total = np.zeros(max(len(one), len(other)), dtype=np.int64)
    total[: len(one)] += one
    total[: len(other)] += other
    return total
