"""What the bound of P99 by the load of its queue does on queues that it was not made for.

    python benchmarks/bench_unseen_queues.py [--replications 400] [--only NAME ...] [--heavy]

Sessions of 1000 requests, each with the stamps that a session has. A row says how often the bound is used,
how often the upper end of P99 lies below the true one, with the bound and without (2.5 % are promised), and
how often it lies below twice the true one, with it and without. Truths are those of three million requests,
of one million where requests are served one event at a time. ``--heavy`` uses the bound of services more
varied than exponential ones too, which it refuses. The tables are in benchmarks/coverage.md.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import count, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/stats"))

from coverage_table import hyperexponential, waited

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.stats import first_come
from pytest_llmbench.stats.first_come import BY_LOAD

Floats = npt.NDArray[np.float64]
Random = np.random.Generator
Sessions = tuple[Floats, Floats]
"""Latencies, and when each request was sent; a row a session."""
Draw = Callable[[int, int, Random], Sessions]
"""Of so many requests and rows."""
Law = Callable[[Random, int], Floats]
"""So many values of mean 1."""
Gaps = Callable[[int, Random], Iterator[Floats]]
"""Between sends, of mean 1, for so many rows without end."""
Pace = Callable[[int], float]

REQUESTS = 1000
_BURN_IN, _SHORT_BURN_IN = 6000, 500
_EVERYBODY = 10**9
"""Slots where no request waits for one."""


class Queue(NamedTuple):
    draw: Draw
    truth: tuple[int, int] = (20_000, 150)
    """Requests and rows that the true P99 is taken from."""


def exponential(random: Random, n: int) -> Floats:
    return random.exponential(size=n)


def constant(_: Random, n: int) -> Floats:
    return np.ones(n)


def log_normal(random: Random, n: int) -> Floats:
    return random.lognormal(-0.5, 1.0, n)


def regular(random: Random, n: int) -> Floats:
    """Erlang's, of four phases."""
    return random.gamma(4.0, 0.25, n)


def weibull(random: Random, n: int) -> Floats:
    return random.weibull(0.8, n) / math.gamma(1 + 1 / 0.8)


def two_lengths(random: Random, n: int) -> Floats:
    return np.where(random.random(n) < 0.5, 0.4, 1.6)


def varied(random: Random, n: int) -> Floats:
    return np.asarray(hyperexponential(random, n))  # type: ignore[arg-type]


def in_batches(random: Random, n: int) -> Floats:
    """Gaps: none within batches of four on average."""
    return np.where(random.random(n) < 0.25, 4 * random.exponential(size=n), 0.0)


def related(rows: int, random: Random) -> Iterator[Floats]:
    """Log-normal gaps, AR(1) in their logarithms."""
    state = random.normal(size=rows)
    while True:
        yield np.exp(state - 0.5)
        state = 0.7 * state + math.sqrt(1 - 0.7**2) * random.normal(size=rows)


def each(law: Law) -> Gaps:
    def gaps(rows: int, random: Random) -> Iterator[Floats]:
        while True:
            yield law(random, rows)

    return gaps


POISSON = each(exponential)
Steps = Callable[[int, Random], Iterator[tuple[Floats, Floats]]]
"""For so many rows, without end: when the next request is sent, and when it ends."""


def stepwise(steps: Steps) -> Queue:
    """A queue whose requests are worked through one after the other, all rows at once."""

    def draw(n: int, rows: int, random: Random) -> Sessions:
        told = list(islice(steps(rows, random), _BURN_IN, _BURN_IN + n))
        sent, ends = (np.array([one[at] for one in told]).T for at in (0, 1))
        return (ends - sent).copy(), sent.copy()

    return Queue(draw)


def slots(count: int, load: float, services: Law, gaps: Gaps) -> Queue:
    """First come, first served."""

    def steps(rows: int, random: Random) -> Iterator[tuple[Floats, Floats]]:
        free, at, every = np.zeros((rows, count)), np.zeros(rows), np.arange(rows)
        for gap in gaps(rows, random):
            at = at + gap / (load * count)
            first = free.argmin(axis=1)
            free[every, first] = np.maximum(at, free[every, first]) + services(random, rows)
            yield at, free[every, first]

    return stepwise(steps)


def routed(slots: int, load: float, way: Literal["at random", "in turns"]) -> Queue:
    """A router before queues of one slot each."""

    def steps(rows: int, random: Random) -> Iterator[tuple[Floats, Floats]]:
        free, at, every = np.zeros((rows, slots)), np.zeros(rows), np.arange(rows)
        for number in count():
            at = at + random.exponential(1 / (load * slots), rows)
            to = random.integers(0, slots, rows) if way == "at random" else np.full(rows, number % slots)
            free[every, to] = np.maximum(at, free[every, to]) + random.exponential(size=rows)
            yield at, free[every, to]

    return stepwise(steps)


