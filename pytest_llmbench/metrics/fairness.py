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
from pytest_llmbench.metrics.server_side import queue_wait_ms
from pytest_llmbench.metrics.session_figures import latencies, ranks
from pytest_llmbench.metrics.summary import estimate, of_quantiles
from pytest_llmbench.model.draft import STARVATION_FACTOR
from pytest_llmbench.model.estimate import LEVEL, Estimate
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.stats.backlog import Backlog
from pytest_llmbench.stats.crude import power_mean_bound
from pytest_llmbench.stats.dependence import SHORTEST_SERIES, memory
from pytest_llmbench.stats.percentiles import series_memory
from pytest_llmbench.stats.ratios import share_of
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, Spread, legs, mean_interval, spread, upper_end

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
        return Waits("server queue wait", by_class(runs, queue_wait_ms))
    return Waits("TTFT", by_class(runs, ttft_ms))


def starvation_rate(class_waits: Samples) -> Estimate:
    """Share of a class's waits that are longer than five times their median (section 5.6.4, AMB-10)."""
    runs = as_runs(class_waits)
    if not runs:
        return share_estimate(None, "no samples")
    threshold = STARVATION_FACTOR * float(np.median(pooled(runs)))
    return share_estimate(share_of([(run > threshold).astype(np.float64) for run in runs]), "no samples")


def inflation(mixed: Samples, isolated: Samples) -> dict[str, Estimate]:
    """``ttft_inflation.p50``, ``.p95``, ``.p99`` of one class: its TTFT in the mix / its TTFT alone."""
    return independent_changes("ttft_inflation", isolated, mixed, "ratio", statistics=TAILS)


def jain_index(runs: Sequence[Records]) -> Estimate:
    """J over the normalised latencies of all successful requests of the mix (AMB-09)."""
    counted = [_counted(run) for run in runs]
    waited = backlog_among(runs, [run.submitted_ns for run in counted])
    if waited is not None:
        tokens = [run.output_tokens for run in counted if len(run)]
        waited = waited._replace(waits=tuple(w / t for w, t in zip(waited.waits, tokens, strict=True)))
    return jain_index_of([normalised_latency_ms(run) for run in runs], waited=waited)


def jain_index_of(values: Samples, *, waited: Backlog | None = None) -> Estimate:
    """Jain's index J of values, one vector per run, in their order in time. ``waited``: what each waited for
    a slot, in the unit of the values."""
    samples = as_runs(values)
    every = pooled(samples)
    point = jain(every) if len(every) else None
    if point is None:
        return Estimate.undefined(unit="ratio", method="no samples", n=len(every))
    of = jain_spread(samples)
    if of is None or of.worth < FEWEST_EFFECTIVE:
        worth = len(every) if of is None else of.worth
        method = f"no interval at effective n={math.floor(worth)}"
        required = math.ceil(FEWEST_EFFECTIVE * len(every) / worth)
        return estimate(point, OPEN, len(every), method, required=required)
    interval = jain_interval(samples, of=of, backlog=waited)
    return estimate(point, interval, len(every), f"{of_quantiles(of)} at effective n={math.floor(of.worth)}")


def class_jain_index(mixed: Mapping[str, Samples], isolated: Mapping[str, Samples], *, seed: int) -> Estimate:
    """J over the classes' mean slowdowns: mean TTFT in the mix / mean TTFT alone (AMB-09)."""
    arms = {name: (as_runs(mixed[name]), as_runs(isolated.get(name, ()))) for name in mixed}
    n = sum(len(run) for pair in arms.values() for arm in pair for run in arm)
    lacking = [name for name, pair in arms.items() if not all(pair) or not pooled(pair[1]).mean() > 0]
    if lacking or not arms:
        reason = f"no TTFT in the mix or alone: {', '.join(lacking) or 'no class'}"
        return Estimate.undefined(unit="ratio", method=reason, n=n)
    slowdowns = [float(pooled(mix).mean() / pooled(alone).mean()) for mix, alone in arms.values()]
    point = jain(np.array(slowdowns))
    if point is None:
        return Estimate.undefined(unit="ratio", method="no slowdown", n=n)
    found = [[(float(pooled(arm).mean()), spread(arm)) for arm in pair] for pair in arms.values()]
    worth = min(1.0 if of is None else of.worth for pair in found for _, of in pair)
    if worth < FEWEST_EFFECTIVE:
        method = f"no interval at effective n={math.floor(worth)} of a class"
        required = max(n + 1, math.ceil(FEWEST_EFFECTIVE * n / worth))
        return estimate(point, OPEN, n, method, required=required)
    random = np.random.default_rng(seed)
    drawn = [drawn_ratio(pair, random) for pair in found]
    if not all(len(own) for own in drawn):
        return estimate(point, OPEN, n, "no interval: the run spans too few memories of a class")
    freedom = min(of.freedom for pair in found for _, of in pair if of is not None)
    interval = jain_of_means_interval(drawn, freedom=freedom)
    method = f"slowdowns drawn from their errors, t with {quantity(freedom, 'count')} degrees of freedom"
    return estimate(point, interval, n, method)


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


