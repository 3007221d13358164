"""Fairness between requests and between classes of requests (section 5.6.4, AMB-08 to AMB-10).

Only requests that ended ``ok`` enter (AMB-37); one that starved until it timed out is a failure and shows in
the completion rate of its class.

Between classes of sessions the section is read with the session in place of the request: turns of one session
depend on each other, so every figure is made of one value for each, in the order in which they began. A
session that was cut off shows in the completion rate too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.metrics.differences import change, independent_changes
from pytest_llmbench.metrics.latency import backlog_among, e2e_ms, per_request, ttft_ms
from pytest_llmbench.metrics.ratios import share_estimate
from pytest_llmbench.metrics.session_figures import latencies, ranks
from pytest_llmbench.metrics.summary import of_quantiles
from pytest_llmbench.model.draft import STARVATION_FACTOR
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.records import MISSING, BoolColumn, Records
from pytest_llmbench.stats import fairness as statistics
from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.proportion import share_of
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, spread

WaitSource = Literal["server queue wait", "TTFT"]
TAILS = ("p50", "p95", "p99")
_NS_PER_MS = 1e6


class Waits(NamedTuple):
    source: WaitSource
    by_class: dict[str, list[FloatArray]]
    """Class → its waits in ms, one vector per run."""


def by_class(
    runs: Sequence[Records], measure: Callable[[Records], FloatArray]
) -> dict[str, list[FloatArray]]:
    """``measure`` of the requests of each class, one vector per run; classes in order of first appearance."""
    labels = [np.array(run.class_label, dtype=object) for run in runs]
    names = dict.fromkeys(str(label) for own in labels for label in own)
    return {
        name: [measure(run.select(own == name)) for run, own in zip(runs, labels, strict=True)]
        for name in names
    }


def normalised_latency_ms(records: Records) -> FloatArray:
    """x = E2E / output tokens, ms per token (AMB-09), of requests with an output token count."""
    counted = _counted(records)
    return np.asarray(e2e_ms(counted) / counted.output_tokens, dtype=np.float64)


def _counted(records: Records) -> Records:
    return records.select(
        records.ok
        & (records.output_tokens > 0)
        & (records.submitted_ns != MISSING)
        & (records.last_content_ns != MISSING)
    )


def waits(runs: Sequence[Records]) -> Waits:
    """The wait of each successful request: the server's queue wait if all of them have one, else TTFT for all
    (AMB-10)."""
    known = [run.queue_wait_ns[run.ok] != MISSING for run in runs]
    if any(map(len, known)) and all(bool(own.all()) for own in known):
        return Waits("server queue wait", by_class(runs, _queue_wait_ms))
    return Waits("TTFT", by_class(runs, ttft_ms))


def starvation_rate(
    class_waits: Samples, *, factor: float = STARVATION_FACTOR, level: float = 0.95
) -> Estimate:
    """Share of a class's waits that are longer than ``factor`` times their median."""
    return share_estimate(statistics.starvation(class_waits, factor=factor, level=level), level, "no samples")


def inflation(
    mixed: Samples, isolated: Samples, *, name: str = "ttft_inflation", level: float = 0.95
) -> dict[str, Estimate]:
    """``{name}.p50``, ``.p95``, ``.p99`` of one class: its TTFT in the mix / its TTFT alone."""
    return independent_changes(name, isolated, mixed, "ratio", statistics=TAILS, level=level)


def jain_index(runs: Sequence[Records], *, level: float = 0.95) -> Estimate:
    """J over the normalised latencies of all successful requests of the mix (AMB-09)."""
    counted = [_counted(run) for run in runs]
    waited = backlog_among(runs, [run.submitted_ns for run in counted])
    if waited is not None:
        tokens = [run.output_tokens for run in counted if len(run)]
        waited = waited._replace(waits=tuple(w / t for w, t in zip(waited.waits, tokens, strict=True)))
    return jain_index_of([normalised_latency_ms(run) for run in runs], level=level, waited=waited)


def jain_index_of(values: Samples, *, level: float = 0.95, waited: Backlog | None = None) -> Estimate:
    """Jain's index J of values, one vector per run, in their order in time. ``waited``: what each waited for
    a slot, in the unit of the values."""
    samples = as_runs(values)
    every = pooled(samples)
    point = statistics.jain_index(every) if len(every) else None
    if point is None:
        return Estimate.undefined(unit="ratio", method="no samples", level=level, n=len(every))
    of = statistics.jain_spread(samples)
    if of is None or of.worth < FEWEST_EFFECTIVE:
        worth = len(every) if of is None else of.worth
        method = f"no interval at effective n={math.floor(worth)}"
        required = math.ceil(FEWEST_EFFECTIVE * len(every) / worth)
        return _estimate(point, OPEN, level, len(every), method, required)
    interval = statistics.jain_interval(samples, level=level, of=of, backlog=waited)
    method = f"{of_quantiles(of)} at effective n={math.floor(of.worth)}"
    return _estimate(point, interval, level, len(every), method)


