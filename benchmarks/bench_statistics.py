"""What intervals cost: percentiles with intervals against bare percentiles, for 10,000 requests.

    python benchmarks/bench_statistics.py

Both are timed in turn within one process, so that a busy machine slows both; the ratio is of the medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from pytest_llmbench.metrics.summary import PERCENTILES, distribution

REQUESTS = 10_000
ROUNDS = 15
FAMILIES = 7
"""A TTFT result holds that many distributions."""


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def latencies(correlation: float) -> np.ndarray:
    """Log-normal latencies (ms) whose logarithms are an AR(1) series: what queueing makes of them."""
    from scipy.signal import lfilter

    noise = np.random.default_rng(1).normal(size=REQUESTS)
    return np.exp(5 + 0.5 * lfilter([1.0], [1.0, -correlation], noise))


def main() -> None:
    print(f"{REQUESTS} requests, medians of {ROUNDS} alternating rounds")
    for name, correlation in (("independent", 0.0), ("queued", 0.8)):
        samples = latencies(correlation)
        distribution("ttft", samples, seed=1)  # the first call imports scipy.special
        bare, full = [], []
        for _ in range(ROUNDS):
            bare.append(seconds(lambda x=samples: np.percentile(x, list(PERCENTILES.values()))))
            full.append(seconds(lambda x=samples: distribution("ttft", x, seed=1)))
        plain, with_intervals = statistics.median(bare), statistics.median(full)
        print(
            f"{name:>12}: np.percentile {plain * 1e3:.2f} ms, with intervals {with_intervals * 1e3:.1f} ms, "
            f"ratio {with_intervals / plain:.0f}; {FAMILIES} families take {FAMILIES * with_intervals:.2f} s"
        )


if __name__ == "__main__":
    main()
