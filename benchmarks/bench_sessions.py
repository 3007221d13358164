"""What sessions cost beside plain requests: CPU time of the load generator, and wall time of a replay.

    python benchmarks/bench_sessions.py             # both; --only generator or --only replay --sessions N

* **generator**: the same prompts twice, as turns of sessions and as requests of their own, in a closed loop
  against a server that answers at once, in turns. CPU time of this process per request, drawing left out.
* **replay**: sessions of 20 turns in virtual time, all of them (10,000, or ``--sessions``), with the CPU time
  and the peak of memory of the process; drawing of the workload and records are in it.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, SessionSlots
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.known_delay import MODEL, KnownDelayServer, Script
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.stream import StreamedWorkload

AT_ONCE, TURNS, TOKENS = 32, 5, 16
SHORT = SessionWorkload("short", Fixed(TURNS), Uniform(10, 40), Fixed(TOKENS))
LONG = SessionWorkload(
    "long", Fixed(20), Uniform(20, 100), Uniform(10, 40), Uniform(100, 4000), system_tokens=400
)


@dataclass(frozen=True, slots=True)
class Apart(StreamedWorkload):
    """The same prompts, none a turn of anything."""

    base: SessionWorkload
    name: str = "apart"
    standard: bool = False

    def _stream(self, seed: int) -> Iterator[PlannedRequest]:
        for request in self.base.requests(REQUESTS, seed):
            yield replace(request, turn=None)

    def specification(self) -> Mapping[str, Any]:
        return self.base.specification()


REQUESTS = 4_000


def cpu_us(generator: LoadGenerator, plan: LoadPlan) -> float:
    """Per request, from the start of the load to its end."""
    generator.run(plan.with_(requests=AT_ONCE * TURNS))
    seen = generator.run(plan)
    if not seen.records.ok.all() or seen.selfcheck.cpu_share is None:
        raise SystemExit(f"requests failed: {seen.records.counts()}")
    return seen.selfcheck.cpu_share * seen.duration_s / len(seen.records) * 1e6


def generator_costs(rounds: int) -> None:
    plain = LoadPlan("plain", Apart(SHORT), ClosedLoop(AT_ONCE), REQUESTS, seed=1)
    turns = LoadPlan("turns", SHORT, SessionSlots(AT_ONCE), REQUESTS, seed=1)
    ratios = []
    seen: dict[str, list[float]] = {"plain": [], "turns": []}
    with KnownDelayServer() as server:
        target = Target.parse(server.url(Script(0, 0, TOKENS)))
        for number in range(rounds):
            both = {}
            for plan in (plain, turns) if number % 2 else (turns, plain):
                with LoadGenerator(target, OpenAIChat(), model=MODEL) as generator:
                    both[plan.label] = cpu_us(generator, plan)
            for label, cost_us in both.items():
                seen[label].append(cost_us)
            ratios.append(both["turns"] / both["plain"])
            print(f"  plain {both['plain']:.0f} us, turns {both['turns']:.0f} us: {ratios[-1]:.3f}")
    print(f"CPU of the generator, a turn over a request: {statistics.median(ratios):.3f}", end=" ")
    print(f"({min(ratios):.3f} to {max(ratios):.3f}, {rounds} rounds of {REQUESTS:,}); ", end="")
    print(f"least of either: {min(seen['plain']):.1f} and {min(seen['turns']):.1f} us")


def replay_costs(sessions: int) -> None:
    requests = sessions * 20
    plan = LoadPlan("replay", LONG, SessionSlots(64), requests, seed=1)
    engine = ReplayEngine(parse_scenario("h100-8b?prefix_caching=true"))
    began, cpu_began = time.perf_counter(), time.process_time()
    seen = engine.run(plan)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"replay of {sessions:,} sessions of 20 turns, {len(seen.records):,} requests, ", end="")
    print(
        f"{int(seen.records.ok.sum()):,} ok: {took:.1f} s, {cpu:.1f} s of CPU, peak {peak_mib:.0f} MiB; ",
        end="",
    )
    print(f"{seen.duration_s / took:.0f} times real time")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=("generator", "replay"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    if options.only != "replay":
        generator_costs(options.rounds)
    if options.only != "generator":
        replay_costs(options.sessions)


if __name__ == "__main__":
    main()
