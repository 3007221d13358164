"""Energy in windows of a load, as it is sampled from the embedded engine's page, against its true energy.

    python benchmarks/bench_energy.py [--seconds 45] [--windows 30 10 3] [--interval 0.5]

The engine is a process of its own under four requests at a time, and its page (that of a DCGM exporter) is
read by the sampling process. Errors are over many windows that begin at random: by the counter of energy, and
by the readings of power alone, as of devices without a counter.
"""

from __future__ import annotations

import argparse
import threading
from dataclasses import replace
from time import monotonic_ns

import httpx
import numpy as np

from pytest_llmbench.extras.telemetry.metrics import energy
from pytest_llmbench.extras.telemetry.sampling import Sampler
from pytest_llmbench.harness.sut.endpoint import SampledMachine
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.simulator.serving.metrics_page import PATH
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

POWER = "fast?idle_w=70&step_w=300&decode_mj_per_token=50"
WINDOWS = 40


def asking(url: str, ended: threading.Event) -> None:
    """Short and long requests with pauses, so that power moves."""
    lengths = np.random.default_rng(1).integers(16, 400, 10_000)
    for tokens in lengths:
        if ended.is_set():
            return
        httpx.post(
            f"{url}/completions",
            json={"model": "sim-fast", "prompt": "a", "max_tokens": int(tokens), "ignore_eos": True},
            timeout=60.0,
        ).raise_for_status()
        ended.wait(float(tokens % 7) / 10)


def main() -> None:
    parser = argparse.ArgumentParser(description="Sampled energy against the embedded engine's truth.")
    parser.add_argument("--seconds", type=float, default=45.0)
    parser.add_argument("--windows", type=float, nargs="*", default=[30.0, 10.0, 3.0])
    parser.add_argument("--interval", type=float, default=0.5)
    given = parser.parse_args()
    with EmbeddedEngine.start(POWER) as engine:
        url = server_root(engine.url) + PATH
        sampler = Sampler(SampledMachine(urls=(url,), interval_s=given.interval))
        ended = threading.Event()
        users = [threading.Thread(target=asking, args=(engine.url, ended)) for _ in range(4)]
        try:
            sampler.ready()
            started_ns = monotonic_ns()
            for user in users:
                user.start()
            ended.wait(given.seconds)
            ended_ns = monotonic_ns()
            (series,) = sampler.during(started_ns, ended_ns).devices
            (curve,) = engine.energy()
        finally:
            ended.set()
            for user in users:
                user.join()
            sampler.close()
    by_power = replace(series, values={name: v for name, v in series.values.items() if name != "energy_j"})
    chance = np.random.default_rng(2)
    print(f"{len(series.at_ns)} readings in {given.seconds:g} s; largest error of {WINDOWS} windows")
    for length_s in given.windows:
        room_ns = ended_ns - started_ns - round(length_s * 1e9)
        begins_ns = started_ns + chance.integers(0, max(room_ns, 1), WINDOWS)
        edges = [np.array([at, at + round(length_s * 1e9)], dtype=np.int64) for at in begins_ns]
        true_j = [curve.joules(int(end)) - curve.joules(int(start)) for start, end in edges]
        told = []
        for name, own in (("counter", series), ("power", by_power)):
            found = [energy(own, each).total_j for each in edges]
            errors = [abs(j / true - 1) for j, true in zip(found, true_j, strict=True) if j is not None]
            void = sum(each is None for each in found)
            worst = f"{100 * max(errors):.2f} %" if errors else "none"
            told.append(f"{name} {worst}" + (f" ({void} void)" if void else ""))
        print(f"{length_s:5g} s: {', '.join(told)}")


if __name__ == "__main__":
    main()
