"""How often 95 % intervals hold the truth, and how wide they are: the tables of benchmarks/coverage.md.

    python tests/stats/coverage_table.py [--replications 400] [--write]

Latencies of queues (time in the system) and of the embedded engine, each started in its steady state. The
oracle knows the sampling distribution: its interval is as wide as the middle 95 % of the estimates of all
replications. ``--truth`` prints the percentiles that have no closed form, from ten million customers each.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from queue_models import Services as QueueServices
from queue_models import (
    mmc_times,
    stamps_of_bursts,
    stamps_of_slots,
    stamps_of_users,
    standard_exponential,
)

from pytest_llmbench.metrics.fairness import jain, jain_interval, jain_spread
from pytest_llmbench.metrics.itl import ItlSamples, itl_distribution
from pytest_llmbench.metrics.ratios import ratio_estimate, ratio_of_sums, share_estimate
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.backlog import Backlog, SlotQueue, backlog
from pytest_llmbench.stats.ratios import Share, ratio_of, share_of, share_within
from pytest_llmbench.stats.runs import OPEN
from pytest_llmbench.stats.spectral import Intervals, intervals_chosen
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

Sample = npt.NDArray[np.float64]
Services = Callable[[np.random.Generator, tuple[int, int]], Sample]

PAGE = Path(__file__).parents[2] / "benchmarks/coverage.md"
BEGIN, END = "<!-- coverage: tests/stats/coverage_table.py --write -->\n", "<!-- end of coverage -->\n"
STATISTICS = ("mean", "p50", "p95", "p99")
SIZES = (1000, 10_000)
BURN_IN = 6000
_AT_ONCE = 50
_LOADS = (0.5, 0.85)

EXPONENTIAL = (1.0, math.log(2), math.log(20), math.log(100))
_FROM_TEN_MILLION: Mapping[tuple[str, float], tuple[float, float, float]] = {
    ("M/D/1", 0.5): (1.0, 3.0511, 4.3414),
    ("M/D/1", 0.85): (2.8437, 10.087, 15.122),
    ("M/G/1", 0.5): (1.2591, 8.1611, 15.129),
    ("M/G/1", 0.85): (5.2528, 28.210, 45.380),
}
"""P50, P95, P99 of the time in the system, service time 1 on average."""


class Model(NamedTuple):
    name: str
    draw: Callable[[int, int, np.random.Generator], Iterator[Sample]]
    """``draw(n, replications, random)``: that many vectors of n samples; or two rows, the second of when
    each request was sent."""
    truth: tuple[float, ...]
    """Of each of STATISTICS."""


class Cell(NamedTuple):
    coverage: float
    """Of an open interval only the end that it has must hold."""
    closed: float
    """Of those alone that have both ends; nan where there are fewer than 20."""
    open: float
    """Share of intervals that lack an end."""
    width: float
    """Median width of the closed ones without crude ends, over the oracle's; nan without such."""
    crude: float = 0.0
    """Share of intervals with a crude end."""


def exponential(random: np.random.Generator, shape: tuple[int, int]) -> Sample:
    return random.exponential(size=shape)


def constant(random: np.random.Generator, shape: tuple[int, int]) -> Sample:
    return np.ones(shape)


def log_normal(random: np.random.Generator, shape: tuple[int, int]) -> Sample:
    """σ = 1: a squared coefficient of variation of e - 1."""
    return random.lognormal(-0.5, 1.0, shape)


SERVICES: Mapping[str, tuple[Services, float]] = {
    "M/M/1": (exponential, 2.0),
    "M/D/1": (constant, 1.0),
    "M/G/1": (log_normal, math.e),
}
"""With the second moment."""


def times_in_system(
    services: Services, load: float, n: int, replications: int, random: np.random.Generator
) -> Sample:
    """Waiting (Lindley 1952) and service of n customers, after a burn-in; one row per replication."""
    return stamped_times(services, load, n, replications, random)[0]


