"""The arrivals of a load whose rate changes: those of a process of rate 1, on the time that the shape has.

A process of rate 1 that is read on the clock Λ(t), the requests due until t on average, has the rate Λ'(t)
(Çınlar 1975, *Introduction to Stochastic Processes*, 4.7): of a Poisson process that is exactly the Poisson
process of this rate. Λ is made of lines and parabolas, so its inverse is exact too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.stages import Stage, requests_of

FloatArray = npt.NDArray[np.float64]


def offsets_s(stages: Sequence[Stage], gaps: FloatArray, count: int) -> FloatArray:
    """The first ``count`` arrivals in seconds. ``gaps``: those of the process of rate 1, as many as
    :func:`gaps_needed` says.

    A load with an end has the number of its requests. Given their number the arrivals of a Poisson process
    are independent draws, in order; these are the sums of its gaps as shares of the sum of one more.
    """
    whole = requests_of(stages)
    if whole is None:
        return _instants(stages, np.cumsum(gaps)[:count])
    sums = np.cumsum(gaps)
    exact = sum(stage.requests or 0.0 for stage in stages)
    return _instants(stages, (exact * sums / sums[-1])[:count])


def gaps_needed(stages: Sequence[Stage], count: int) -> int:
    """How many gaps ``count`` arrivals take: of a load with an end always those of all."""
    whole = requests_of(stages)
    return count if whole is None else whole + 1


def _instants(stages: Sequence[Stage], due: FloatArray) -> FloatArray:
    """When so many requests are due on average, in seconds: the inverse of Λ."""
    begun = np.cumsum([0.0, *(stage.requests or 0.0 for stage in stages[:-1])])
    which = np.searchsorted(begun, due, side="right") - 1
    at_s, rate = (np.array([getattr(each, name) for each in stages])[which] for name in ("at_s", "rate"))
    slopes = [
        0.0 if each.end_s is None else (each.to_rate - each.rate) / (each.end_s - each.at_s)
        for each in stages
    ]
    own = due - begun[which]
    root = np.sqrt(np.maximum(rate**2 + 2.0 * np.array(slopes)[which] * own, 0.0))
    # rate · x + slope / 2 · x² = own, solved without a difference of near numbers.
    after: FloatArray = np.divide(2.0 * own, rate + root, out=np.zeros_like(own), where=rate + root > 0)
    return np.asarray(at_s + after, dtype=np.float64)
