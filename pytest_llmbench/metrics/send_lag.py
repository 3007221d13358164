"""How late an open loop may send before it is none: the limits that validity and audit share (AMB-28)."""

from __future__ import annotations

LAG_FLOOR_NS = 10_000_000
"""P99 of the send lag may reach max(10 ms, 0.1 / rate)."""
GROWTH_SHARE = 0.25
"""The share of that limit by which the median lag may grow beyond twice what it was. Near saturation every
pass of the loop takes longer, which is not falling behind; a generator that falls behind does so without
end."""
FEWEST_FOR_GROWTH = 100
"""Requests of a run whose first and last tenth can be told apart from a moment's disturbance."""


def lag_limit_ns(rate: float) -> float:
    """The lag that P99 may reach at ``rate`` requests per second."""
    return max(float(LAG_FLOOR_NS), 1e8 / rate)


def growth_limit_ns(first_ns: float, rate: float) -> float:
    """The median lag that the last tenth may have, by that of the first tenth."""
    return 2 * first_ns + GROWTH_SHARE * lag_limit_ns(rate)
