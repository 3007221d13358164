"""What intervals cost: percentiles with intervals of 10,000 requests and of 2.5 million token gaps.

    python benchmarks/bench_statistics.py

Against the same percentiles without intervals, and against naive resampling: drawing the samples anew, with
replacement, a few times, scaled to the 2000 times that an interval would take (and without any regard to
dependence). All are timed in turn within one process, by its processor time; medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pytest_llmbench.metrics.itl import ItlSamples, itl_distribution
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.stats.percentiles import PERCENTILES
from pytest_llmbench.stats.spectral import RESAMPLES

REQUESTS, TOKENS = 10_000, 250
FAMILIES = ("ttft", "tpot", "e2e")
ROUNDS = 5
NAIVE = 3
TARGET_S = 1.0


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


def latencies(n: int) -> np.ndarray:
    """Log-normal latencies (ms) whose logarithms are an AR(1) series: what queueing makes of them."""
    from scipy.signal import lfilter

    noise = np.random.default_rng(1).normal(size=n)
    return np.exp(5 + 0.5 * lfilter([1.0], [1.0, -0.8], noise))


def gaps() -> ItlSamples:
    random = np.random.default_rng(2)
    values = np.repeat(latencies(REQUESTS) / 10, TOKENS) * random.gamma(9.0, 1 / 9, size=REQUESTS * TOKENS)
    return ItlSamples.of("direct", values, np.arange(REQUESTS + 1) * TOKENS)


def naively(samples: np.ndarray) -> None:
    random = np.random.default_rng(3)
    for _ in range(NAIVE):
        np.percentile(random.choice(samples, len(samples)), list(PERCENTILES.values()))


def timed(name: str, samples: np.ndarray, families: int, work: Callable[[], object]) -> float:
    work()  # the first call imports scipy
    times: dict[str, list[float]] = {"bare": [], "naive": [], "ours": []}
    for _ in range(ROUNDS):
        times["bare"].append(seconds(lambda: np.percentile(samples, list(PERCENTILES.values()))))
        times["naive"].append(seconds(lambda: naively(samples)) * RESAMPLES / NAIVE)
        times["ours"].append(seconds(work))
    bare, naive = (families * statistics.median(times[what]) for what in ("bare", "naive"))
    ours = statistics.median(times["ours"])
    print(
        f"{name}: with intervals {ours:.3f} s, {ours / bare:.1f} times np.percentile ({bare:.3f} s); "
        f"naive resampling {naive:.1f} s, {naive / ours:,.0f} times as long"
    )
    return ours


def main() -> None:
    requests, tokens = latencies(REQUESTS), gaps()
    print(f"{REQUESTS:,} requests, {len(tokens.values):,} gaps; medians of {ROUNDS} rounds, one core")

    def every_family() -> None:
        for family in FAMILIES:
            distribution(family, requests)

    total = timed(", ".join(FAMILIES), requests, len(FAMILIES), every_family)
    # A copy each time, which has looked up nothing yet.
    total += timed("itl, by whole requests", tokens.values, 1, lambda: itl_distribution(replace(tokens)))
    print(f"together {total:.2f} s, the target is {TARGET_S:g} s")


if __name__ == "__main__":
    main()