def stamped_times(
    services: Services, load: float, n: int, replications: int, random: np.random.Generator
) -> tuple[Sample, Sample]:
    """The same, and when each comes."""
    shape = (replications, n + BURN_IN)
    served = services(random, shape)
    walk = np.zeros(shape)
    gaps = random.exponential(1 / load, (replications, n + BURN_IN - 1))
    np.cumsum(served[:, :-1] - gaps, axis=1, out=walk[:, 1:])
    waits = walk - np.minimum.accumulate(walk, axis=1)
    sent = np.cumsum(gaps, axis=1)[:, BURN_IN - 1 :]
    return np.asarray((waits + served)[:, BURN_IN:]), sent


def queue(kind: str, load: float) -> Model:
    services, second_moment = SERVICES[kind]

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        for first in range(0, replications, _AT_ONCE):
            rows = min(_AT_ONCE, replications - first)
            yield from np.stack(stamped_times(services, load, n, rows, random), axis=1)

    if kind == "M/M/1":
        truth = tuple(value / (1 - load) for value in EXPONENTIAL)
    else:
        mean = 1 + load * second_moment / (2 * (1 - load))  # Pollaczek and Khinchine
        truth = (mean, *_FROM_TEN_MILLION[kind, load])
    return Model(f"{kind} at {load:.0%}", draw, truth)


def autoregressive() -> Model:
    from queue_models import ar1

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        return (ar1(0.8, n, random) for _ in range(replications))

    return Model("AR(1), ρ = 0.8", draw, (0.0, 0.0, 1.6448536269514722, 2.3263478740408408))


def independent() -> Model:
    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        return (random.exponential(size=n) for _ in range(replications))

    return Model("independent, exponential", draw, EXPONENTIAL)


_TRUTHS: dict[str, tuple[float, ...]] = {}


def simulated(name: str, draw: Callable[[int, int, np.random.Generator], Iterator[Sample]]) -> Model:
    """The truth is that of two million samples."""
    if name not in _TRUTHS:
        drawn = draw(10_000, 200, np.random.default_rng([78, *name.encode()]))
        every = np.concatenate([latencies(sample) for sample in drawn])
        _TRUTHS[name] = (float(every.mean()), *(float(q) for q in np.percentile(every, (50, 95, 99))))
    return Model(name, draw, _TRUTHS[name])


def latencies(sample: Sample) -> Sample:
    return sample if sample.ndim == 1 else sample[0]


def waited(sample: Sample) -> Backlog | None:
    """What requests waited, told by the stamps of these alone; the units are ms."""
    if sample.ndim == 1:
        return None
    sent_ns = (sample[1] * 1e6).astype(np.int64)
    ended_ns = sent_ns + (sample[0] * 1e6).astype(np.int64)
    return backlog([SlotQueue.of(sent_ns, ended_ns, np.ones(len(sent_ns), dtype=bool))], [sent_ns])


def erlang(random: np.random.Generator, shape: int) -> Sample:
    """Of four stages: a squared coefficient of variation of 1/4."""
    return random.gamma(4.0, 0.25, shape)


def hyperexponential(random: np.random.Generator, shape: int) -> Sample:
    """Of two exponential laws, each half of all work: a squared coefficient of variation of 4."""
    short = (1 + math.sqrt(0.6)) / 2
    return random.exponential(size=shape) / np.where(random.random(shape) < short, 2 * short, 2 - 2 * short)


def many_slots(
    slots: int, load: float, law: str = "M", services: QueueServices = standard_exponential
) -> Model:
    """M/M/c: what a request waited is hidden by how long its own service took."""

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        for first in range(0, replications, 250):
            rows = min(250, replications - first)
            sent, ended = stamps_of_slots(slots, load, n, rows, random, services)
            yield from np.stack((ended - sent, sent), axis=1)[:, :, -n:]

    name = f"M/{law}/{slots} at {load:.0%}"
    if services is standard_exponential:
        return Model(name, draw, mmc_times(slots, load, (50.0, 95.0, 99.0)))
    return simulated(name, draw)


def log_normal_services(random: np.random.Generator, rows: int) -> Sample:
    return log_normal(random, (1, rows))[0]


