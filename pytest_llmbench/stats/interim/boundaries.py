"""Looking at a sample while it grows, without being wrong more often than one look would be.

Who looks again and again at an interval and stops at the first that excludes the limit is wrong far more
often than its level says (Armitage, McPherson and Rowe 1969, JRSS A 132). Lan and DeMets (1983, Biometrika
70) spread the error over the looks: by the time a share t of the largest sample is there, α(t) of it may be
spent. Here α(t) = 4 - 4 Φ(z / √t), z the upper α/4 point of the normal law: O'Brien and Fleming's type,
which spends little while little is known, of the limit and of the dependence.

The boundary z_k makes P(|Z_k| ≥ z_k, beyond no earlier boundary) = α(t_k) - α(t_{k-1}), where Z_k √t_k is the
Brownian motion that sums over requests behave like: counts beyond a limit, and totals. The integral is done
step by step, as Armitage, McPherson and Rowe did. Intervals of level 2 Φ(z_k) - 1 then hold at all looks
together (repeated confidence intervals, Jennison and Turnbull 1989, JRSS B 51), so the first one that
excludes the limit decides. Of dependent requests t is still the share of requests: what each is worth
cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.runs import FloatArray

BATCHES = 10
"""Number of batches of equal length whose means show dependence that reaches further than autocorrelations
tell."""
MOST_LOOKS = 100
LEAST_TAIL = 1e-10
"""The smallest tail of a boundary; one with a smaller tail counts as none, as no sample reaches it."""
_EARLY = 1.3
_NODES = 256
_BISECTIONS = 50


class PlannedLook(NamedTuple):
    n: int
    """Number of requests looked at."""
    tail: float
    """Error on each side: the level of the interval is 1 - 2 tail."""


def spent(share: float, alpha: float) -> float:
    """α(t): the error, both sides together, that may have been spent at ``share`` of the largest sample."""
    if share >= 1:
        return alpha
    from scipy.special import ndtr, ndtri

    return float(4 * ndtr(ndtri(alpha / 4) / math.sqrt(share))) if share > 0 else 0.0


def spent_sooner(share: float, alpha: float) -> float:
    """α t²: spends more at early looks (Kim and DeMets 1987, Biometrika 74), for looks at a few runs. Where
    Student's t has few degrees of freedom, O'Brien and Fleming's would decide nothing before half of them."""
    return alpha * min(1.0, share) ** 2


@lru_cache(maxsize=64)
def planned_looks(
    most: int,
    every: int,
    alpha: float,
    *,
    closing: int | None = None,
    spending: Callable[[float, float], float] = spent,
) -> tuple[PlannedLook, ...]:
    """Looks after each ``every`` of at most ``most`` requests, the last at ``most``; 100 of them at most, so
    a very long load is looked at less often. ``closing``: the load ended there; what error is left is spent.
    ``spending``: the error that may have been spent at a share of the largest sample.
    """
    step = max(every, math.ceil(most / MOST_LOOKS))
    last = most if closing is None else closing
    sizes = [*range(step, last, step), last]
    shares = [n / most for n in sizes]
    allowed = [spending(share, alpha) for share in shares[:-1]] + [alpha]
    found = zip(sizes, _tails(shares, allowed), strict=True)
    return tuple(PlannedLook(n, tail) for n, tail in found if tail >= LEAST_TAIL)


def early_tail(tail: float) -> float:
    """The tail of a look that may end a load: its boundary is a third farther out.

    The spending is right for errors that are normal. A short prefix of a busy queue is now and then a quiet
    one, and nothing in it says so.
    """
    from scipy.special import ndtr, ndtri

    return max(LEAST_TAIL, float(ndtr(_EARLY * ndtri(tail))))


def _tails(shares: Sequence[float], allowed: Sequence[float]) -> list[float]:
    """The upper tail Φ(-z_k) of each boundary."""
    from scipy.special import ndtr

    at, weights = _quadrature()
    nodes, mass, before, used = np.zeros(1), np.ones(1), 0.0, 0.0
    tails = []
    for share, total in zip(shares, allowed, strict=True):
        spread = math.sqrt(share - before)
        low, high = 0.0, 40.0 * math.sqrt(share)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            beyond = float(mass @ (ndtr((nodes - middle) / spread) + ndtr((-middle - nodes) / spread)))
            low, high = (middle, high) if beyond > total - used else (low, middle)
        bound = (low + high) / 2
        fresh = at * bound
        density = np.exp(-0.5 * ((fresh[:, None] - nodes[None, :]) / spread) ** 2) @ mass
        mass = density * weights * bound / (spread * math.sqrt(2 * math.pi))
        nodes, before, used = fresh, share, total
        tails.append(float(ndtr(-bound / math.sqrt(share))))
    return tails


@cache
def _quadrature() -> tuple[FloatArray, FloatArray]:
    """Gauss-Legendre nodes and weights; cached, since computing them takes as long as all looks do."""
    return np.polynomial.legendre.leggauss(_NODES)


def batch_size(series: FloatArray, tail: float) -> float:
    """The effective number of independent values of ``series`` at this ``tail``, by batch means.

    n / τ (z / t)², τ from the means of ten batches (Schmeiser 1982, Operations Research 30), and z / t the
    price of Student's t with nine degrees of freedom for not knowing τ better.
    """
    n, variance = len(series), float(np.var(series))
    length = n // BATCHES
    if length < 1 or variance == 0.0:
        return float(n)
    from scipy.special import ndtri, stdtrit

    means = series[n - BATCHES * length :].reshape(BATCHES, length).mean(axis=1)
    inflation = length * float(np.var(means, ddof=1)) / variance
    price = (float(ndtri(tail)) / float(stdtrit(BATCHES - 1, tail))) ** 2
    return max(1.0, n * price / inflation) if inflation > price else float(n)
