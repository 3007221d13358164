"""Which commit changed a figure, when every measurement of it is noisy: a bisection by probabilities.

Commits stand in a line from the good one, 0, to the bad one. The change came with commit k, or there is none
that is worth finding. With y the logarithm of a figure, each measurement of commit i is

    y ~ N(m, s²)  for i < k,      N(m + d, s²)  for i ≥ k,

and m, d and s are unknown. They are integrated out: m over the whole line (Gaussian, in closed form), d and s
over grids, d flat on its logarithm; every k is as likely as any other beforehand. The result is the
probability of every k, given all measurements so far. It may be looked at after each of them: a posterior
does not depend on why one stopped. The next commit is the one that tells most: whose figure the hypotheses
that are left foresee most differently, by the variance of what they foresee. While levels are known that is
the median of k; where the doubt is about a level, it is a commit of that level. Probabilistic bisection
(Horstein 1963, IEEE Transactions on Information Theory 9; Waeber, Frazier and Henderson 2013, SIAM Journal on
Control and Optimization 51), with answers of unknown reliability.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
NO_CHANGE: Final = 0.2
"""Probability beforehand that there is no change: who bisects has seen one."""
_FEWEST_OF_ENDS = 2
"""Measurements of the good and of the bad commit before anything is concluded."""
_USUAL_NOISE, _ITS_SPREAD = 0.03, 1.0
"""Noise of a run as a share of its figure, beforehand: about 3 %, two thirds of all within a factor of e."""
_NOISES: Final = np.geomspace(0.001, 0.4, 36)
_WEIGHTS: Final = -0.5 * (np.log(_NOISES / _USUAL_NOISE) / _ITS_SPREAD) ** 2
_LARGEST, _SIZES = 1.5, 40
_TINY = 1e-300
_AS_TELLING = 0.85
"""A commit that is built already is measured instead of the most telling one, if it tells so much of it."""


@dataclass(frozen=True)
class Suspects:
    """What the measurements say."""

    probability: FloatArray
    """The probability of each commit k = 1 … n to be the one; entry 0 is 0."""
    none: float
    """The probability of no change at all."""
    telling: FloatArray
    """How differently the hypotheses foresee the figure of each commit."""

    def likeliest(self, groups: Iterable[range]) -> tuple[range, float]:
        """The most probable of the groups of commits that cannot be told apart, and its probability."""
        return max(((group, self._of(group)) for group in groups), key=lambda found: found[1])

    def _of(self, group: range) -> float:
        return float(self.probability[group.start : group.stop].sum())


class Bisection:
    """Measurements of commits 0 … ``last``, and what they say. ``least``: the smallest change of the
    logarithm that is worth finding; ``rises``: whether the figure of the bad commit is the larger one."""

    def __init__(self, last: int, *, least: float, rises: bool) -> None:
        self.last, self._sign = last, 1.0 if rises else -1.0
        self._sizes = np.geomspace(least, max(_LARGEST, 2 * least), _SIZES)
        self._count, self._sum = np.zeros(last + 1), np.zeros(last + 1)
        self._values: list[float] = []

    def add(self, commit: int, value: float) -> None:
        """A measurement of a commit; ``value`` is above zero."""
        y = self._sign * math.log(value)
        self._count[commit] += 1
        self._sum[commit] += y
        self._values.append(y)

    @property
    def count(self) -> int:
        return len(self._values)

    @property
    def both_ends(self) -> bool:
        """Whether both ends are measured often enough to conclude anything."""
        return bool(self._count[[0, self.last]].min() >= _FEWEST_OF_ENDS)

    def suspects(self) -> Suspects:
        """The probabilities, given the measurements so far; at least one of them."""
        total, values = self.count, np.asarray(self._values)
        centre = float(values.mean())
        squares = float(((values - centre) ** 2).sum())
        # Behind the change: how many, and the sum of their distances from the mean. All k between the same
        # measured commits have the same.
        there = np.flatnonzero(self._count)
        distances = self._sum[there] - centre * self._count[there]
        after = np.append(np.cumsum(self._count[there][::-1])[::-1], 0.0)
        beyond = np.append(np.cumsum(distances[::-1])[::-1], 0.0)
        d = self._sizes
        left = squares - 2 * d * beyond[:, None] + d**2 * (after * (1 - after / total))[:, None]
        changed = self._of_noise(np.maximum(left, 0.0))
        same = self._of_noise(np.array(squares))
        top = max(float(changed.max()), float(same.max()))
        likelihood = np.exp(changed - top).sum(axis=0)
        segment = np.searchsorted(there, np.arange(1, self.last + 1))
        of_each = likelihood.sum(axis=1)[segment] * (1 - NO_CHANGE) / (self.last * _SIZES)
        of_none = float(np.exp(same - top).sum()) * NO_CHANGE
        whole = float(of_each.sum()) + of_none
        share = of_each / whole
        size = (likelihood @ d / np.maximum(likelihood.sum(axis=1), _TINY))[segment]
        telling = _variance_explained(share, size, -size * after[segment] / total)
        return Suspects(np.concatenate([[0.0], share]), of_none / whole, telling)

    def _of_noise(self, left: FloatArray) -> FloatArray:
        """Logarithm of the likelihood by the squares that are left, the level integrated out, for each noise
        in the first dimension."""
        noise = _NOISES.reshape(-1, *[1] * left.ndim)
        weight = _WEIGHTS.reshape(noise.shape)
        return np.asarray(weight - (self.count - 1) * np.log(noise) - left / (2 * noise**2))

    def next_commit(
        self, found: Suspects | None, skipped: Collection[int] = (), built: Collection[int] = ()
    ) -> int:
        """The commit to measure next: the ends until they are known to differ, then the one whose side is
        least known. ``found``: what is known; ``skipped``: cannot be measured; ``built``: at hand."""
        ends = (0, self.last)
        few = min(ends, key=lambda end: self._count[end])
        if found is None or self._count[few] < _FEWEST_OF_ENDS:
            return few
        able = [commit for commit in range(self.last + 1) if commit not in skipped]
        best = max(able, key=lambda commit: found.telling[commit])
        near = [commit for commit in able if commit in built]
        at_hand = max(near, key=lambda commit: found.telling[commit], default=best)
        return at_hand if found.telling[at_hand] >= _AS_TELLING * found.telling[best] else best


def _variance_explained(share: FloatArray, size: FloatArray, level: FloatArray) -> FloatArray:
    """The variance over the hypotheses k = 1 … of what they foresee of commits 0 …: ``level``, and ``size``
    more from k on; no change foresees 0, the mean."""
    rise = np.concatenate([[0.0], np.cumsum(share * size)])
    mean = float(share @ level) + rise
    square = np.concatenate([[0.0], np.cumsum(share * size * (2 * level + size))])
    return np.asarray(float(share @ level**2) + square - mean**2)