UNTUNED: tuple[Callable[[], Model], ...] = (
    lambda: many_slots(12, 0.9),
    lambda: many_slots(24, 0.9),
    lambda: many_slots(40, 0.95),
    lambda: many_slots(48, 0.9),
    lambda: many_slots(96, 0.8),
    lambda: many_slots(12, 0.85, "LN", log_normal_services),
    lambda: many_slots(32, 0.9, "LN", log_normal_services),
    lambda: many_slots(16, 0.9, "E4", erlang),
    lambda: many_slots(48, 0.95, "E4", erlang),
    lambda: many_slots(12, 0.8, "H2", hyperexponential),
    lambda: many_slots(32, 0.9, "H2", hyperexponential),
)
"""Numbers of slots and laws of services, log-normal, Erlang and hyperexponential, that no weight was fitted
to."""


def untuned_table(replications: int) -> Iterator[str]:
    yield "| not used for tuning, n = 1,000 | " + " | ".join(STATISTICS) + " |"
    yield "|---|" + "---|" * len(STATISTICS)
    for made in UNTUNED:
        model = made()
        found = measure(model, 1000, replications)
        yield "| " + " | ".join((model.name, *(written(found[name]) for name in STATISTICS))) + " |"


def closed_loop(users: int = 24, slots: int = 8) -> Model:
    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        for first in range(0, replications, 250):
            rows = min(250, replications - first)
            yield from np.stack(stamps_of_users(users, slots, n, rows, random), axis=1)

    return simulated(f"closed loop, {users} users of {slots} slots", draw)


def bursty() -> Model:
    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        for first in range(0, replications, 250):
            rows = min(250, replications - first)
            yield from np.stack(stamps_of_bursts(0.6, n, rows, random), axis=1)

    return simulated("MMPP/M/1 at 60%", draw)


def sticky(stay: float = 0.99, slow: float = 3.0) -> Model:
    """Two levels, each kept for 100 requests on average, with a tenth of exponential noise."""

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        for _ in range(replications):
            state = (np.cumsum(random.random(n) > stay) + random.integers(2)) % 2
            yield np.where(state == 1, slow, 1.0) * (1 + 0.1 * random.exponential(size=n))

    return simulated(f"two states, {stay:g} to stay, 1 : {slow:g}", draw)


def pareto() -> Model:
    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        return (1 + random.pareto(2.5, size=n) for _ in range(replications))

    quantiles = (2 ** (1 / 2.5), 20 ** (1 / 2.5), 100 ** (1 / 2.5))
    return Model("independent, Pareto 2.5", draw, (2.5 / 1.5, *quantiles))


SHORT_REPLIES = SyntheticWorkload("short replies", Uniform(16, 64), Uniform(4, 16))
_SCENARIO = "fast?max_num_seqs=4"
_RAMP_UP = 2000
_PER_RUN = 200_000


