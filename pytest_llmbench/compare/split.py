"""What a change of a mean latency is made of: queue, prefill, decode, and what is outside of the engine.

Of each run, in ms: queue and prefill by the engine, for each request where its replies tell them, else as
Σ seconds / Σ requests of its metrics page; decode by the page where it counts that, else from the first
output to the last one as they arrive here. Outside is what is left of the mean latency: network, HTTP,
tokenization, gateways, and whatever the engine does not tell. So the parts add up, of a run and of the
change. The end-to-end latency has all four parts; the time to the first output has no decode.

Each change has an interval of Student's t: of the differences of pairs (A/B), else Welch's of two groups of
runs.

A page counts every request of the engine. It is believed only where it counted as many as this load had, give
or take 2 %; llama.cpp's, which counts no requests, where it generated as many tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from pytest_llmbench.compare.regression import error_of_difference
from pytest_llmbench.metrics.latency import e2e_ms, ttft_any_ms
from pytest_llmbench.metrics.server_side import prefill_ms, queue_wait_ms
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import Comparison, ComparisonVerdict
from pytest_llmbench.model.numbers import Amount, Figure, Row, number
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import Table, TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.spectral import student_quantile

Parts = Mapping[str, Sequence[float | None]]
"""Name → its mean in each run in ms; None where it is not told. ``queue`` and ``prefill``; ``decode``;
``ttft``, the time to the first output of any kind; ``e2e``."""

WHOLES: Final = {
    "e2e": ("queue", "prefill", "decode"),
    "ttft": ("queue", "prefill"),
}
"""Latency → its parts but for what is outside."""
TOLERANCE: Final = 0.02
"""Share of the requests that a page may have counted more or less, and of the latency that its parts may
exceed."""
_TOLD = ("queue", "prefill")
_TITLES = {
    "e2e": ("change_split", "What the Change Is Made Of", "End-to-end latency, mean"),
    "ttft": ("change_split_ttft", "What the Change of TTFT Is Made Of", "Time to first output, mean"),
}
_FEWEST = 2


def parts_of(seen: Observation) -> dict[str, float | None] | str:
    """The parts of the mean latencies of a load in ms (:data:`Parts`), or why they are not known."""
    whole, first = e2e_ms(seen.records), ttft_any_ms(seen.records)
    if not len(whole) or not len(first):
        return "no request has ended well"
    found: dict[str, float | None] = {}
    for name, series, own in (
        ("queue", "queue_wait", queue_wait_ms(seen.records)),
        ("prefill", "prefill", prefill_ms(seen.records)),
    ):
        mean = float(own.mean()) if len(own) == len(whole) else _by_page(seen, series, len(whole))
        if isinstance(mean, str):
            return mean
        found[name] = mean
    if all(found[name] is None for name in _TOLD):
        none = "there is no metrics page of the engine"
        return none if seen.engine is None else "the engine tells neither queue nor prefill times"
    decode = _by_page(seen, "decode", len(whole))
    found["decode"] = decode if isinstance(decode, float) else float(whole.mean() - first.mean())
    found["ttft"], found["e2e"] = float(first.mean()), float(whole.mean())
    return found


def _by_page(seen: Observation, series: str, requests: int) -> float | str | None:
    """The mean over the requests of what the page counts in ms; None where it does not, or why it is not
    believed."""
    if seen.engine is None or (seconds := seen.engine.grown(f"{series}_s")) is None:
        return None
    count, unit, expected = seen.engine.grown(f"{series}_count"), "requests", float(requests)
    if count is None:
        tokens = seen.records.output_tokens[seen.records.ok]
        count, unit = seen.engine.grown("generated_tokens"), "tokens"
        expected = float(tokens.sum()) if (tokens >= 0).all() else math.nan
    if count is None or not abs(count - expected) <= TOLERANCE * expected:
        told = "no" if count is None else number(count)
        return f"the engine's metrics page counted {told} {unit}, and this load had {number(expected)}"
    return 1e3 * seconds / requests


def parts_by_run(seen: Sequence[Observation]) -> Parts | str:
    """The parts of each measured run, or why they are not known of some."""
    runs = [run for run in seen if run.plan.phase is Phase.MEASURE]
    if not runs:
        return "nothing was measured"
    if any(run.plan.load != runs[0].plan.load for run in runs):
        return "the runs are not of one load"
    found: list[dict[str, float | None]] = []
    for run in runs:
        parts = parts_of(run)
        if isinstance(parts, str):
            return parts
        found.append(parts)
    return {name: [parts[name] for parts in found] for name in found[0]}


def saved_parts(saved: Sequence[Parts | None]) -> Parts | str:
    """The parts of the runs of saved sessions, or why there are none. None: of a version that kept none."""
    known = [parts for parts in saved if parts]
    if not known:
        kept = any(parts is not None for parts in saved)
        none = "the baseline is of a version that kept no parts: save it again"
        return "the engine told no parts when the baseline was saved" if kept else none
    return {name: [value for parts in known for value in parts.get(name, ())] for name in known[0]}


def with_split(
    result: TestResult,
    found: Sequence[Comparison],
    sides: tuple[Parts | str, Parts | str],
    *,
    paired: bool,
    level: float,
) -> TestResult:
    """The result with what its change is made of, where something got worse: that of the time to the first
    output where a figure of TTFT did, else that of the end-to-end latency; or with a note why not. ``sides``:
    baseline and candidate."""
    worse = [each.metric for each in found if each.verdict is ComparisonVerdict.REGRESSED]
    for whole in WHOLES:
        if not any(name.startswith("ttft") == (whole == "ttft") for name in worse):
            continue
        parts = split(whole, *sides, paired=paired, level=level)
        if isinstance(parts, str):
            return replace(result, notes=(*result.notes, Note.of("not_split", why=parts)))
        result = replace(result, tables=(*result.tables, parts))
    return result


def split(
    whole: str, baseline: Parts | str, candidate: Parts | str, *, paired: bool, level: float
) -> Table | str:
    """The table of a change of the latency ``whole``, or why there is none. ``paired``: run i of both sides
    were measured together."""
    if isinstance(candidate, str) or isinstance(baseline, str):
        return candidate if isinstance(candidate, str) else str(baseline)
    counts = len(baseline[whole]), len(candidate[whole])
    if min(counts) < _FEWEST:
        return f"{_FEWEST} runs of each side are needed"
    most = min(counts) if paired else None
    names = [name for name in WHOLES[whole] if None not in baseline[name] and None not in candidate[name]]
    untold = [name for name in WHOLES[whole] if name not in names]
    if len(untold) == len(_TOLD):
        return "the engine told other parts of the baseline than of this session"
    before, now = (
        {name: np.array(side[name][:most], dtype=np.float64) for name in (*names, whole)}
        for side in (baseline, candidate)
    )
    for side in (before, now):
        # To the nanosecond: below it a difference is that of additions.
        side["outside"] = np.round(side[whole] - np.sum([side[name] for name in names], axis=0), 6)
        if (side["outside"] < -TOLERANCE * side[whole]).any():
            return "what the engine reports is longer than the latency that was measured"
    beyond = f"Outside, and {' and '.join(untold)}, which the engine does not tell" if untold else "Outside"
    table, title, mean = _TITLES[whole]
    titles = {**{name: name.capitalize() for name in names}, "outside": beyond, whole: mean}
    rows = tuple(
        _row(told, name, (before[name], now[name]), paired=paired, level=level)
        for name, told in titles.items()
    )
    return Table(table, title, ("Part", "Baseline", "Candidate", "Change"), rows)


def _row(title: str, part: str, sides: tuple[FloatArray, FloatArray], *, paired: bool, level: float) -> Row:
    before, now = sides
    mean = float(now.mean() - before.mean())
    error, freedom = error_of_difference(before, now, paired=paired)
    method = "Student's t on paired differences" if paired else "Welch's t on the runs"
    half = student_quantile(freedom, level) * error if error else 0.0
    found = Estimate(mean, mean - half, mean + half, level, len(now), method, "ms")
    return (
        title,
        Amount(float(before.mean()), "ms"),
        Amount(float(now.mean()), "ms"),
        Figure(f"change_{part}", found, "both"),
    )