def tandem(first: float, second: float) -> Queue:
    """Two queues of a slot each, one behind the other, at these loads."""

    def steps(rows: int, random: Random) -> Iterator[tuple[Floats, Floats]]:
        at = before = behind = np.zeros(rows)
        while True:
            at = at + random.exponential(size=rows)
            before = np.maximum(at, before) + random.exponential(first, rows)
            behind = np.maximum(before, behind) + random.exponential(second, rows)
            yield at, behind

    return stepwise(steps)


def paused(load: float, services: Law, every: float, length: float) -> Queue:
    """A slot that stops now and then; the load is with its pauses."""

    def steps(rows: int, random: Random) -> Iterator[tuple[Floats, Floats]]:
        at, free, pause = np.zeros(rows), np.zeros(rows), random.exponential(every, rows)
        while True:
            at = at + random.exponential(1 / (load - length / every), rows)
            begun = np.maximum(at, free)
            while (due := pause <= begun).any():
                begun = np.where(due, np.maximum(begun, pause + length), begun)
                pause = np.where(due, pause + length + random.exponential(every, rows), pause)
            free = begun + services(random, rows)
            yield at, free

    return stepwise(steps)


def in_phases(slots: int, load: float, stay: int = 300) -> Queue:
    """Slots that are half as fast for stretches of so many requests."""

    def steps(rows: int, random: Random) -> Iterator[tuple[Floats, Floats]]:
        free, at, every = np.zeros((rows, slots)), np.zeros(rows), np.arange(rows)
        slow = random.integers(0, 2, rows)
        while True:
            at = at + random.exponential(1 / (load * slots), rows)
            slow = np.where(random.random(rows) < 1 / stay, 1 - slow, slow)
            first = free.argmin(axis=1)
            took = random.exponential(size=rows) * (1 + slow) / 1.5
            free[every, first] = np.maximum(at, free[every, first]) + took
            yield at, free[every, first]

    return stepwise(steps)


def by_events(slots: int, load: float, services: Law, order: str, pace: Pace | None = None) -> Queue:
    """``order`` in which those who wait are taken: first, last, shortest, at random. ``pace`` of each of so
    many at work; with all slots at work it is 1, but where there is a slot for everybody."""

    def one(n: int, random: Random) -> tuple[Floats, Floats]:
        every = n + 3 * _SHORT_BURN_IN
        sent = np.cumsum(random.exponential(1 / (load * (1 if slots == _EVERYBODY else slots)), every))
        ends = _served(sent, services(random, every), slots, order, pace, random)
        kept = slice(_SHORT_BURN_IN, _SHORT_BURN_IN + n)
        return (ends - sent)[kept], sent[kept]

    def draw(n: int, rows: int, random: Random) -> Sessions:
        found = [one(n, random) for _ in range(rows)]
        return np.array([latencies for latencies, _ in found]), np.array([sent for _, sent in found])

    return Queue(draw, (20_000, 60))


def _served(sent: Floats, work: Floats, slots: int, order: str, pace: Pace | None, random: Random) -> Floats:
    """When each ends. At work they are by the work that all of them have had when they end."""
    ends, waiting, at_work = np.zeros(len(sent)), list[int](), list[tuple[float, int]]()
    had = now = 0.0
    coming, due = 0, sent.tolist()
    while coming < len(due) or at_work:
        each_at = pace(len(at_work)) if pace is not None and at_work else 1.0
        ended = now + (at_work[0][0] - had) / each_at if at_work else math.inf
        if coming < len(due) and due[coming] < ended:
            had, now = had + (due[coming] - now) * each_at, due[coming]
            waiting.append(coming)
            coming += 1
        else:
            had, number = heapq.heappop(at_work)
            now = ends[number] = ended
        if waiting and len(at_work) < slots:
            number = waiting.pop(_place(waiting, work, order, random))
            heapq.heappush(at_work, (had + work[number], number))
    return ends


def _place(waiting: list[int], work: Floats, order: str, random: Random) -> int:
    if order == "shortest":
        return int(np.argmin(work[waiting]))
    return {"first": 0, "last": -1}.get(order, int(random.integers(len(waiting))))


def shared(load: float) -> Queue:
    """One slot whose time all requests share."""
    return by_events(_EVERYBODY, load, exponential, "first", lambda at_work: 1 / at_work)


def slowed(slots: int, load: float, services: Law) -> Queue:
    """Slots of which each takes three times as long with all at work as it would alone."""
    return by_events(slots, load, services, "first", lambda at_work: 3 / (1 + 2 * at_work / slots))


