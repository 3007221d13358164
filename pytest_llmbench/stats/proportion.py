"""Interval of a share: Wilson's score interval (1927, JASA 22), advised by Brown, Cai and DasGupta (2001)."""

from __future__ import annotations

import math

from pytest_llmbench.stats.runs import OPEN, Interval


def wilson_interval(
    successes: int, trials: int, *, level: float = 0.95, effective_n: float | None = None
) -> Interval:
    """Interval of successes / trials; open without trials. Holds at 0 and at ``trials`` successes too.

    ``effective_n``: of how many independent trials these are worth; default as many as there are.
    """
    if not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    if trials == 0:
        return OPEN
    from scipy.special import ndtri

    n = float(trials) if effective_n is None else min(float(trials), max(1.0, effective_n))
    share = successes / trials
    z2 = float(ndtri((1 + level) / 2)) ** 2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = math.sqrt(z2 * (share * (1 - share) / n + z2 / (4 * n * n))) / (1 + z2 / n)
    # The ends touch 0 and 1 exactly there, which rounding must not undo.
    lower = 0.0 if successes == 0 else centre - half
    upper = 1.0 if successes == trials else centre + half
    return Interval(lower, upper)


__all__ = ["wilson_interval"]
