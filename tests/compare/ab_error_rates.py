"""How often an A/B errs: simulated sessions whose true change is known, judged as the plugin judges them.

``python tests/compare/ab_error_rates.py`` prints the table of ``docs/how-to/ab-test-two-builds.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from pytest_llmbench.compare.regression import compared
from pytest_llmbench.harness.comparison.arms import rounds
from pytest_llmbench.model.judgement import ComparisonVerdict

SESSIONS = 4000
DRIFT = 0.10
"""The last run of a drifting session is this much slower (or faster) than the first, whatever is measured."""


@dataclass(frozen=True)
class Design:
    """One kind of session."""

    runs: int
    """Of each arm."""
    noise: float
    """Standard deviation of a run, as a share of its level."""
    drift: float = 0.0
    interleaved: bool = True


def regressed(
    design: Design, change: float, margin: float, *, sessions: int = SESSIONS, seed: int = 1
) -> float:
    """Share of sessions called regressed in which the candidate is slower by ``change``."""
    generator = np.random.default_rng([seed, design.runs, round(1e4 * design.noise), round(1e4 * change)])
    verdicts = (_verdict(design, change, margin, generator, number) for number in range(sessions))
    return sum(verdict is ComparisonVerdict.REGRESSED for verdict in verdicts) / sessions


def _verdict(
    design: Design, change: float, margin: float, generator: np.random.Generator, number: int
) -> ComparisonVerdict:
    order = _order(design, number)
    slope = design.drift * generator.choice([-1.0, 1.0])
    when = np.linspace(0.0, 1.0, len(order))
    values = np.log(100.0) + slope * when + design.noise * generator.standard_normal(len(order))
    candidate = np.array([name == "candidate" for name in order])
    arms = np.exp(values[~candidate]), np.exp(values[candidate] + math.log1p(change))
    found = compared(
        "ttft.p50", "ms", "lower", arms[0].tolist(), arms[1].tolist(),
        margin=margin, paired=design.interleaved,
    )  # fmt: skip
    return found.verdict


def _order(design: Design, seed: int) -> list[str]:
    """Who runs when: in pairs as the plugin draws them, or one arm after the other."""
    if not design.interleaved:
        return ["baseline"] * design.runs + ["candidate"] * design.runs
    pairs = islice(rounds(("candidate", "baseline"), seed), design.runs)
    return [name for pair in pairs for name in pair]


def designs() -> Iterator[Design]:
    for drift, noise, runs, interleaved in product((0.0, DRIFT), (0.02, 0.05), (3, 5, 10), (True, False)):
        yield Design(runs, noise, drift, interleaved)


def rows(sessions: int = SESSIONS) -> Iterator[tuple[Design, dict[tuple[float, float], float]]]:
    """Each design with the share called regressed by (true change, margin)."""
    wanted = ((0.0, 0.0), (0.05, 0.05), (0.05, 0.0), (0.10, 0.0))
    for design in designs():
        yield design, {pair: regressed(design, *pair, sessions=sessions) for pair in wanted}


def main() -> None:
    print(
        "| drift | noise | runs per arm | order | no change | 5 % slower, 5 % allowed | 5 % slower "
        "| 10 % slower |\n|---|---|---|---|---|---|---|---|"
    )
    for design, shares in rows():
        order = "in pairs" if design.interleaved else "one arm after the other"
        cells = " | ".join(f"{100 * share:.1f} %" for share in shares.values())
        print(
            f"| {100 * design.drift:.0f} % | {100 * design.noise:.0f} % | {design.runs} | {order} | {cells} |"
        )


if __name__ == "__main__":
    main()

__all__ = ["DRIFT", "SESSIONS", "Design", "designs", "regressed", "rows"]
