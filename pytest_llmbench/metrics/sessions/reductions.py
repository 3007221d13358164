"""What the prefix cache takes off TTFT, by the number of the turn."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_llmbench.metrics.differences import change
from pytest_llmbench.metrics.sessions.turns import TurnClass, latencies
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import Records

_REDUCED = ("p50", "p95", "p99")


def ttft_reductions(
    without: Records, with_cache: Records, classes: Iterable[TurnClass], *, level: float = 0.95
) -> dict[str, Estimate]:
    """``ttft_reduction`` of all turns and ``turn_ttft_reduction[c]``: 1 - TTFT with the cache / without, at
    P50, P95 and P99, of records that hold the same turns.

    The unit is the session, in both; that they are the same sessions makes the intervals wider than they need
    be, never narrower.
    """
    found: dict[str, Estimate] = {}
    for each in (None, *classes):
        name = "ttft_reduction" if each is None else f"turn_ttft_reduction[{each}]"
        family = "ttft" if each is None else f"turn_ttft[{each}]"
        before, after = (latencies([arm], "ttft", each, level=level) for arm in (without, with_cache))
        for statistic in _REDUCED:
            pair = before[f"{family}.{statistic}"], after[f"{family}.{statistic}"]
            found[f"{name}.{statistic}"] = change(*pair, "reduction")
    return found
