"""Draw what the three questions are about: a finite job, a load that is carried, and one that is not.

    python docs/plots/three_questions.py

Writes three_questions.svg beside this file: the requests under way over virtual time in replay:h100-8b.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

ENGINE = "h100-8b?max_num_seqs=64"
PANELS: tuple[tuple[str, Load, int, str], ...] = (
    ("This job\n500 prompts, all at once", ClosedLoop(500), 500, "it ends: its makespan, its P99"),
    ("This system at this load\n10 requests per second", OpenLoop(10.0), 600, "it goes on alike: a sample"),
    ("This system, overloaded\n40 requests per second", OpenLoop(40.0), 1500, "the queue grows: it fails"),
)
COLOURS = ("#1b6ca8", "#1b6ca8", "#c2571a")
OUTPUT = Path(__file__).with_name("three_questions.svg")


def under_way(load: Load, requests: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Seconds, requests under way then, and the last send in seconds."""
    plan = LoadPlan("load", SYNTHETIC_UNIFORM, load, requests, seed=42)
    seen = ReplayEngine(parse_scenario(ENGINE)).run(plan)
    sent = (seen.records.submitted_ns - seen.started_ns) / 1e9
    ended = (seen.records.finished_ns - seen.started_ns) / 1e9
    at = np.linspace(0, float(ended.max()) * 1.02, 400)
    many = np.searchsorted(np.sort(sent), at, "right") - np.searchsorted(np.sort(ended), at, "right")
    return at, many, float(sent.max())


def main() -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "three-questions", "font.size": 9})
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 2.9), layout="constrained")
    panels = zip(figure.subplots(1, 3), PANELS, COLOURS, strict=True)
    for axes, (title, load, requests, told), colour in panels:
        at, many, last = under_way(load, requests)
        axes.fill_between(at, many, color=colour, alpha=0.25, linewidth=0)
        axes.plot(at, many, color=colour)
        if isinstance(load, OpenLoop):
            axes.axvline(last, color="#888888", linewidth=0.8, linestyle=":")
            at_top = axes.get_xaxis_transform()
            axes.text(last, 0.99, "last send ", color="#666666", transform=at_top, va="top", ha="right")
        axes.set(title=title, xlabel="seconds", xlim=(0, at[-1]), ylim=(0, max(many) * 1.25))
        axes.text(0.04, 0.88, told, transform=axes.transAxes, color=colour, va="top")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("requests under way")
    figure.savefig(OUTPUT, metadata={"Date": None})


if __name__ == "__main__":
    main()
