"""How often 95 % intervals hold the truth, and how wide they are: the table of docs/reference/statistics.md.

    python tests/stats/coverage_table.py [--replications 400] [--write]

Latencies of queues (time in the system) and of the embedded engine, each started in its steady state. The
oracle knows the sampling distribution: its interval is as wide as the middle 95 % of the estimates of all
replications. ``--truth`` prints the percentiles that have no closed form, from ten million customers each.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

Sample = npt.NDArray[np.float64]
Services = Callable[[np.random.Generator, tuple[int, int]], Sample]

PAGE = Path(__file__).parents[2] / "docs/reference/statistics.md"
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
    """``draw(n, replications, random)``: that many vectors of n samples."""
    truth: tuple[float, ...]
    """Of each of STATISTICS."""


class Cell(NamedTuple):
    coverage: float
    """Of an open interval only the end that it has must hold."""
    open: float
    """Share of intervals that lack an end."""
    width: float
    """Median width of the closed ones, over the oracle's; nan without closed ones."""


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
    shape = (replications, n + BURN_IN)
    served = services(random, shape)
    walk = np.zeros(shape)
    gaps = random.exponential(1 / load, (replications, n + BURN_IN - 1))
    np.cumsum(served[:, :-1] - gaps, axis=1, out=walk[:, 1:])
    waits = walk - np.minimum.accumulate(walk, axis=1)
    return np.asarray((waits + served)[:, BURN_IN:])


def queue(kind: str, load: float) -> Model:
    services, second_moment = SERVICES[kind]

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        for first in range(0, replications, _AT_ONCE):
            yield from times_in_system(services, load, n, min(_AT_ONCE, replications - first), random)

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
        runs.append(_replayed(OpenLoop(load * capacity), size + _RAMP_UP, seed)[_RAMP_UP:, 1])

    def draw(n: int, replications: int, random: np.random.Generator) -> Iterator[Sample]:
        parts = [run[: len(run) // n * n].reshape(-1, n) for run in runs]
        yield from np.concatenate(parts)[:replications]

    every = np.concatenate(runs)
    truth = (float(every.mean()), *(float(value) for value in np.percentile(every, (50, 95, 99))))
    return Model(f"embedded engine at {load:.0%}", draw, truth)


def _replayed(load: ClosedLoop | OpenLoop, requests: int, seed: int) -> Sample:
    """Submission and E2E of each request, in ms."""
    plan = LoadPlan("coverage", SHORT_REPLIES, load, requests, seed=seed)
    records = ReplayEngine(parse_scenario(_SCENARIO)).run(plan).records
    return np.stack([records.submitted_ns, records.last_content_ns - records.submitted_ns], axis=1) / 1e6


def measure(model: Model, n: int, replications: int, seed: int = 2026) -> dict[str, Cell]:
    """One row of the table."""
    points, ends = [], []
    for sample in model.draw(n, replications, np.random.default_rng([seed, n])):
        found = [distribution("x", sample)[f"x.{statistic}"] for statistic in STATISTICS]
        points.append([math.nan if one.point is None else one.point for one in found])
        ends.append([(_end(one.lower, -math.inf), _end(one.upper, math.inf)) for one in found])
    low, high = np.moveaxis(np.array(ends), 2, 0)
    oracle = np.ptp(np.percentile(np.array(points), (2.5, 97.5), axis=0), axis=0)
    cells = {}
    for place, (statistic, truth) in enumerate(zip(STATISTICS, model.truth, strict=True)):
        width = high[:, place] - low[:, place]
        closed = np.isfinite(width)
        cells[statistic] = Cell(
            coverage=float(np.mean((low[:, place] <= truth) & (truth <= high[:, place]))),
            open=float(np.mean(~closed)),
            width=float(np.median(width[closed]) / oracle[place]) if closed.any() else math.nan,
        )
    return cells


def _end(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def models(engine_requests: int) -> Iterator[Model]:
    yield independent()
    yield autoregressive()
    for kind in SERVICES:
        for load in _LOADS:
            yield queue(kind, load)
    for load in _LOADS:
        yield engine(load, engine_requests)


def written(cell: Cell) -> str:
    text = f"{cell.coverage:.1%}"
    if not math.isnan(cell.width):
        text += f" · {cell.width:.2f}"
    return text if cell.open < 0.005 else f"{text} · {cell.open:.0%} open"


def table(replications: int, engine_requests: int) -> Iterator[str]:
    yield "| samples | n | " + " | ".join(STATISTICS) + " |"
    yield "|---|---:|" + "---|" * len(STATISTICS)
    for model in models(engine_requests):
        for n in SIZES:
            cells = measure(model, n, replications)
            row = (model.name, f"{n:,}", *(written(cells[name]) for name in STATISTICS))
            yield "| " + " | ".join(row) + " |"


def truths() -> Iterator[str]:
    for kind, load in _FROM_TEN_MILLION:
        random = np.random.default_rng([77, round(100 * load)])
        every = [times_in_system(SERVICES[kind][0], load, 20_000, _AT_ONCE, random) for _ in range(10)]
        yield f"{kind} {load}: {np.percentile(np.concatenate(every), (50, 95, 99))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--engine-requests", type=int, default=1_000_000, help="per load, cut into samples")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    parser.add_argument("--truth", action="store_true")
    asked = parser.parse_args()
    lines = []
    for line in truths() if asked.truth else table(asked.replications, asked.engine_requests):
        print(line, flush=True)
        lines.append(line)
    if asked.write and not asked.truth:
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
