"""What the figures of one report owe each other: within a test, between its levels, and from test to test."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

Report = Mapping[str, Any]
Metrics = Mapping[str, Mapping[str, Any]]

_PERCENTILES = ("p50", "p90", "p95", "p99", "p99_9")
_ROUNDING = 1e-9
MAXIMUM, CONSTRAINED, TENFOLD = (
    f"{kind}_output_token_throughput" for kind in ("max", "constrained", "tenfold")
)


def contradictions(report: Report) -> list[str]:
    """All that cannot be true at once; empty where the figures agree."""
    tests = {entry["test"]: entry for entry in report["tests"]}
    found = [
        f"{test}: {text}"
        for test, entry in tests.items()
        for metrics in (entry["metrics"], *(level["metrics"] for level in entry["levels"]))
        for text in (*_outside(metrics), *_not_ascending(metrics))
    ]
    found += _maxima(tests["throughput"]["metrics"], "throughput")
    found += _maxima(tests["tradeoff"]["metrics"], "tradeoff")
    found += _between(tests["throughput"]["metrics"], tests["tradeoff"])
    found += _guardrails(tests["guardrail"]["metrics"])
    return found + [f"{test}: {text}" for test, entry in tests.items() for text in _littles_law(entry)]


def _outside(metrics: Metrics) -> Iterator[str]:
    """A figure lies between the ends of its interval."""
    for name, estimate in metrics.items():
        lower, point, upper = _ends(estimate)
        if point is not None and not lower <= point <= upper:
            yield f"{name} is {point}, outside [{lower}, {upper}]"


def _not_ascending(metrics: Metrics) -> Iterator[str]:
    """Percentiles of one distribution; differences of percentiles are none."""
    for family in {name.rpartition(".")[0] for name in metrics}:
        if re.search("overhead|reduction|change|degradation|inflation|ratio", family):
            continue
        points = [metrics.get(f"{family}.{name}", {}).get("point") for name in _PERCENTILES]
        known = [point for point in points if point is not None]
        if known != sorted(known):
            yield f"percentiles of {family} are not ascending: {known}"


def _maxima(metrics: Metrics, test: str) -> Iterator[str]:
    """Nothing constrained is above the maximum."""
    most = _ends(metrics[MAXIMUM])[1]
    for name in (CONSTRAINED, TENFOLD, "operating_point_throughput"):
        point = _ends(metrics[name])[1] if name in metrics else None
        if point is not None and most is not None and point > most * (1 + _ROUNDING):
            yield f"{test}: {name} is {point}, above its maximum of {most}"


def _between(searched: Metrics, tradeoff: Mapping[str, Any]) -> Iterator[str]:
    """A search and a sweep of the same system on the same workload under the same limit."""
    swept: Metrics = tradeoff["metrics"]
    for here, there in ((MAXIMUM, MAXIMUM), (CONSTRAINED, "operating_point_throughput")):
        (low, _, high), (other_low, _, other_high) = _ends(searched[here]), _ends(swept[there])
        if other_low > high or low > other_high:
            yield f"{here} in [{low}, {high}] and, swept, {there} in [{other_low}, {other_high}]"
    highest = _ends(searched[MAXIMUM])[2]
    for level in tradeoff["levels"]:
        carried = _ends(level["metrics"]["output_token_throughput"])[0]
        if level["role"] == "level" and level["passed"] and carried > highest:
            yield f"{level['label']} carries {carried} tok/s, above the maximum's {highest}"


def _guardrails(metrics: Metrics) -> Iterator[str]:
    """Who does more is not faster, beyond what the interval allows."""
    for name, estimate in metrics.items():
        if not re.match(r"(\w+_overhead|throughput_reduction\w*)(\[.*])?(\.p50|\.mean)?$", name):
            continue
        if _ends(estimate)[2] < 0:
            yield f"guardrail: with filters it is faster, {name} is at most {estimate['upper']}"


def _littles_law(entry: Mapping[str, Any]) -> Iterator[str]:
    """Closed loop: in flight = rate * mean time in the system (Little 1961), but for who is cut off by either
    end of the window."""
    for level in entry["levels"]:
        slots, metrics = level["concurrency"], level["metrics"]
        if slots is None or level["n_ok"] < level["n_submitted"] or level["role"] == "burst":
            continue
        rate, lasted_s = metrics["request_throughput"]["point"], metrics["e2e.mean"]["point"] / 1e3
        if abs(rate * lasted_s - slots) > slots * (0.05 + 2 * lasted_s / level["window_s"]):
            yield f"{level['label']}: {slots} in flight are not {rate} req/s of {lasted_s} s each"


def _ends(estimate: Mapping[str, Any]) -> tuple[float, float | None, float]:
    lower, upper = estimate["lower"], estimate["upper"]
    return (-math.inf if lower is None else lower, estimate["point"], math.inf if upper is None else upper)
