"""What the served engine can be trusted with on this machine: pacing error, and the chunks it can write.

    python benchmarks/bench_engine.py [--seconds 10]

Light load shows how late tokens leave against the model's own schedule. The flood shows where the *engine* is
the limit: below that rate of chunks a latency is the model's, above it the server's. Figures are read from
the engine's own account (``/sim/status``), per second of its CPU time: the generator's share does not count.
"""

from __future__ import annotations

import argparse
from typing import Any

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

LIGHT = "fast"
FLOOD = "fast?step_base_us=1&prefill_us_per_token=0.01&decode_us_per_sequence=0.01&kv_us_per_token=0"
SHORT_PROMPTS = SyntheticWorkload("short-prompts", Fixed(16), Fixed(160))


def account(scenario: str, load: Load, requests: int) -> dict[str, Any]:
    """The engine's status after the load, with the chunks and the CPU seconds that the load took."""
    with EmbeddedEngine.start(scenario) as engine:
        target = Target.parse(engine.url)
        with LoadGenerator(target, dialect("openai-chat"), model=engine.model) as generator:
            before = engine.status()["cpu_s"]
            seen = generator.run(LoadPlan("bench", SHORT_PROMPTS, load, requests, seed=1))
            status: dict[str, Any] = engine.status()
    status["chunks"] = len(seen.records.chunk_ns)
    status["cpu_used_s"] = status["cpu_s"] - before
    status["ok"] = int(seen.records.ok.sum())
    status["wall_s"] = seen.duration_s
    return status


def main() -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="length of the light load")
    seconds = parser.parse_args().seconds
    for rate in (5, 20, 40):
        status = account(LIGHT, OpenLoop(float(rate)), max(int(rate * seconds), 1))
        late = status["pacing_error_us"]
        print(
            f"{LIGHT} at {rate} req/s: pacing error P50 {late['p50']:.0f} µs, P99 {late['p99']:.0f} µs, "
            f"{status['cpu_used_s'] / status['wall_s']:.2f} of a core"
        )
    status = account(FLOOD, ClosedLoop(64), 2_000)
    print(
        f"flood, 64 in flight: {status['chunks'] / status['cpu_used_s']:,.0f} chunks per second of the "
        f"engine's CPU time, {status['chunks'] / status['wall_s']:,.0f} chunks/s seen, "
        f"{status['ok']} of 2000 ok"
    )


if __name__ == "__main__":
    main()
