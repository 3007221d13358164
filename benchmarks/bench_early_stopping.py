"""How often a load that may end early is judged wrongly, and what it saves: the table of decide-early.md.

    python benchmarks/bench_early_stopping.py [--runs 1000]

Latencies of known distribution are looked at as in a run: after each 100 of at most 5000 requests. With the
limit exactly at the true value, passes are as false as they can be, and so are failures. The saving is that
of a limit well above or below it.
"""

from __future__ import annotations

import argparse
import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import Looks, Watched
from pytest_llmbench.stats.latencies import Ends
from pytest_llmbench.stats.looks import LookTaker

Floats = npt.NDArray[np.float64]
MOST = 5_000


def independent(n: int, rng: np.random.Generator) -> Floats:
    return rng.exponential(100.0, n)


def autoregressive(n: int, rng: np.random.Generator) -> Floats:
    """Log-normal with a logarithm that is AR(1), correlation 0.8 from one request to the next."""
    from scipy.signal import lfilter

    noise = rng.normal(size=n) * 0.6
    noise[0] /= 0.6
    return 100.0 * np.exp(0.5 * np.asarray(lfilter([1.0], [1.0, -0.8], noise)))


def queue(load: float) -> Callable[[int, np.random.Generator], Floats]:
    """Times in an M/M/1 queue of the given load, from its steady state on."""

    def draw(n: int, rng: np.random.Generator) -> Floats:
        service, between = rng.exponential(100.0, n), rng.exponential(100.0 / load, n)
        waited = rng.exponential(100.0 / (1 - load)) if rng.random() < load else 0.0
        walk = np.cumsum(np.concatenate(([waited], service[:-1] - between[1:])))
        return walk - np.minimum(np.minimum.accumulate(walk), 0.0) + service

    return draw


_BURN_IN = 6_000


def slots(count: int, load: float) -> Callable[[int, np.random.Generator], Floats]:
    """Stamps in an M/M/c queue, when requests come and go: the service of a request hides how long it
    waited."""

    def draw(n: int, rng: np.random.Generator) -> Floats:
        served, ended = rng.exponential(100.0, n + _BURN_IN), np.empty(n + _BURN_IN)
        arrived = np.cumsum(rng.exponential(100.0 / (load * count), n + _BURN_IN))
        free = [0.0] * count
        for place, (at, service) in enumerate(zip(arrived.tolist(), served.tolist(), strict=True)):
            end = max(at, free[0]) + service
            heapq.heapreplace(free, end)
            ended[place] = end
        return np.stack((arrived, ended))[:, _BURN_IN:]

    return draw


def bursty(load: float) -> Callable[[int, np.random.Generator], Floats]:
    """When requests are sent and when each ends, of one server, sent at two rates, one five times the other,
    in turns of 50 services on average (MMPP)."""

    def draw(n: int, rng: np.random.Generator) -> Floats:
        rates, state, turn = (load / 3, 5 * load / 3), int(rng.integers(2)), rng.exponential(50.0)
        gaps, waited = np.empty(n + _BURN_IN), 0.0
        for place, need in enumerate(rng.exponential(size=n + _BURN_IN).tolist()):
            gap = 0.0
            while need > turn * rates[state]:
                need -= turn * rates[state]
                gap, state, turn = gap + turn, 1 - state, rng.exponential(50.0)
            gaps[place] = gap + need / rates[state]
            turn -= need / rates[state]
        services, found = rng.exponential(size=n + _BURN_IN), np.empty(n + _BURN_IN)
        for place, (gap, service) in enumerate(zip(gaps.tolist(), services.tolist(), strict=True)):
            waited = max(0.0, waited - gap)
            found[place] = waited = waited + service
        sent = np.cumsum(gaps)
        return 100.0 * np.stack((sent, sent + found))[:, _BURN_IN:]

    return draw


@dataclass(frozen=True)
class Law:
    name: str
    draw: Callable[[int, np.random.Generator], Floats]
    quantile: Callable[[float], float]
    mean: float


def _simulated(truth: dict[float, float]) -> Callable[[float], float]:
    """Percentiles of four million requests."""
    return lambda share: truth[round(share, 4)]


def _exponential(mean: float) -> Callable[[float], float]:
    return lambda share: -mean * math.log(1 - share)


def _log_normal(share: float) -> float:
    from scipy.special import ndtri

    return 100.0 * math.exp(0.5 * float(ndtri(share)))


