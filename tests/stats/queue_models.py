"""Series of known truth: AR(1) and the waiting times of an M/M/1 queue."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]


def ar1(correlation: float, n: int, random: np.random.Generator) -> Series:
    """Stationary AR(1) with standard normal marginals."""
    from scipy.signal import lfilter

    noise = random.normal(size=n) * math.sqrt(1 - correlation**2)
    noise[0] /= math.sqrt(1 - correlation**2)
    return np.asarray(lfilter([1.0], [1.0, -correlation], noise))


def mm1_waits(load: float, n: int, random: np.random.Generator) -> Series:
    """Waiting times of successive customers in a stationary M/M/1 queue, service rate 1 (Lindley)."""
    first = random.exponential(1 / (1 - load)) if random.random() < load else 0.0
    steps = random.exponential(1.0, n - 1) - random.exponential(1 / load, n - 1)
    walk = np.concatenate(([first], first + np.cumsum(steps)))
    return walk - np.minimum(0.0, np.minimum.accumulate(walk))


def mm1_mean(load: float) -> float:
    return load / (1 - load)


def mm1_percentile(load: float, q: float) -> float:
    """P(W > t) = ρ exp(-(1 - ρ) t)."""
    beyond = 1 - q / 100
    return 0.0 if beyond >= load else math.log(load / beyond) / (1 - load)
