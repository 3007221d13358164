"""How late this machine wakes up: a kernel timer at random instants, with nothing else to do.

    python benchmarks/bench_wake_up.py [--rate 200] [--seconds 8]

The floor of every send on a schedule. An idle core takes its time to come back, a virtual one more of it; the
generator passes the last part of the time before a send awake (``slack_ns`` of ``timing.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time

import numpy as np

from pytest_llmbench.generator.loop_thread import fastest_loop
from pytest_llmbench.timing import TimerFdAlarm


async def lateness_us(rate: float, seconds: float) -> list[float]:
    """Of each ring, in microseconds."""
    alarm = TimerFdAlarm(asyncio.get_running_loop())
    late, generator = [], random.Random(1)
    due_ns = time.monotonic_ns()
    until_ns = due_ns + round(seconds * 1e9)
    while due_ns < until_ns:
        due_ns += round(generator.expovariate(rate) * 1e9)
        if due_ns > time.monotonic_ns():
            await alarm.sleep_until(due_ns)
            late.append((time.monotonic_ns() - due_ns) / 1000)
    alarm.close()
    return late


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=8.0)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=fastest_loop) as runner:
        late = runner.run(lateness_us(options.rate, options.seconds))
    middle, high, most = np.percentile(late, [50, 99, 100])
    print(f"{len(late)} rings, late by P50 {middle:.0f}, P99 {high:.0f}, at most {most:.0f} µs")


if __name__ == "__main__":
    main()