def class_jain_index(
    mixed: Mapping[str, Samples], isolated: Mapping[str, Samples], *, seed: int, level: float = 0.95
) -> Estimate:
    """J over the classes' mean slowdowns: mean TTFT in the mix / mean TTFT alone (AMB-09)."""
    arms = {name: (as_runs(mixed[name]), as_runs(isolated.get(name, ()))) for name in mixed}
    n = sum(len(run) for pair in arms.values() for arm in pair for run in arm)
    lacking = [name for name, pair in arms.items() if not all(pair) or not pooled(pair[1]).mean() > 0]
    if lacking or not arms:
        reason = f"no TTFT in the mix or alone: {', '.join(lacking) or 'no class'}"
        return Estimate.undefined(unit="ratio", method=reason, level=level, n=n)
    slowdowns = [float(pooled(mix).mean() / pooled(alone).mean()) for mix, alone in arms.values()]
    point = statistics.jain_index(np.array(slowdowns))
    if point is None:
        return Estimate.undefined(unit="ratio", method="no slowdown", level=level, n=n)
    found = [[(float(pooled(arm).mean()), spread(arm)) for arm in pair] for pair in arms.values()]
    worth = min(1.0 if of is None else of.worth for pair in found for _, of in pair)
    if worth < FEWEST_EFFECTIVE:
        method = f"no interval at effective n={math.floor(worth)} of a class"
        return _estimate(point, OPEN, level, n, method, max(n + 1, math.ceil(FEWEST_EFFECTIVE * n / worth)))
    random = np.random.default_rng(seed)
    drawn = [statistics.drawn_ratio(pair, level, random) for pair in found]
    if not all(len(own) for own in drawn):
        return _estimate(point, OPEN, level, n, "no interval: the run spans too few memories of a class")
    freedom = min(of.freedom for pair in found for _, of in pair if of is not None)
    interval = statistics.jain_of_means_interval(drawn, freedom=freedom, level=level)
    method = f"slowdowns drawn from their errors, t with {freedom:.0f} degrees of freedom"
    return _estimate(point, interval, level, n, method)


def _queue_wait_ms(records: Records) -> FloatArray:
    return np.asarray(records.queue_wait_ns[records.ok] / _NS_PER_MS, dtype=np.float64)


def _estimate(
    point: float, interval: Interval, level: float, n: int, method: str, required: int | None = None
) -> Estimate:
    lower, upper = interval
    return Estimate(
        point=point,
        lower=None if lower is None else min(lower, point),
        upper=None if upper is None else max(upper, point),
        level=level,
        n=n,
        method=method,
        unit="ratio",
        n_required=required,
    )


class TurnWaits(NamedTuple):
    """The wait of each turn in ms, NaN for one that did not end well; and which wait it is."""

    source: WaitSource
    ms: FloatArray


def turn_waits(records: Records) -> TurnWaits:
    """The wait of each turn: the server's queue wait if every turn that ended well has one, else TTFT for all
    (AMB-10)."""
    ok = records.ok
    if bool(ok.any()) and bool((records.queue_wait_ns[ok] != MISSING).all()):
        return TurnWaits("server queue wait", np.where(ok, records.queue_wait_ns / _NS_PER_MS, np.nan))
    return TurnWaits("TTFT", per_request("ttft", records))


def starved_sessions(records: Records, waits: FloatArray, *, level: float = 0.95) -> Estimate:
    """Share of a class's sessions with a turn that waited longer than five times the median wait of the
    class's turns. ``waits``: one for each record, in ms."""
    known = ~np.isnan(waits)
    if not known.any():
        return Estimate.undefined(unit="ratio", method="no samples", level=level)
    own, held = records.select(known), waits[known]
    starved = np.zeros(int(ranks(own).max()) + 1)
    np.maximum.at(starved, ranks(own), (held > STARVATION_FACTOR * float(np.median(held))).astype(float))
    return share_estimate(share_of([starved], level=level), level, "no samples", ", whole sessions")


def ttft_inflation(mixed: Records, alone: Records) -> dict[str, Estimate]:
    """``ttft_inflation.p50``, ``.p95``, ``.p99`` of the turns of one class: TTFT in the mix / alone."""
    before, after = latencies([alone], "ttft", None), latencies([mixed], "ttft", None)
    return {f"ttft_inflation.{q}": change(before[f"ttft.{q}"], after[f"ttft.{q}"], "ratio") for q in TAILS}


def session_jain_index(records: Records, *, level: float = 0.95) -> Estimate:
    """J over Σ end-to-end latency / Σ output tokens of the turns of each session (AMB-09)."""
    return jain_index_of([latency_per_token_ms(records)], level=level)


def latency_per_token_ms(records: Records) -> FloatArray:
    """Σ end-to-end latency / Σ output tokens of each session, over its turns that have both."""
    ms = per_request("e2e", records)
    return _over_turns(records, ms, ~np.isnan(ms) & (records.output_tokens > 0), "tokens")


def mean_ttft_ms(records: Records) -> FloatArray:
    """Mean TTFT of the turns of each session, in ms; the classes' mean slowdowns are made of these."""
    ms = per_request("ttft", records)
    return _over_turns(records, ms, ~np.isnan(ms), "turns")


def _over_turns(
    records: Records, ms: FloatArray, held: BoolColumn, by: Literal["tokens", "turns"]
) -> FloatArray:
    own = records.select(held)
    if not len(own):
        return np.empty(0)
    rank = ranks(own)
    whole = np.bincount(rank, weights=own.output_tokens if by == "tokens" else None)
    return np.asarray(np.bincount(rank, weights=ms[held]) / whole, dtype=np.float64)
