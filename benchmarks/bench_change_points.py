"""What E-divisive finds, and what where there is nothing: the table of docs/how-to/follow-the-history.md.

    python benchmarks/bench_change_points.py            # some minutes; --quick for a look

A series is normal noise; a step is so many times its standard deviation, after 20 values without one. It is
found where a change point lies at its place or next to it.
"""

from __future__ import annotations

import argparse

import numpy as np

from pytest_llmbench.stats.change_points import change_points

BEFORE = 20
STEPS, AFTER, LENGTHS = (2, 3, 5), (3, 4, 5, 7, 10), (20, 60)


def found(step: float, after: int, cases: int) -> int:
    """How many of ``cases`` steps are found."""
    count = 0
    for seed in range(cases):
        values = np.random.default_rng((step, after, seed)).normal(size=BEFORE + after)
        values[BEFORE:] += step
        count += any(abs(point.at - BEFORE) <= 1 for point in change_points(values))
    return count


def false_alarms(length: int, cases: int) -> int:
    """How many of ``cases`` series without a change show one."""
    series = (np.random.default_rng((length, seed)).normal(size=length) for seed in range(cases))
    return sum(bool(change_points(values)) for values in series)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    share = 10 if parser.parse_args().quick else 1
    print(f"| step | {' | '.join(f'after {after} sessions' for after in AFTER)} |")
    for step in STEPS:
        cells = " | ".join(str(found(step, after, 100 // share)) for after in AFTER)
        print(f"| {step} times the noise | {cells} |", flush=True)
    for length in LENGTHS:
        cases = 1000 // share
        print(f"false alarms with {length} sessions: {false_alarms(length, cases)} of {cases}", flush=True)


if __name__ == "__main__":
    main()