LAWS = (
    Law("independent", independent, _exponential(100.0), 100.0),
    Law("AR(1), 0.8", autoregressive, _log_normal, 100.0 * math.exp(0.125)),
    Law("M/M/1 at 50 %", queue(0.5), _exponential(200.0), 200.0),
    Law("M/M/1 at 70 %", queue(0.7), _exponential(100.0 / 0.3), 100.0 / 0.3),
    Law("M/M/1 at 85 %", queue(0.85), _exponential(100.0 / 0.15), 100.0 / 0.15),
    Law("M/M/8 at 80 %", slots(8, 0.8), _simulated({0.5: 98.8, 0.95: 350.9, 0.99: 514.8}), 128.7),
    Law("M/M/8 at 90 %", slots(8, 0.9), _simulated({0.5: 149.7, 0.95: 488.1, 0.99: 697.4}), 187.4),
    Law("M/M/32 at 80 %", slots(32, 0.8), _simulated({0.5: 72.2, 0.95: 302.5, 0.99: 463.4}), 102.5),
    Law("M/M/32 at 90 %", slots(32, 0.9), _simulated({0.5: 85.6, 0.95: 318.1, 0.99: 478.9}), 114.2),
    Law("M/M/32 at 95 %", slots(32, 0.95), _simulated({0.5: 115.5, 0.95: 369.5, 0.99: 531.6}), 143.6),
    Law("MMPP/M/1 at 60 %", bursty(0.6), _simulated({0.5: 462.6, 0.95: 2367.0, 0.99: 3779.2}), 736.7),
)


@dataclass(frozen=True)
class Rates:
    passed: float
    failed: float
    requests: float
    """Mean number looked at."""


def rates(
    law: Law, percentile: float | None, times: float = 1.0, *, runs: int, seed: int = 1, most: int = MOST
) -> Rates:
    """Of many loads with a limit of ``times`` the true percentile; None: the true mean."""
    limit = times * (law.mean if percentile is None else law.quantile(percentile / 100))
    watched = Watched(Objective("ttft", "<=", limit, "ms"), "ttft", percentile)
    rng, passed, failed, used = np.random.default_rng(seed), 0, 0, 0
    for _ in range(runs):
        taker = LookTaker(Looks((watched,), max_error_share=0.0), first=0, most=most)
        taker.note(ends(law.draw(most, rng)))
        verdict = taker.close()
        (found,) = verdict.estimates
        passed += found.upper is not None and found.upper <= limit
        failed += found.lower is not None and found.lower > limit
        used += verdict.n
    return Rates(passed / runs, failed / runs, used / runs)


def ends(latencies_ms: Floats) -> Ends:
    """Requests with these TTFT, all of them well; or with these stamps, in two rows."""
    n = latencies_ms.shape[-1]
    zero = np.zeros(n, dtype=np.int64)
    first_ns = np.rint((latencies_ms if latencies_ms.ndim == 1 else latencies_ms[1]) * 1e6).astype(np.int64)
    sent_ns = zero if latencies_ms.ndim == 1 else np.rint(latencies_ms[0] * 1e6).astype(np.int64)
    return Ends(
        ok=np.ones(n, dtype=bool),
        judged=np.ones(n, dtype=bool),
        given_up=np.zeros(n, dtype=bool),
        index=np.arange(n),
        scheduled_ns=zero,
        submitted_ns=sent_ns,
        first_event_ns=first_ns,
        first_nonempty_ns=first_ns,
        first_reasoning_ns=zero - 1,
        first_content_ns=first_ns,
        last_content_ns=first_ns,
        finished_ns=first_ns,
        input_tokens=zero + 100,
        output_tokens=zero + 1,
        reasoning_tokens=zero - 1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Error rates and savings of loads that may end early.")
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--only", default="", help="the laws whose name has this in it")
    asked = parser.parse_args()
    runs = asked.runs
    print("| latencies | limit on | false pass | false fail | saved, limit 1.6 x | saved, limit 0.6 x |")
    print("|---|---|---|---|---|---|")
    for law in (law for law in LAWS if asked.only in law.name):
        for percentile in (50.0, 95.0, 99.0, None):
            name = "mean" if percentile is None else f"P{percentile:g}"
            wrong = rates(law, percentile, runs=runs)
            above, below = (rates(law, percentile, times, runs=max(1, runs // 5)) for times in (1.6, 0.6))
            saved = " | ".join(f"{1 - kind.requests / MOST:.0%}" for kind in (above, below))
            print(
                f"| {law.name} | {name} | {wrong.passed:.1%} | {wrong.failed:.1%} | {saved} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
