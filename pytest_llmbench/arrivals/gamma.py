"""Bursty arrivals: independent gamma gaps."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt


def gamma_gaps_s(rate: float, burstiness: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """``count`` inter-arrival times in seconds, gamma with shape k = ``burstiness`` and mean 1/``rate``.

    Coefficient of variation 1/√k: 1 is Poisson, below 1 is burstier (the draft's bursty arrivals), above 1
    is more regular. Exactly the first results of ``random.Random(seed).gammavariate(k, 1 / (k * rate))``.
    """
    draw = random.Random(seed).gammavariate
    scale = 1.0 / (burstiness * rate)
    return np.fromiter((draw(burstiness, scale) for _ in range(count)), dtype=np.float64, count=count)


__all__ = ["gamma_gaps_s"]
