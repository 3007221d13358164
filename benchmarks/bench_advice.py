"""What a thousand requests decide about P99, and what following the advice decides where they do not.

    python benchmarks/bench_advice.py [--sessions 200] [--only M/M/1] [--replay]

The first table says how often the upper end of P99 lies above the true one,
and how often it lies below limits of 2, 3 and 5 times the true one. The second is in
docs/explanation/undecided-p99.md: sessions of 1000 requests with a limit near the true value. An undecided
one is followed by sessions of as many requests as it asks for; one that says that it may take more than 64
times as many gets no number. "Any" limit is one of 13 from half to three times the true value. ``--replay``
adds the tutorial's: TTFT of ``replay:h100-8b`` at 20 requests per second, limit 100 ms. ``--table possible``
says what any method could decide that looks at one statistic of a session (benchmarks/coverage.md).
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / each) for each in ("stats", ".")]

from coverage_table import (  # noqa: E402
    constant,
    exponential,
    log_normal,
    stamped_times,
    times_in_system,
    waited,
)
from queue_models import stamps_of_bursts, stamps_of_slots, stamps_of_users  # noqa: E402

from pytest_llmbench.compare.gate import judge  # noqa: E402
from pytest_llmbench.metrics import latency  # noqa: E402
from pytest_llmbench.metrics.summary import distribution  # noqa: E402
from pytest_llmbench.model.estimate import Estimate  # noqa: E402
from pytest_llmbench.model.judgement import GateVerdict, JudgedObjective  # noqa: E402
from pytest_llmbench.model.objective import Objective  # noqa: E402
from pytest_llmbench.model.records import Records  # noqa: E402

Floats = npt.NDArray[np.float64]


class Session(NamedTuple):
    """Latencies in the order sent, and their P99 as a session estimates it."""

    latencies: Floats
    upto: Callable[[int], Estimate]
    """P99 of the first n requests."""


Draw = Callable[[int, int, np.random.Generator], Iterable[Session]]
"""``draw(n, rows, random)``: so many sessions of n requests."""
DEFAULT, SERIES = 1000, 40
SIZES = tuple(round(DEFAULT * 2 ** (step / 2)) for step in range(13))
FAR, NEAR = (2.0, 3.0, 5.0), (0.8, 1.2, 1.3, 1.5, 2.0)
ANY = tuple(0.5 * 6 ** (step / 12) for step in range(13))


def stamped(latencies: Floats, sent: Floats) -> Iterator[Session]:
    """Sessions of a queue: its stamps tell what requests waited."""
    for times, at in zip(latencies, sent, strict=True):
        yield Session(times, partial(_p99_of_stamps, times, at))


def _p99_of_stamps(times: Floats, at: Floats, n: int) -> Estimate:
    return distribution("ttft", times[:n], backlog=waited(np.stack((times[:n], at[:n]))))["ttft.p99"]


def series(latencies: Floats) -> Iterator[Session]:
    """Sessions of which nothing but the latencies is known."""
    for times in latencies:
        yield Session(times, partial(_p99_of_series, times))


def _p99_of_series(times: Floats, n: int) -> Estimate:
    return distribution("ttft", times[:n])["ttft.p99"]


def queue(kind: Callable[[np.random.Generator, tuple[int, int]], Floats], load: float) -> Draw:
    return lambda n, rows, random: stamped(*stamped_times(kind, load, n, rows, random))


def slots(count: int, load: float) -> Draw:
    def draw(n: int, rows: int, random: np.random.Generator) -> Iterator[Session]:
        sent, ended = stamps_of_slots(count, load, n, rows, random)
        return stamped((ended - sent)[:, -n:], sent[:, -n:])

    return draw


def users(count: int, served: int) -> Draw:
    return lambda n, rows, random: stamped(*stamps_of_users(count, served, n, rows, random))


def bursts(load: float) -> Draw:
    return lambda n, rows, random: stamped(*stamps_of_bursts(load, n, rows, random))


SYSTEMS: dict[str, Draw] = {
    "independent, exponential": lambda n, rows, random: series(random.exponential(size=(rows, n))),
    "independent, log-normal": lambda n, rows, random: series(random.lognormal(size=(rows, n))),
    "independent, Pareto 2.5": lambda n, rows, random: series(1 + random.pareto(2.5, size=(rows, n))),
    "closed loop, 24 users of 8 slots": lambda n, rows, random: stamped(
        *stamps_of_users(24, 8, n, rows, random)
    ),
    "M/D/1 at 70%": queue(constant, 0.7),
    "M/M/1 at 50%": queue(exponential, 0.5),
    "M/M/1 at 60%": queue(exponential, 0.6),
    "M/M/1 at 70%": queue(exponential, 0.7),
    "M/G/1 (log-normal) at 50%": queue(log_normal, 0.5),
    "M/G/1 (log-normal) at 70%": queue(log_normal, 0.7),
    "M/M/8 at 70%": slots(8, 0.7),
    "M/M/8 at 80%": slots(8, 0.8),
    "M/M/32 at 80%": slots(32, 0.8),
    "MMPP/M/1 at 40%": bursts(0.4),
    "MMPP/M/1 at 60%": bursts(0.6),
    "M/M/1 at 85%": queue(exponential, 0.85),
    "M/G/1 (log-normal) at 85%": queue(log_normal, 0.85),
    "M/M/1 at 90%": queue(exponential, 0.9),
}
FOLLOWED = (
    "independent, exponential", "M/M/1 at 50%", "M/M/1 at 70%", "M/G/1 (log-normal) at 50%", "M/M/8 at 70%",
    "M/M/8 at 80%", "MMPP/M/1 at 40%",
)  # fmt: skip
REPLAYED = "replay:h100-8b at 20 req/s"


def replayed() -> Draw:
    """Sessions cut out of one long run."""
    from pytest_llmbench.methodology.sections import ttft

    sut = import_module("replayed_sut").ReplayedSUT("h100-8b")
    result = sut.measure(ttft.TEST, rate=20, requests=200_000)
    records = result.observations[-1].records
    latencies = (records.first_content_ns - records.submitted_ns) / 1e6

    def draw(n: int, rows: int, random: np.random.Generator) -> Iterator[Session]:
        for first in random.integers(len(records) - n, size=rows).tolist():
            yield Session(latencies[first : first + n], partial(_p99_of_records, records, first))

    return draw


def _p99_of_records(records: Records, first: int, n: int) -> Estimate:
    places = np.arange(len(records))
    cut = records.select((places >= first) & (places < first + n))
    return latency.distribution_of("ttft", [cut])["ttft.p99"]


@dataclass(frozen=True)
class System:
    name: str
    draw: Draw
    sessions: int
    limits: tuple[float, ...] = ()
    """Near the true value; default NEAR times it."""

    def random(self, stream: int) -> np.random.Generator:
        return np.random.default_rng([stream, *self.name.encode()])

    @cached_property
    def true(self) -> float:
        """Of two million requests."""
        drawn = self.draw(20_000, 100, self.random(1))
        return float(np.percentile(np.concatenate([one.latencies for one in drawn]), 99))

    @cached_property
    def usual(self) -> list[Estimate]:
        """Sessions with the default number of requests."""
        return [one.upto(DEFAULT) for one in self.draw(DEFAULT, self.sessions, self.random(2))]

    @cached_property
    def long(self) -> list[Session]:
        return list(self.draw(max(SIZES), SERIES, self.random(3)))

    @cache  # noqa: B019  # a few systems, each for the whole run
    def of_size(self, place: int) -> list[Estimate]:
        """Sessions of that size: the long ones from their beginning."""
        return [one.upto(SIZES[place]) for one in self.long]


def judged(estimate: Estimate, limit: float) -> JudgedObjective:
    return judge(Objective("ttft.p99", "<=", limit, "ms"), estimate)


def is_decided(estimate: Estimate, limit: float) -> bool:
    return judged(estimate, limit).verdict is not GateVerdict.INCONCLUSIVE


def far_limits(system: System) -> str:
    ends = np.array([math.inf if one.upper is None else one.upper for one in system.usual])
    cells = [f"{np.mean(ends <= times * system.true):.0%}" for times in FAR]
    return f"| {system.name} | {np.mean(ends >= system.true):.1%} | " + " | ".join(cells) + " |"


class Followed(NamedTuple):
    undecided: float
    """Share of the sessions that are undecided."""
    numbered: float
    """Share of these that get a number."""
    decided: float
    """Share of the sessions of that number that decide."""
    asked: float
    """The number in the median."""


def follow(system: System, limits: Sequence[float]) -> Followed | None:
    """What becomes of the undecided sessions of these limits; None where hardly any is."""
    undecided = [(one, limit) for limit in limits for one in system.usual if not is_decided(one, limit)]
    if len(undecided) < 5:
        return None
    asked, decided = [], []
    for one, limit in undecided:
        times = judged(one, limit).growth
        if times is None or not math.isfinite(times):
            continue
        asked.append(DEFAULT * times)
        place = int(np.argmin([abs(math.log(asked[-1] / n)) for n in SIZES]))
        decided.append(np.mean([is_decided(longer, limit) for longer in system.of_size(place)]))
    return Followed(
        len(undecided) / len(limits) / system.sessions,
        len(asked) / len(undecided),
        float(np.mean(decided)) if decided else math.nan,
        float(np.median(asked)) if asked else math.nan,
    )


def near_limits(system: System) -> Iterator[str]:
    rows = {f"{limit / system.true:.2g} x": (limit,) for limit in system.limits}
    if not rows:
        rows = {f"{times:.2g} x": (times * system.true,) for times in NEAR}
        rows["any"] = tuple(times * system.true for times in ANY)
    for name, limits in rows.items():
        found = follow(system, limits)
        if found is not None:
            shares = " | ".join(f"{each:.0%}" for each in found[:3])
            yield f"| {system.name} | {name} | {shares} | {found.asked:,.0f} |"


STATISTICS: dict[str, Callable[[Floats], Floats]] = {
    "P99": lambda rows: np.percentile(rows, 99, axis=1),
    "P95": lambda rows: np.percentile(rows, 95, axis=1),
    "P90": lambda rows: np.percentile(rows, 90, axis=1),
    "standard deviation": lambda rows: rows.std(axis=1),
    "third moment": lambda rows: (rows**3).mean(axis=1),
    "fourth moment": lambda rows: (rows**4).mean(axis=1),
    "mean": lambda rows: rows.mean(axis=1),
}
CALM, FALSE_PASSES, TRIED = 0.7, 0.025, 4000


def possible() -> Iterator[str]:
    """Of M/M/1 at 70 % load, the sessions that a statistic tells from the busier queue whose P99 is the
    limit, where its threshold is the best there is for just these two: passed falsely by 2.5 % of the busier.
    """
    random = np.random.default_rng(3)
    calm = times_in_system(exponential, CALM, DEFAULT, TRIED, random)
    # P99 of M/M/1 goes with 1 / (1 - load).
    busier = [
        times_in_system(exponential, 1 - (1 - CALM) / times, DEFAULT, TRIED, random) for times in FAR[:2]
    ]
    for name, statistic in STATISTICS.items():
        of_calm = statistic(calm)
        told = [np.mean(of_calm <= np.quantile(statistic(rows), FALSE_PASSES)) for rows in busier]
        yield f"| {name} | " + " | ".join(f"{share:.0%}" for share in told) + " |"


def systems(sessions: int, only: str, replay: bool) -> Sequence[System]:
    found = [System(name, draw, sessions) for name, draw in SYSTEMS.items() if only in name]
    if replay:
        found.append(System(REPLAYED, replayed(), sessions, limits=(100.0,)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What is decided about P99 by 1000 requests and by advice.")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--only", default="", help="systems whose name holds this")
    parser.add_argument("--replay", action="store_true", help="and the engine of the tutorial")
    parser.add_argument("--table", choices=("far", "near", "both", "possible"), default="both")
    asked = parser.parse_args()
    if asked.table == "possible":
        print("| statistic | " + " | ".join(f"{times:g} x" for times in FAR[:2]) + " |\n|---|---:|---:|")
        print("\n".join(possible()))
        return
    chosen = systems(asked.sessions, asked.only, asked.replay)
    if asked.table != "near":
        print("| latencies | holds | " + " | ".join(f"{times:g} x" for times in FAR) + " |")
        print("|---|" + "---:|" * (1 + len(FAR)))
        for system in chosen:
            print(far_limits(system), flush=True)
    if asked.table != "far":
        print("\n| latencies | limit | undecided | get a number | decide with it | the number |")
        print("|---|" + "---:|" * 5)
        for system in chosen:
            if system.name in (*FOLLOWED, REPLAYED):
                print("\n".join(near_limits(system)), flush=True)


if __name__ == "__main__":
    main()
