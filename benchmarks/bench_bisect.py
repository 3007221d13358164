"""How often ``pytest-llmbench bisect`` finds a planted commit, and with how many runs.

    python benchmarks/bench_bisect.py [--cases 100]

A run measures 100 ms, from the planted commit on 5 or 10 % more, with normal noise between runs. ``found``:
of 100 cases, by the rule of the command (error 5 %, least change 2 %), which knows neither noise nor change.
``runs``: their mean. A plain bisection measures both ends and each commit that it visits r times, and takes
the side whose end is nearer. ``told``: its runs with the smallest r that finds 95 of 100, chosen with noise
and change known. ``untold``: with the r that keeps the same promise in every row of the table, since nobody
knows either beforehand. ``share``: runs / untold.
"""

from __future__ import annotations

import argparse
import math
from itertools import count, product

import numpy as np

from pytest_llmbench.extras.bisect.command import Bisection, sure_enough

NOISES, CHANGES, COMMITS = (0.01, 0.02, 0.05), (0.05, 0.10), (10, 50, 200)
ERROR, LEAST, MOST = 0.05, 0.02, 400
_PLAIN_CASES = 4000


def found(noise: float, change: float, last: int, random: np.random.Generator) -> tuple[bool, int]:
    """Whether a planted commit is found, and with how many runs."""
    culprit = int(random.integers(1, last + 1))
    known, suspects = Bisection(last, least=math.log1p(LEAST), rises=True), None
    while known.count < MOST:
        at = known.next_commit(suspects)
        level = math.log(100 * (1 + change * (at >= culprit)))
        known.add(at, math.exp(level + noise * random.standard_normal()))
        suspects = known.suspects()
        if known.both_ends and max(suspects.none, suspects.probability.max()) >= sure_enough(ERROR):
            break
    right = suspects is not None and suspects.none < 0.5 and int(suspects.probability.argmax()) == culprit
    return right, known.count


def plain(noise: float, change: float, last: int, runs: int, random: np.random.Generator) -> float:
    """The share of the cases that a plain bisection gets right."""
    rise, spread = math.log1p(change), noise / math.sqrt(runs)
    culprit = random.integers(1, last + 1, _PLAIN_CASES)
    low, high = np.zeros(_PLAIN_CASES, int), np.full(_PLAIN_CASES, last)
    middle = (
        spread * random.standard_normal(_PLAIN_CASES) + rise + spread * random.standard_normal(_PLAIN_CASES)
    ) / 2
    while (high - low > 1).any():
        going = high - low > 1
        at = (low + high) // 2
        bad = rise * (at >= culprit) + spread * random.standard_normal(_PLAIN_CASES) > middle
        high = np.where(going & bad, at, high)
        low = np.where(going & ~bad, at, low)
    return float((high == culprit).mean())


def fewest(noise: float, change: float, last: int) -> int:
    """The smallest r with which a plain bisection keeps the promise."""
    random = np.random.default_rng(1)
    return next(runs for runs in count(1) if plain(noise, change, last, runs, random) >= 1 - ERROR)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", type=int, default=100)
    cases = parser.parse_args().cases
    rows = list(product(NOISES, CHANGES, COMMITS))
    needed = {row: fewest(*row) for row in rows}
    one = max(needed.values())
    total = [0.0, 0.0, 0.0]
    print(
        "| noise | change | commits | found | runs | told | untold | share |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        noise, change, last = row
        random = np.random.default_rng(2)
        ended = [found(*row, random) for _ in range(cases)]
        visited = math.ceil(math.log2(last)) + 2
        own = [float(np.mean([runs for _, runs in ended])), needed[row] * visited, one * visited]
        total = [before + more for before, more in zip(total, own, strict=True)]
        right = sum(ok for ok, _ in ended)
        print(
            f"| {noise:.0%} | {change:.0%} | {last} | {right} of {cases} | {own[0]:.1f} | {own[1]:.0f} "
            f"| {own[2]:.0f} | {own[0] / own[2]:.0%} |",
            flush=True,
        )
    shares = total[0] / total[1], total[0] / total[2]
    print(
        f"\nall rows: {shares[0]:.0%} of the runs of the plain bisection that is told, {shares[1]:.0%} else"
    )


if __name__ == "__main__":
    main()