QUEUES: Mapping[str, Queue] = {
    "two queues in tandem, 70 % and 50 %": tandem(0.7, 0.5),
    "shortest job first, M/M/1 at 70 %": by_events(1, 0.7, exponential, "shortest"),
    "Weibull 0.8, M/G/3 at 70 %": slots(3, 0.7, weibull, POISSON),
    "uniform services, M/G/2 at 75 %": slots(2, 0.75, lambda random, n: random.uniform(0, 2, n), POISSON),
    "two lengths, M/G/1 at 65 %": slots(1, 0.65, two_lengths, POISSON),
    "gaps gamma 2, G/M/6 at 75 %": slots(
        6, 0.75, exponential, each(lambda random, n: random.gamma(2, 0.5, n))
    ),
    "M/M/24 at 75 %": slots(24, 0.75, exponential, POISSON),
    "M/H2/4 at 60 % (hyperexponential services)": slots(4, 0.6, varied, POISSON),
    "8 slots at 70 %, gaps between sends AR(1) in logarithms": slots(8, 0.7, exponential, related),
    "last come first served, M/M/1 at 60 %": by_events(1, 0.6, exponential, "last"),
    "last come first served, M/M/4 at 70 %": by_events(4, 0.7, exponential, "last"),
    "random router before 2 queues at 70 %": routed(2, 0.7, "at random"),
    "router in turns before 4 queues at 70 %": routed(4, 0.7, "in turns"),
    "batches of 4 on average, M/M/4 at 70 %": slots(4, 0.7, exponential, each(in_batches)),
    "M/M/1 at 60 %, pauses of 20 services once in 200": paused(0.6, exponential, 200.0, 20.0),
    "M/D/1 at 50 %, pauses of 60 services once in 1000": paused(0.5, constant, 1000.0, 60.0),
    "M/M/1 at 60 %, half as fast for stretches of 300 requests": in_phases(1, 0.6),
    "M/M/8 at 70 %, half as fast for stretches of 300 requests": in_phases(8, 0.7),
    "processor sharing, M/M/1 at 60 %": shared(0.6),
    "random order, M/M/2 at 70 %": by_events(2, 0.7, exponential, "at random"),
    "16 slots that slow each other down threefold, at 70 %": slowed(16, 0.7, regular),
    "8 slots that slow each other down threefold, at 85 %": slowed(8, 0.85, exponential),
    "H2/M/2 at 60 % (hyperexponential gaps)": slots(2, 0.6, exponential, each(varied)),
    "E4/LN/2 at 70 % (regular gaps, log-normal services)": slots(2, 0.7, log_normal, each(regular)),
    "M/H2/1 at 60 %": slots(1, 0.6, varied, POISSON),
}


def row(name: str, queue: Queue, replications: int) -> str:
    seeded = [np.random.default_rng([seed, *name.encode()]) for seed in (5, 6)]
    truth = float(np.percentile(queue.draw(*queue.truth, seeded[1])[0], 99))
    ends = np.array(
        [_upper_ends(*each) for each in zip(*queue.draw(REQUESTS, replications, seeded[0]), strict=True)]
    )
    used, with_it, without = ends.T
    figures = (used, with_it < truth, without < truth, with_it <= 2 * truth, without <= 2 * truth)
    told = [
        f"{figure.mean():.1%}" if at in (1, 2) else f"{figure.mean():.0%}"
        for at, figure in enumerate(figures)
    ]
    return f"| {name} | {' | '.join(told)} |"


def _upper_ends(latencies: Floats, sent: Floats) -> tuple[float, float, float]:
    """Whether the bound is used, and the upper end of P99 with it and without."""
    known = waited(np.stack((latencies, sent)))
    assert known is not None
    found = [
        distribution("x", latencies, backlog=backlog)["x.p99"]
        for backlog in (known, known._replace(queues=(), sent_ns=()))
    ]
    ends = (math.inf if each.upper is None else each.upper for each in found)
    return float(BY_LOAD in found[0].method), *ends  # type: ignore[return-value]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replications", type=int, default=400)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names")
    parser.add_argument("--heavy", action="store_true", help="use the bound whatever the services are")
    asked = parser.parse_args()
    if asked.heavy:
        first_come._are_heavy = lambda services: False  # type: ignore[assignment]  # noqa: ARG005
    print("| latencies | used | misses | without | 2 x | without |\n|---|---:|---:|---:|---:|---:|")
    for name, queue in QUEUES.items():
        if not asked.only or any(part in name for part in asked.only):
            print(row(name, queue, asked.replications), flush=True)


if __name__ == "__main__":
    main()