def starved_sessions(records: Records, waits: FloatArray) -> Estimate:
    """Share of a class's sessions with a turn that waited longer than five times the median wait of the
    class's turns. ``waits``: one for each record, in ms."""
    known = ~np.isnan(waits)
    if not known.any():
        return Estimate.undefined(unit="ratio", method="no samples")
    own, held = records.select(known), waits[known]
    starved = np.zeros(int(ranks(own).max()) + 1)
    np.maximum.at(starved, ranks(own), (held > STARVATION_FACTOR * float(np.median(held))).astype(float))
    return share_estimate(share_of([starved]), "no samples", ", whole sessions")


def ttft_inflation(mixed: Records, alone: Records) -> dict[str, Estimate]:
    """``ttft_inflation.p50``, ``.p95``, ``.p99`` of the turns of one class: TTFT in the mix / alone."""
    before, after = latencies([alone], "ttft", None), latencies([mixed], "ttft", None)
    return {f"ttft_inflation.{q}": change(before[f"ttft.{q}"], after[f"ttft.{q}"], "ratio") for q in TAILS}


def session_jain_index(records: Records) -> Estimate:
    """J over Σ end-to-end latency / Σ output tokens of the turns of each session that have both (AMB-09)."""
    return jain_index_of([_over_turns(records, "e2e", by_tokens=True)])


def mean_ttft_ms(records: Records) -> FloatArray:
    """Mean TTFT of the turns of each session, in ms; the classes' mean slowdowns are made of these."""
    return _over_turns(records, "ttft")


def _over_turns(records: Records, family: str, *, by_tokens: bool = False) -> FloatArray:
    """Σ latency / number of turns (or Σ output tokens) of each session."""
    ms = per_request(family, records)
    held = ~np.isnan(ms) & ((records.output_tokens > 0) if by_tokens else True)
    own = records.select(held)
    if not len(own):
        return np.empty(0)
    rank = ranks(own)
    whole = np.bincount(rank, weights=own.output_tokens if by_tokens else None)
    return np.asarray(np.bincount(rank, weights=ms[held]) / whole, dtype=np.float64)


DRAWS = 2000
_SPREAD_POWER = 1.5
"""Power with which the error of c² grows: the least for which the interval holds for log-normal samples with
σ = 1, independent ones and ones with ρ = 0.8."""


def jain(shares: FloatArray) -> float | None:
    """Jain's index J = (Σ x)² / (n Σ x²), from 1/n (one has all) to 1 (all alike); section 5.6.4.

    ``None`` without shares and when all are zero. ValueError for negative ones.
    """
    if (shares < 0).any():
        raise ValueError("Jain's index is of shares, which are not negative")
    largest = float(np.max(shares, initial=0.0))
    if largest == 0.0:
        return None
    scaled = shares / largest  # so that no square overflows or vanishes
    return float(scaled.sum() ** 2 / (len(scaled) * np.square(scaled).sum()))


def jain_interval(samples: Samples, *, of: Spread | None = None, backlog: Backlog | None = None) -> Interval:
    """Interval of J of dependent samples; open where J is undefined. ``of``: their :func:`jain_spread`.
    ``backlog``: what each latency waited; if they have waits in them, both ends allow for the index of
    latencies whose waits are drawn out as far as they may be.

    J = 1 / (1 + c²), c the coefficient of variation: c² and both its ends are turned into J. c² rests on
    squares and is too small, with too small an error, whenever the few largest samples happen to be missing;
    its upper end is therefore the value whose error, growing as its power 3/2, still reaches the observed
    one. Where there is none, J is at least the square of the mean's lower end over the upper end of the mean
    square, each at half the error: far off, and enough for a floor that is farther. Where the mean square has
    no upper end either: c² is at most the mean square of what is above the smallest sample over the square of
    the mean, and that mean square is at most the square of a mean of a higher power.
    """
    runs = as_runs(samples)
    every = pooled(runs)
    index = jain(every)
    if len(every) < 2 or index is None:
        return OPEN
    if float(np.ptp(every)) == 0.0:
        return Interval(1.0, 1.0)
    of = jain_spread(runs) if of is None else of
    if of is None:
        return OPEN
    square = 1 / index - 1
    down, _ = legs(of, LEVEL)
    most = upper_end(square, of, LEVEL, _SPREAD_POWER)
    lower = _by_moments(runs) if most is None else 1 / (1 + most)
    lower = None if lower is None else max(1 / len(every), lower)
    upper = 1.0 if down is None else min(1.0, 1 / (1 + max(0.0, square - down)))
    if backlog is None or not backlog.may_lengthen(runs):
        return Interval(lower, upper)
    worse = jain(pooled(backlog.drawn_out(runs, LEVEL))) or index
    if worse >= index:
        return Interval(lower, max(upper, index + math.hypot(upper - index, worse - index)))
    if lower is not None:
        lower = max(1 / len(every), min(lower, index - math.hypot(index - lower, index - worse)))
    return Interval(lower, upper)


