"""Poisson arrivals: independent exponential gaps."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt


def poisson_gaps_s(rate: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """``count`` inter-arrival times in seconds, exponential with mean 1/``rate`` (METHODOLOGY §3).

    Exactly the first ``count`` results of ``random.Random(seed).expovariate(rate)``, so that anybody can
    rebuild the schedule with a Python interpreter alone.
    """
    draw = random.Random(seed).expovariate
    return np.fromiter((draw(rate) for _ in range(count)), dtype=np.float64, count=count)


__all__ = ["poisson_gaps_s"]
