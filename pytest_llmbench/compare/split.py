"""What a change of the mean end-to-end latency is made of: queue, prefill, decode, and what is outside.

Of each run, in ms: queue and prefill by the engine, for each request where its replies tell them, else as
Σ seconds / Σ requests of its metrics page; decode by the page where it counts that, else from the first
output to the last one as they arrive here; outside is what is left of the mean end-to-end latency: network,
HTTP, tokenization, gateways. So the parts add up, of a run and of the change. Each change is the mean of the
differences of the pairs, with Student's t over them.

A page counts every request of the engine. It is believed only where it counted as many as this load had, give
or take 2 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from pytest_llmbench.metrics.latency import e2e_ms, ttft_any_ms
from pytest_llmbench.metrics.server_side import prefill_ms, queue_wait_ms
from pytest_llmbench.model.cells import Amount, Figure, Row
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import EngineReadings, Observation
from pytest_llmbench.model.result import Table
from pytest_llmbench.stats.spectral import student_quantile

PARTS: Final = ("queue", "prefill", "decode", "outside")
TOLERANCE: Final = 0.02
"""Share of the requests that a page may have counted more or less, and of the latency that its parts may
exceed."""
_FEWEST = 2


def parts_of(seen: Observation) -> dict[str, float] | str:
    """The parts of the mean end-to-end latency of a load in ms, or why they are not known."""
    whole = e2e_ms(seen.records)
    if not len(whole):
        return "no request has ended well"
    found: dict[str, float] = {}
    for name, series, own in (
        ("queue", "queue_wait", queue_wait_ms(seen.records)),
        ("prefill", "prefill", prefill_ms(seen.records)),
    ):
        mean = float(own.mean()) if len(own) == len(whole) else _by_page(seen.engine, series, len(whole))
        if isinstance(mean, str):
            return mean
        found[name] = mean
    decode = _by_page(seen.engine, "decode", len(whole))
    first = ttft_any_ms(seen.records)
    if isinstance(decode, str):
        decode = float(whole.mean() - first.mean())
    found["decode"] = decode
    found["outside"] = float(whole.mean()) - math.fsum(found.values())
    if found["outside"] < -TOLERANCE * float(whole.mean()):
        return "what the engine reports is longer than the latency that was measured"
    return found


def _by_page(readings: EngineReadings | None, series: str, requests: int) -> float | str:
    """The mean of a histogram of the page in ms, or why there is none."""
    if readings is None:
        return "there is no metrics page of the engine"
    seconds, count = readings.grown(f"{series}_s"), readings.grown(f"{series}_count")
    if seconds is None or not count:
        return f"the engine's metrics page has no {series.replace('_', ' ')} times"
    if abs(count - requests) > TOLERANCE * requests:
        return f"the engine's metrics page counted {count:.0f} requests, and this load had {requests}"
    return 1e3 * seconds / count


def split(baseline: Sequence[Observation], candidate: Sequence[Observation], level: float) -> Table | str:
    """The table of a change, from loads measured in pairs, or why there is none."""
    pairs = list(zip(baseline, candidate, strict=False))
    if len(pairs) < _FEWEST:
        return f"{_FEWEST} pairs of runs are needed"
    if any(a.plan.load != b.plan.load for a, b in pairs) or len({a.plan.load for a, _ in pairs}) > 1:
        return "the runs are not of one load"
    sides: tuple[list[Mapping[str, float]], list[Mapping[str, float]]] = [], []
    for pair in pairs:
        for side, seen in zip(sides, pair, strict=True):
            found = parts_of(seen)
            if isinstance(found, str):
                return found
            side.append(found)
    rows = [_row(part.capitalize(), part, sides, level) for part in PARTS]
    whole = tuple([{"e2e": math.fsum(run.values())} for run in side] for side in sides)
    rows.append(_row("End-to-end latency, mean", "e2e", (whole[0], whole[1]), level))
    columns = ("Part", "Baseline", "Candidate", "Change")
    return Table("change_split", "What the Change Is Made Of", columns, tuple(rows))


def _row(title: str, part: str, sides: Sequence[Sequence[Mapping[str, float]]], level: float) -> Row:
    before, now = (np.array([run[part] for run in side]) for side in sides)
    change = now - before
    mean, count = float(change.mean()), len(change)
    half = student_quantile(count - 1, level) * float(change.std(ddof=1)) / math.sqrt(count)
    found = Estimate(mean, mean - half, mean + half, level, count, "Student's t on paired differences", "ms")
    return (
        title,
        Amount(float(before.mean()), "ms"),
        Amount(float(now.mean()), "ms"),
        Figure(f"change_{part}", found, "both"),
    )