def _by_moments(runs: Runs) -> float | None:
    """A lower end of (Σ x)² / (n Σ x²), by moments; None where there is none."""
    each = (1 + LEVEL) / 2
    least = mean_interval(runs, level=each).lower
    if least is None or least <= 0:
        return None
    squares = tuple(np.square(run) for run in runs)
    lags = max(memory(squares), series_memory(runs))
    of = spread(squares, lags=lags)
    if of is None or of.worth < FEWEST_EFFECTIVE:
        return None
    most = mean_interval(squares, level=each, of=of).upper
    if most is not None:
        return least**2 / most
    highest = power_mean_bound(runs, lags=lags, level=each)
    return None if highest is None else 1 / (1 + (highest.end / least) ** 2)


def jain_spread(samples: Samples) -> Spread | None:
    """The spread of c² = 1/J - 1 = m2/m1² - 1, from its influence (x² - m2)/m1² - 2 (x - m1) m2/m1³.

    ``worth``: that of the influence or of the samples themselves, whichever is less; ``None`` below ten.
    """
    runs = as_runs(samples)
    every = pooled(runs)
    if len(every) < SHORTEST_SERIES or float(every.max()) <= 0.0:
        return None
    runs = tuple(run / float(every.mean()) for run in runs)
    second = float(np.mean(np.square(pooled(runs))))
    influence = tuple(np.square(run) - second - 2 * second * (run - 1) for run in runs)
    lags = max(memory(influence), series_memory(runs))
    own, other = spread(influence, lags=lags), spread(runs, lags=lags)
    if own is None or other is None:
        return None
    return own._replace(worth=min(own.worth, other.worth))


def jain_of_means_interval(groups: Sequence[FloatArray], *, freedom: float) -> Interval:
    """Interval of J over the values of some groups, each given as draws of it.

    J has its maximum where all groups are alike, so drawn indices always lie below 1, even if the groups
    are alike in truth. Unless a Wald test of the logarithms rejects that, the upper end is therefore 1.
    """
    drawn = np.stack(groups)
    if len(drawn) < 2 or float(drawn.min()) <= 0:
        return OPEN
    indices = np.square(drawn.sum(axis=0)) / (len(drawn) * np.square(drawn).sum(axis=0))
    from scipy.special import ndtr, stdtrit

    # The tail share at which quantiles of normal draws have the coverage of Student's t is
    # Φ(√((ν + 1) / ν) t_{α/2, ν}) (Hesterberg 2015, The American Statistician 69).
    nu = max(freedom, 1.0)
    tail = float(ndtr(math.sqrt((nu + 1) / nu) * float(stdtrit(nu, (1 - LEVEL) / 2))))
    lower, upper = (float(end) for end in np.quantile(indices, [tail, 1 - tail]))
    return Interval(lower, 1.0 if _all_alike(np.log(drawn), freedom) else upper)


def drawn_ratio(arms: Sequence[tuple[float, Spread | None]], random: np.random.Generator) -> FloatArray:
    """Draws of first mean / second mean, log-normal with the relative errors of both; empty where an error
    has no bound."""
    variance = 0.0
    for mean, of in arms:
        by = None if of is None else of.lengthening(LEVEL)
        if of is None or by is None:
            return np.empty(0)
        variance += (by * of.error / mean) ** 2
    return np.asarray(
        arms[0][0] / arms[1][0] * np.exp(math.sqrt(variance) * random.normal(size=DRAWS)), dtype=np.float64
    )


def _all_alike(logarithms: FloatArray, freedom: float) -> bool:
    """Wald test of "the differences to the first group are zero", with Hotelling's F quantile."""
    from scipy.special import fdtri

    differences = logarithms[1:] - logarithms[0]
    centre = differences.mean(axis=1)
    covariance = np.atleast_2d(np.cov(differences))
    if not np.diag(covariance).all():
        return not centre.any()
    count = len(centre)
    statistic = float(centre @ np.linalg.pinv(covariance) @ centre)
    rest = max(freedom - count + 1, 1.0)
    return statistic <= count * freedom / rest * float(fdtri(count, rest, LEVEL))
