"""How fast virtual time is: simulated output tokens per second of one core, LoadPlan to Records.

    python benchmarks/bench_replay.py

A closed loop keeps the batch full, so 64 in flight is a batch of 64. The same work of the engine alone (its
steps, without arrivals, records and the drawing of the workload) is timed in turn within one process, so that
a busy machine slows both; the figures are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

REQUESTS = 10_000
ROUNDS = 5
TARGET = 2e6
"""Tokens per second at a batch of 64."""
CASES = {
    "batch 64, fast": ("fast", ClosedLoop(64)),
    "batch 256, h100-8b": ("h100-8b", ClosedLoop(256)),
    "batch 4, fast": ("fast", ClosedLoop(4)),
    "open loop 40/s, fast": ("fast", OpenLoop(40)),
}


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def replay(scenario: str, load: ClosedLoop | OpenLoop) -> Observation:
    plan = LoadPlan("bench", SYNTHETIC_UNIFORM, load, REQUESTS, seed=42)
    return ReplayEngine(parse_scenario(scenario)).run(plan)


def engine_alone(scenario: str, lengths: list[tuple[int, int]]) -> None:
    """All requests at once in the queue of an engine that is then stepped until it is idle."""
    engine = Engine(parse_scenario(scenario).engine)
    for prompt, output in lengths:
        engine.submit(EngineSequence("", prompt, output))
    while not engine.idle:
        engine.step()


def main() -> None:
    drawn = SYNTHETIC_UNIFORM.requests(REQUESTS, 42)
    lengths = [(request.input_tokens, request.max_tokens) for request in drawn]
    print(f"{REQUESTS} requests of {SYNTHETIC_UNIFORM.name}, medians of {ROUNDS} rounds, one core")
    for name, (scenario, load) in CASES.items():
        seen = replay(scenario, load)
        tokens = int(seen.records.output_tokens.sum())
        whole = [seconds(lambda case=(scenario, load): replay(*case)) for _ in range(ROUNDS)]
        took = statistics.median(whole)
        print(
            f"{name:>22}: {tokens / took / 1e6:5.2f} million tokens/s ({tokens:,} tokens in {took:.2f} s), "
            f"{seen.duration_s / took:,.0f} times real time"
        )
        if name.startswith("batch 64"):
            alone = statistics.median(
                seconds(lambda name=scenario: engine_alone(name, lengths)) for _ in range(ROUNDS)
            )
            print(
                f"{'':>22}  target {TARGET / 1e6:g} million: {tokens / took / TARGET:.2f} of it; "
                f"the engine alone takes {alone / took:.0%} of the time"
            )


if __name__ == "__main__":
    main()