def engine(load: float, requests: int) -> Model:
    """E2E of the embedded engine in virtual time; the truth is that of all ``requests`` together."""
    full = _replayed(ClosedLoop(64), 20_000, 1)
    capacity = len(full) / float(np.ptp(full[:, 0])) * 1e3
    runs = []
    for seed, first in enumerate(range(0, requests, _PER_RUN)):
        size = min(_PER_RUN, requests - first)
        runs.append(_replayed(OpenLoop(load * capacity), size + _RAMP_UP, seed)[_RAMP_UP:])

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        parts = [run[: len(run) // n * n].reshape(-1, n, 2) for run in runs]
        for sent, times in np.moveaxis(np.concatenate(parts)[:replications], 2, 1):
            yield np.stack((times, sent))

    every = np.concatenate(runs)[:, 1]
    truth = (float(every.mean()), *(float(value) for value in np.percentile(every, (50, 95, 99))))
    return Model(f"embedded engine at {load:.0%}", draw, truth)


def _replayed(load: ClosedLoop | OpenLoop, requests: int, seed: int) -> Sample:
    """Submission and E2E of each request, in ms."""
    plan = LoadPlan("coverage", SHORT_REPLIES, load, requests, seed=seed)
    records = ReplayEngine(parse_scenario(_SCENARIO)).run(plan).records
    return np.stack([records.submitted_ns, records.last_content_ns - records.submitted_ns], axis=1) / 1e6


def measure(
    model: Model, n: int, replications: int, seed: int = 2026, intervals: Intervals = "analytic"
) -> dict[str, Cell]:
    """One row of the table."""

    def found() -> Iterator[list[Estimate]]:
        for sample in model.draw(n, replications, np.random.default_rng([seed, n])):
            estimates = distribution("x", latencies(sample), backlog=waited(sample))
            yield [estimates[f"x.{statistic}"] for statistic in STATISTICS]

    with intervals_chosen(intervals):
        return cells(found(), STATISTICS, model.truth)


def cells(
    rows: Iterable[Sequence[Estimate]], names: Sequence[str], truths: Sequence[float]
) -> dict[str, Cell]:
    """Of estimates of the same truths, one row for each replication."""
    points, ends, kinds = [], [], []
    for found in rows:
        points.append([math.nan if one.point is None else one.point for one in found])
        ends.append([(_end(one.lower, -math.inf), _end(one.upper, math.inf)) for one in found])
        kinds.append([one.kind is EstimateKind.CRUDE for one in found])
    low, high = np.moveaxis(np.array(ends), 2, 0)
    oracle = np.ptp(np.percentile(np.array(points), (2.5, 97.5), axis=0), axis=0)
    table = {}
    for place, (statistic, truth) in enumerate(zip(names, truths, strict=True)):
        width = high[:, place] - low[:, place]
        closed, crude = np.isfinite(width), np.array(kinds)[:, place]
        own = closed & ~crude
        held = (low[:, place] <= truth) & (truth <= high[:, place])
        table[statistic] = Cell(
            coverage=float(np.mean(held)),
            closed=float(np.mean(held[closed])) if np.count_nonzero(closed) >= 20 else math.nan,
            open=float(np.mean(~closed)),
            width=float(np.median(width[own]) / oracle[place]) if own.any() else math.nan,
            crude=float(np.mean(crude)),
        )
    return table


def _end(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def models(engine_requests: int) -> Iterator[Model]:
    yield independent()
    yield autoregressive()
    for kind in SERVICES:
        for load in _LOADS:
            yield queue(kind, load)
    for slots, load in _SLOTS:
        yield many_slots(slots, load)
    yield closed_loop()
    yield bursty()
    yield sticky()
    yield pareto()
    for load in _LOADS:
        yield engine(load, engine_requests)


_SLOTS = ((8, 0.8), (8, 0.9), (16, 0.9), (32, 0.8), (32, 0.9), (32, 0.95), (64, 0.8), (64, 0.9))

HELD_OUT: Mapping[str, Callable[[], Model]] = {
    "M/M/16 at 80%": lambda: many_slots(16, 0.8),
    "closed loop, 40 users of 16 slots": lambda: closed_loop(users=40, slots=16),
    "two states, 1 : 2": lambda: sticky(stay=0.98, slow=2.0),
}
"""Not used to choose anything: for the test that fails when coverage breaks."""


def written(cell: Cell) -> str:
    text = f"{cell.coverage:.1%}"
    if not math.isnan(cell.closed) and cell.open >= 0.005:
        text += f" (closed {cell.closed:.0%})"
    if not math.isnan(cell.width):
        text += f" · {cell.width:.2f}"
    text = text if cell.crude < 0.005 else f"{text} · {cell.crude:.0%} crude"
    return text if cell.open < 0.005 else f"{text} · {cell.open:.0%} open"


def table(replications: int, engine_requests: int) -> Iterator[str]:
    yield "| samples | n | " + " | ".join(STATISTICS) + " |"
    yield "|---|---:|" + "---|" * len(STATISTICS)
    for model in models(engine_requests):
        for n in SIZES:
            cells = measure(model, n, replications)
            row = (model.name, f"{n:,}", *(written(cells[name]) for name in STATISTICS))
            yield "| " + " | ".join(row) + " |"


RATES = ("goodput", "token goodput")
FIGURES = ("request rate", "token rate", *RATES, "goodput share", "error rate", "Jain", "ITL P95")
_RATE, _SLICES = 10.0, 400


class Traffic(NamedTuple):
    """Arrivals whose rate has two states, and replies whose latency follows it."""

    name: str
    low: float
    high: float
    stay: float
    """Of a slice of time, to stay in its state."""


TRAFFIC = (
    Traffic("Poisson", _RATE, _RATE, 0.5),
    Traffic("bursts of 20 slices", 0.5 * _RATE, 1.5 * _RATE, 0.95),
    Traffic("bursts of 5 slices", 0.2 * _RATE, 1.8 * _RATE, 0.8),
)


def figures(traffic: Traffic, replications: int, seed: int = 2027) -> dict[str, Cell]:
    """Of 400 slices of time; a request in a busy slice is slow, fails and stutters more often."""
    rows = [_figures(traffic, np.random.default_rng([seed, time])) for time in range(replications)]
    share = _shares(traffic)
    good = _RATE * (1 - share[0])
    truths = (_RATE, 100 * _RATE, good, 100 * good, 1 - share[0], share[1], *_simulated_truths(traffic))
    return cells(rows, FIGURES, truths)


def _states(traffic: Traffic, slices: int, random: np.random.Generator) -> Sample:
    return (np.cumsum(random.random(slices) > traffic.stay) + random.integers(2)) % 2


def _shares(traffic: Traffic) -> tuple[float, float]:
    """Of requests that miss the limits, and that fail."""
    busy = traffic.high / (traffic.low + traffic.high)
    return 0.05 * (1 - busy) + 0.3 * busy, 0.01 * (1 - busy) + 0.1 * busy


def _requests(traffic: Traffic, slices: int, random: np.random.Generator) -> tuple[Sample, Sample]:
    """How many in each slice, and of each request the state of its slice."""
    state = _states(traffic, slices, random)
    counts = random.poisson(np.where(state == 1, traffic.high, traffic.low)).astype(np.float64)
    return counts, np.repeat(state, counts.astype(int))


def _latencies(busy: Sample, random: np.random.Generator) -> Sample:
    return np.asarray(np.where(busy == 1, 2.0, 1.0) * random.gamma(4.0, 0.25, len(busy)))


def _figures(traffic: Traffic, random: np.random.Generator) -> list[Estimate]:
    counts, busy = _requests(traffic, _SLICES, random)
    tokens = random.normal(100, 30, len(busy))
    slices, ones = np.repeat(np.arange(_SLICES), counts.astype(int)), np.ones(_SLICES)
    missed = (random.random(len(busy)) < np.where(busy == 1, 0.3, 0.05)).astype(np.float64)
    failed = (random.random(len(busy)) < np.where(busy == 1, 0.1, 0.01)).astype(np.float64)
    latencies = _latencies(busy, random)
    gaps = np.repeat(latencies, 20) * random.gamma(2.0, 0.5, 20 * len(busy))
    samples = ItlSamples.of("direct", gaps, np.arange(0, len(gaps) + 1, 20))
    return [
        *(
            ratio_of_sums(np.bincount(slices, each, minlength=_SLICES), ones, unit="", seed=1)
            for each in (np.ones(len(busy)), tokens, 1 - missed, tokens * (1 - missed))
        ),
        share_estimate(share_of(1 - missed), ""),
        share_estimate(share_of(failed), ""),
        _jain_estimate(latencies),
        itl_distribution(samples)["itl.p95"],
    ]


def _jain_estimate(latencies: Sample, waits: Backlog | None = None) -> Estimate:
    of = jain_spread(latencies)
    few = of is None or of.worth < 30
    ends = OPEN if few else jain_interval(latencies, of=of, backlog=waits)
    return Estimate(jain(latencies), *ends, 0.95, len(latencies), "", "ratio")


def _simulated_truths(traffic: Traffic) -> tuple[float, float]:
    random = np.random.default_rng([79, *traffic.name.encode()])
    _, busy = _requests(traffic, 200_000, random)
    latencies = _latencies(busy, random)
    gaps = np.repeat(latencies, 4) * random.gamma(2.0, 0.5, 4 * len(busy))
    return float(jain(latencies) or 0.0), float(np.percentile(gaps, 95))


def figures_table(replications: int) -> Iterator[str]:
    yield "| requests | " + " | ".join(FIGURES) + " |"
    yield "|---|" + "---|" * len(FIGURES)
    for traffic in TRAFFIC:
        found = figures(traffic, replications)
        yield "| " + " | ".join((traffic.name, *(written(found[name]) for name in FIGURES))) + " |"


def bootstrap_table(replications: int) -> Iterator[str]:
    yield "| samples, n = 1,000, `--llm-intervals=bootstrap` | " + " | ".join(STATISTICS) + " |"
    yield "|---|" + "---|" * len(STATISTICS)
    chosen_models = (independent(), autoregressive(), queue("M/M/1", 0.5), many_slots(8, 0.8), closed_loop())
    for model in (*chosen_models, bursty(), pareto()):
        found = measure(model, 1000, replications, intervals="bootstrap")
        yield "| " + " | ".join((model.name, *(written(found[name]) for name in STATISTICS))) + " |"


def truths() -> Iterator[str]:
    for kind, load in _FROM_TEN_MILLION:
        random = np.random.default_rng([77, round(100 * load)])
        every = [times_in_system(SERVICES[kind][0], load, 20_000, _AT_ONCE, random) for _ in range(10)]
        yield f"{kind} {load}: {np.percentile(np.concatenate(every), (50, 95, 99))}"


def jain_table(replications: int) -> Iterator[str]:
    """Jain's index over the times of customers of 8 slots at 90 % load, without and with two service times
    that all have in common: how often its interval holds the index of two million of them."""
    model = many_slots(8, 0.9)
    every = np.concatenate([latencies(row) for row in model.draw(10_000, 200, np.random.default_rng(8))])
    yield "| n | in common | Jain's index | held |"
    yield "|---:|---:|---|---|"
    for n in (1000, 5000):
        for common in (0.0, 2.0):
            truth = jain(every + common) or 0.0
            rows = (
                np.add(row, [[common], [0.0]])
                for row in model.draw(n, replications, np.random.default_rng(9))
            )
            found = [[_jain_estimate(latencies(row), waited(row))] for row in rows]
            yield f"| {n:,} | {common:g} | {truth:.3f} | {written(cells(found, ['J'], [truth])['J'])} |"


SHARES = (50.0, 95.0, 99.0)


def shares_table(replications: int) -> Iterator[str]:
    """Shares of 1000 requests that keep a limit at a percentile of all: how often their intervals hold it."""
    yield "| share within a limit, n = 1,000 | " + " | ".join(f"{q:g} %" for q in SHARES) + " |"
    yield "|---|" + "---|" * len(SHARES)
    waiting = [many_slots(*each) for each in ((8, 0.7), (8, 0.8), (8, 0.9), (16, 0.9), (32, 0.9), (64, 0.9))]
    for model in (independent(), queue("M/M/1", 0.5), *waiting, closed_loop()):
        yield "| " + " | ".join((model.name, *map(written, shares(model, replications).values()))) + " |"


def shares(model: Model, replications: int) -> dict[str, Cell]:
    """Of 1000 requests, those within a limit at each of SHARES."""
    found = []
    for sample in model.draw(1000, replications, np.random.default_rng(10)):
        waits, limits = waited(sample), model.truth[1:]
        found.append([share_estimate(_within(sample, limit, waits), "") for limit in limits])
    return cells(found, [f"{q:g}" for q in SHARES], [q / 100 for q in SHARES])


def _within(sample: Sample, limit: float, waits: Backlog | None) -> Share | None:
    of = None if waits is None else waits.scaled(1 / limit)
    return share_within(latencies(sample) / limit, backlog=of)


def rates_table(replications: int) -> Iterator[str]:
    """Requests a second within a limit at P95, and their tokens, of sessions of 1000 requests to queues."""
    yield "| rates within a limit, n = 1,000 | " + " | ".join(RATES) + " |"
    yield "|---|" + "---|" * len(RATES)
    waiting = [many_slots(*each) for each in ((8, 0.8), (8, 0.9), (32, 0.9), (64, 0.9))]
    for model in (queue("M/M/1", 0.5), queue("M/M/1", 0.85), *waiting, closed_loop(), bursty()):
        yield "| " + " | ".join((model.name, *map(written, rates(model, replications).values()))) + " |"


def rates(model: Model, replications: int) -> dict[str, Cell]:
    """The truth is the mean of 1000 other sessions: at the end of a run, when no more is sent, rates are
    lower than those of the queue itself."""
    others, own = (
        [_rates(sample, model.truth[2], random) for sample in model.draw(1000, rows, random)]
        for rows, random in ((1000, np.random.default_rng(12)), (replications, np.random.default_rng(11)))
    )
    truths = np.mean([[found.point for found in row] for row in others], axis=0)
    return cells(own, RATES, list(truths))


def _rates(sample: Sample, limit: float, random: np.random.Generator) -> list[Estimate]:
    """As :mod:`pytest_llmbench.metrics.throughput` has them, in 400 slices; the tokens come at the end."""
    ends, good = (sample[1] + sample[0]), sample[0] <= limit
    tokens = random.gamma(4.0, 25.0, len(good))
    edges = np.linspace(sample[1, 0], ends.max(), _SLICES + 1)
    widths, n = np.diff(edges), int(good.sum())
    counted = [
        np.histogram(ends[good], edges, weights=each[good])[0] for each in (np.ones(len(good)), tokens)
    ]
    return [
        ratio_estimate(ratio_of(each, widths, seed=1), _SLICES, n, "", unit="", most=float(n))
        for each in counted
    ]


TOLD_APART = ((8, 0.9, 1000), (32, 0.9, 1000), (32, 0.95, 1000))
CALMER = (0.7, 0.8, 0.85, 0.9)


def possible_table(replications: int) -> Iterator[str]:
    """How well sessions of a busy system can be told from those of a calmer one with as many slots, and how
    well the upper ends of the mean do: see :func:`_evidence`.

    "best": of the calmer system, the share of sessions that the best test there is calls calm, where it
    calls 2.5 % of the busy ones so. "decided": the share whose upper end lies below the busy system's mean;
    "misses": the share of busy sessions whose upper end does; "least": what the best test misses at that
    share decided.
    """
    yield "| busy system | n | calmer load | best at 2.5% | decided | misses | least |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for slots, load, n in TOLD_APART:
        busy = many_slots(slots, load)
        random = np.random.default_rng([81, n])
        rows = list(busy.draw(n, replications, random))
        misses = np.mean([_mean_upper(row) < busy.truth[0] for row in rows])
        for calmer in CALMER[: CALMER.index(load)] if load in CALMER else CALMER:
            others = list(many_slots(slots, calmer).draw(n, replications, random))
            of_busy, of_calm = (np.array([_evidence(row, slots, load, calmer) for row in each])
                                for each in (rows, others))  # fmt: skip
            best = np.mean(of_calm < np.quantile(of_busy, 0.025))
            decided = np.mean([_mean_upper(row) < busy.truth[0] for row in others])
            least = np.mean(of_busy < np.quantile(of_calm, decided))
            shares = " | ".join(f"{share:.1%}" for share in (best, decided, misses, least))
            yield f"| {busy.name} | {n:,} | {calmer:.0%} | {shares} |"


def _mean_upper(sample: Sample) -> float:
    return _end(distribution("x", latencies(sample), backlog=waited(sample))["x.mean"].upper, math.inf)


def _evidence(sample: Sample, slots: int, busy: float, calm: float) -> float:
    """Logarithm of the likelihood of a session of M/M/c at the busy load over that at the calm one, whose
    numbers of slots are known and whose service rate is not: the best invariant test of one against the
    other (Lehmann and Romano 2005, section 6.2) calls busy what exceeds a threshold.

    Of n arrivals and d ends within T, with A slot-seconds at work, the likelihood is
    (ρ c μ)ⁿ exp(-ρ c μ T) μᵈ exp(-μ A), times the probability of the number under way at the start; over μ,
    by its invariant measure, ρⁿ / (ρ c T + A)^(n + d). Nothing else in sends and ends depends on ρ.
    """
    times, sent = sample
    began, over = float(sent[0]), float(sent[-1])
    instants = np.concatenate((sent, sent + times))
    steps = np.repeat([1, -1], len(sent))
    order = np.argsort(instants, kind="stable")
    under_way = np.cumsum(steps[order])[:-1]
    spans = np.diff(np.clip(instants[order], began, over))
    at_work = float(np.minimum(under_way, slots) @ spans)
    n, ended, whole = len(sent), int(np.sum(sent + times <= over)), slots * (over - began)
    return n * math.log(busy / calm) - (n + ended) * math.log(
        (busy * whole + at_work) / (calm * whole + at_work)
    )


def lengths_table(replications: int) -> Iterator[str]:
    """How often 1000 requests are said to be too few, and their utilisation to tell of no queue."""
    queues = [queue("M/M/1", load) for load in (0.5, 0.7, 0.8, 0.85, 0.9, 0.95)]
    queues += [many_slots(*of) for of in ((8, 0.9), (32, 0.8), (32, 0.9), (32, 0.95), (64, 0.9), (96, 0.9))]
    drawn: list[tuple[str, Iterator[tuple[Sample, Backlog | None]]]] = [
        (
            model.name,
            ((latencies(sample), waited(sample)) for sample in model.draw(1000, replications, _seeded())),
        )
        for model in queues
    ]
    for seconds in (5, 20):
        name = f"50 a second, all served at once in {seconds} s"
        drawn += [(f"{name}, {of}", _at_once(seconds, of, replications)) for of in ("TTFT", "whole latency")]
    yield "| 1,000 requests | too few | mean open | no queue |"
    yield "|---|---:|---:|---:|"
    for name, samples in drawn:
        found = [_told_of_length(sample, waits) for sample, waits in samples]
        yield f"| {name} | " + " | ".join(f"{share:.1%}" for share in np.mean(found, axis=0)) + " |"


def _seeded() -> np.random.Generator:
    return np.random.default_rng([2026, 1000])


def _at_once(seconds: float, of: str, replications: int) -> Iterator[tuple[Sample, Backlog | None]]:
    """No request is in the way of another; milliseconds."""
    random = _seeded()
    for _ in range(replications):
        sent = np.cumsum(random.exponential(20, 1000))
        took, first = (
            1e3 * seconds * random.lognormal(0, 0.3, 1000),
            random.lognormal(math.log(100), 0.3, 1000),
        )
        yield (first if of == "TTFT" else took), waited(np.stack((took, sent)))


def _told_of_length(sample: Sample, waits: Backlog | None) -> tuple[bool, bool, bool]:
    assert waits is not None
    may = waits.may_lengthen(sample)
    short = waits.load is not None and waits.load.longer(0.95) > 1
    return short and may, distribution("x", sample, backlog=waits)["x.mean"].upper is None, not may


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--engine-requests", type=int, default=1_000_000, help="per load, cut into samples")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    parser.add_argument("--truth", action="store_true")
    alone = {
        "untuned": untuned_table, "jain": jain_table, "shares": shares_table, "possible": possible_table,
        "lengths": lengths_table, "figures": figures_table, "rates": rates_table,
    }  # fmt: skip
    parser.add_argument("--only", choices=tuple(alone), help="one of the smaller tables alone")
    asked = parser.parse_args()
    lines = []
    tables = [truths()] if asked.truth else [alone[asked.only](asked.replications)] if asked.only else [
        table(asked.replications, asked.engine_requests),
        iter(("",)), untuned_table(asked.replications),
        iter(("",)), figures_table(asked.replications), iter(("",)), rates_table(asked.replications),
        iter(("",)), shares_table(asked.replications),
        iter(("",)), bootstrap_table(asked.replications), iter(("",)), jain_table(asked.replications),
        iter(("",)), possible_table(asked.replications),
    ]  # fmt: skip
    for line in chain.from_iterable(tables):
        print(line, flush=True)
        lines.append(line)
    if asked.write and not (asked.truth or asked.only):
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n\n" + caption(asked) + END + after, "utf-8")


def caption(asked: argparse.Namespace) -> str:
    def error(replications: float) -> str:
        return f"{100 * math.sqrt(0.05 * 0.95 / replications):.1f} points"

    few = min(asked.replications, asked.engine_requests // max(SIZES))
    return (
        f"{asked.replications} replications per row: a coverage is known to ± {error(asked.replications)} "
        f"(one standard error). For the engine at n = {max(SIZES):,}, {few}: ± {error(few)}.\n"
    )


if __name__ == "__main__":
    main()
