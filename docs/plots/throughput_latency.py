"""Draw the throughput-latency curve of two presets of the embedded engine, from replay.

    python docs/plots/throughput_latency.py

Writes throughput_latency.svg beside this file. Each point is a closed loop in virtual time, so the same seed
gives the same picture.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

PRESETS = ("h100-8b", "h100-70b-tp4")
LEVELS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
REQUESTS_PER_SLOT = 6
LABELLED = {2: (1, 16, 64, 256, 512), 3: (1, 16, 64, 256)}
"""Points that carry their number, by column: where they would lie on one another only one does."""
COLOURS = ("#1b6ca8", "#c2571a")
OUTPUT = Path(__file__).with_name("throughput_latency.svg")

Point = tuple[int, float, float, float]
"""Requests in flight, output tokens per second, TTFT P50 and TPOT P50 in ms."""


def measure(preset: str, concurrency: int) -> Point:
    requests = max(REQUESTS_PER_SLOT * concurrency, 60)
    plan = LoadPlan("curve", SYNTHETIC_UNIFORM, ClosedLoop(concurrency), requests, seed=42)
    records = ReplayEngine(parse_scenario(preset)).run(plan).records
    # The middle of the run: while the loop fills and drains, fewer are in flight.
    begin, end = np.percentile(records.submitted_ns, [20, 80])
    inside = (records.chunk_ns >= begin) & (records.chunk_ns < end)
    settled = (records.submitted_ns >= begin) & (records.submitted_ns < end)
    ttft_ms = (records.first_content_ns - records.submitted_ns)[settled] / 1e6
    steps = np.maximum(records.output_tokens - 1, 1)
    tpot_ms = ((records.last_content_ns - records.first_content_ns) / steps)[settled] / 1e6
    throughput = float(records.chunk_tokens[inside].sum() / ((end - begin) / 1e9))
    return concurrency, throughput, float(np.median(ttft_ms)), float(np.median(tpot_ms))


def draw(curves: dict[str, list[Point]]) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "throughput-latency", "font.size": 9})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.6), layout="constrained")
    for axes, column, label in zip(
        figure.subplots(1, 2), (3, 2), ("TPOT P50 (ms)", "TTFT P50 (ms)"), strict=True
    ):
        for (preset, points), colour in zip(curves.items(), COLOURS, strict=True):
            xs, ys = [point[1] for point in points], [point[column] for point in points]
            axes.plot(xs, ys, marker="o", markersize=3.5, color=colour, label=preset)
            for point, x, y in zip(points, xs, ys, strict=True):
                if point[0] in LABELLED[column]:
                    axes.annotate(
                        str(point[0]), (x, y), textcoords="offset points", xytext=(4, -9), fontsize=7
                    )
        axes.set(xlabel="output tokens per second", ylabel=label, yscale="log" if column == 2 else "linear")
        axes.set_xlim(left=0, right=1.08 * max(point[1] for points in curves.values() for point in points))
        if column == 3:
            axes.set_ylim(bottom=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, loc="upper left")
    figure.suptitle("Throughput and latency of two presets in replay; numbers are requests in flight")
    figure.savefig(OUTPUT, metadata={"Date": None})


def main() -> None:
    curves = {preset: [measure(preset, level) for level in LEVELS] for preset in PRESETS}
    for preset, points in curves.items():
        for concurrency, throughput, ttft_ms, tpot_ms in points:
            print(
                f"{preset:>14} {concurrency:4d} in flight: {throughput:8.0f} tok/s, "
                f"TTFT P50 {ttft_ms:8.1f} ms, TPOT P50 {tpot_ms:6.2f} ms"
            )
    draw(curves)
    print(OUTPUT)


if __name__ == "__main__":
    main()
