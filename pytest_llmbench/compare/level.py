"""Which of the earlier sessions tell the present level of a metric: the latest ones after its last change,
without those that are far from all others.

A broken night that nobody judged must neither move the level nor widen the interval until nothing is found.
Far is what Rosner's generalised ESD test calls so (1983, Technometrics 25: 165-172), at 1 %, for up to a
quarter of the sessions; with three there is nobody to say which of them is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from pytest_llmbench.model.judgement import FEWEST_SESSIONS, MOST_SESSIONS
from pytest_llmbench.stats.runs import FloatArray

_SIGNIFICANCE = 0.01
_LEAST_SPREAD = 1e-9
"""Spread of logarithms below which all sessions are alike."""


def present_level(logs: Sequence[float]) -> list[int]:
    """The indices of the sessions that count, ascending, of the logarithms of a metric by session, the oldest
    first."""
    from pytest_llmbench.stats.change_points import change_points  # few compare sessions

    found = change_points(logs)
    first = max(found[-1].at if found else 0, len(logs) - MOST_SESSIONS)
    latest = np.asarray(logs[first:], float)
    far = _far(latest)
    return [first + at for at in range(len(latest)) if at not in far]


def _far(values: FloatArray) -> set[int]:
    """The indices of the outliers by the generalised ESD test."""
    from scipy.special import stdtrit

    count, left = len(values), list(range(len(values)))
    removed: list[int] = []
    outliers = 0
    for step in range(1, count // (FEWEST_SESSIONS + 1) + 1):
        own = values[left]
        spread = float(own.std(ddof=1))
        if spread < _LEAST_SPREAD:
            break
        distances = np.abs(own - own.mean()) / spread
        farthest = int(distances.argmax())
        removed.append(left.pop(farthest))
        rest = count - step + 1
        t = float(stdtrit(rest - 2, 1 - _SIGNIFICANCE / (2 * rest)))
        if distances[farthest] > (rest - 1) * t / math.sqrt((rest - 2 + t * t) * rest):
            outliers = step
    return set(removed[:outliers])
