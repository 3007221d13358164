"""What the rules of a job decide, and how often falsely: one run, ``runs="auto"``, several, a saved spread.

    python benchmarks/bench_jobs.py [--sessions 200] [--pool 200] [--only fast] [--table one|auto|width|saved]

Each server runs each shape of job once in virtual time, without noise. Noise between runs slows the whole
engine, and so is a monotone warp of time, t -> w(t), applied to all instants: exact, since the requests of a
closed loop follow from completions. A run is slower or faster throughout (log-normal, 1, 2, 5 %); runs of a
session drift by 1 % each; or a fifth of the runs pauses for 0.2 to 2 s. The truth is the geometric mean over
all runs of the pool from which sessions draw theirs. The figures are those of the product, by its rules
(:mod:`pytest_llmbench.metrics.jobs`, :mod:`pytest_llmbench.metrics.jobs`).
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.jobs import assumed_factor, job_interval
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.spectral import student_quantile
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

Floats = npt.NDArray[np.float64]

SERVERS = {
    "h100-8b": "h100-8b",
    "fast": "fast",
    "cpu-laptop": "cpu-laptop",
    "small batch": "h100-8b?max_num_seqs=16",
    "whole prompts": "h100-8b?chunked_prefill=off&context_limit_tokens=8192",
    "speculative": "h100-8b?speculative_tokens=4&acceptance=0.7",
    "short of memory": "h100-8b?kv_blocks=1500&context_limit_tokens=8192",
}
SHAPES = {"500 at once": (500, 500), "200 / 64": (200, 64), "640 / 64": (640, 64), "512 / 128": (512, 128),
          "1000 / 8": (1000, 8)}  # fmt: skip
"""Prompts and most in flight."""
_STATISTICS: dict[str, Callable[[Floats], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "p50": lambda values: float(np.quantile(values, 0.50)),
    "p99": lambda values: float(np.quantile(values, 0.99)),
}
NOISES = {"1 %": 0.01, "2 %": 0.02, "5 %": 0.05, "2 %, drift 1 % a run": 0.02, "2 %, pauses": 0.02}
GATED = ("makespan", "output_token_throughput", *(f"{f}.{s}" for f in ("ttft", "tpot", "itl", "e2e")
                                                  for s in _STATISTICS))  # fmt: skip


def group(metric: str) -> str:
    """The kind of figure, by which the tables are kept short."""
    family, _, statistic = metric.rpartition(".")
    if not family:
        return "makespan, tok/s"
    if statistic != "p99":
        return "means, P50"
    return "P99 of TTFT, E2E" if family in ("ttft", "e2e") else "P99 of TPOT, ITL"


class Base(NamedTuple):
    """A run without noise: instants in seconds from its start."""

    submitted: Floats
    first: Floats
    last: Floats
    finished: Floats
    tokens: Floats
    before: Floats
    """Start and, in ``after``, end of each gap between tokens."""
    after: Floats


def base(server: str, prompts: int, concurrency: int) -> Base:
    load, patient = ClosedLoop(concurrency), Deadlines(10.0, 1e6, 1e6, 1e6, 1e6)
    plan = LoadPlan("job", SYNTHETIC_UNIFORM, load, prompts, seed=42, ignore_eos=True, deadlines=patient)
    seen = ReplayEngine(parse_scenario(server)).run(plan)
    records = seen.records.select(seen.records.ok)
    assert len(records) == prompts, f"{server}: {len(records)} of {prompts} ended well"
    start = seen.started_ns
    sent, first, last, ended = (
        (each - start) / 1e9
        for each in (
            records.submitted_ns,
            records.first_content_ns,
            records.last_content_ns,
            records.finished_ns,
        )
    )
    chunks = (np.asarray(records.chunk_ns) - start) / 1e9
    inner = np.ones(len(chunks), dtype=bool)
    inner[records.chunk_offsets[:-1][np.diff(records.chunk_offsets) > 0]] = False  # the first has none before
    at = np.flatnonzero(inner)
    tokens = records.output_tokens.astype(float)
    return Base(sent, first, last, ended, tokens, chunks[at - 1], chunks[at])


def warped(run: Base, generator: np.random.Generator, spread: float, pauses: bool) -> dict[str, float]:
    """The figures of the job in a run with noise."""
    end = float(run.finished.max())
    speed, drift = generator.normal(0.0, spread), 0.01 * generator.choice((-1.0, 1.0))
    knots = np.linspace(0.0, end, 41)
    slower = np.exp(speed + drift * np.linspace(-0.5, 0.5, 40))
    passed = np.concatenate(([0.0], np.cumsum(np.diff(knots) * slower)))
    paused = generator.uniform(0.0, end) if pauses and generator.random() < 0.2 else math.inf
    length = generator.uniform(0.2, 2.0)

    def later(instants: Floats) -> Floats:
        return np.interp(instants, knots, passed) + np.where(instants > paused, length, 0.0)

    submitted, first, last, finished = map(later, run[:4])
    many = run.tokens > 1
    makespan = float(finished.max())
    samples = {
        "ttft": first - submitted,
        "tpot": (last - first)[many] / (run.tokens[many] - 1),
        "itl": later(run.after) - later(run.before),
        "e2e": finished - submitted,
    }
    found = {f"{name}.{s}": 1e3 * of(own) for name, own in samples.items() for s, of in _STATISTICS.items()}
    return found | {"makespan": makespan, "output_token_throughput": float(run.tokens.sum()) / makespan}


class Cell(NamedTuple):
    """The pool of runs of a server, a shape and a noise: metric → its figure in each run."""

    server: str
    shape: str
    noise: str
    pool: Mapping[str, Floats]

    def sessions(self, metric: str, runs: int, of: int) -> Iterator[Floats]:
        """Runs of ``of`` sessions, in their order."""
        generator, pool = np.random.default_rng(7), self.pool[metric]
        step = 0.01 * (-1 if metric.endswith("throughput") else 1) * ("drift" in self.noise)
        for _ in range(of):
            order = np.arange(runs) - (runs - 1) / 2 if runs <= 10 else np.zeros(runs)
            yield generator.choice(pool, runs) * np.exp(step * order)

    def truth(self, metric: str) -> float:
        return float(np.exp(np.mean(np.log(self.pool[metric]))))

    def limit(self, metric: str, away: float) -> Objective:
        """A limit that the truth keeps by a factor of ``away``."""
        truth = self.truth(metric)
        if metric.endswith("throughput"):
            return Objective(metric, ">=", truth / away, "")
        return Objective(metric, "<=", truth * away, "")


def decided(metric: str, runs: Floats, limit: Objective, saved: SavedSpread | None = None) -> bool | None:
    factor = assumed_factor(metric)
    assert factor is not None
    found = job_interval(list(runs), factor, saved=saved)
    return limit.decided(found.lower, found.upper)


def auto(metric: str, runs: Floats, limit: Objective) -> tuple[bool | None, int]:
    """``runs="auto"``: the verdict, and after how many of five runs."""
    first = decided(metric, runs[:1], limit)
    return (decided(metric, runs, limit), len(runs)) if first is None else (first, 1)


Row = dict[str, float]


def one(cell: Cell, metric: str, of: int) -> Row:
    away = 3.0 if group(metric) == "P99 of TPOT, ITL" else 2.0
    far, near = cell.limit(metric, away), cell.limit(metric, 1.0)
    runs = list(cell.sessions(metric, 1, of))
    return {
        "decided, 2 or 3 x": share(decided(metric, run, far) is True for run in runs),
        "false pass": share(decided(metric, run, near) is True for run in runs),
    }


def automatic(cell: Cell, metric: str, of: int) -> Row:
    far, near = cell.limit(metric, 1.2), cell.limit(metric, 1.0)
    runs = list(cell.sessions(metric, 5, of))
    at_far, at_near = ([auto(metric, run, limit) for run in runs] for limit in (far, near))
    return {
        "decided, 1.2 x": share(verdict is True for verdict, _ in at_far),
        "runs": float(np.mean([count for _, count in at_far])),
        "false fail, 1.2 x": share(verdict is False for verdict, _ in at_far),
        "false pass": share(verdict is True for verdict, _ in at_near),
    }


def width(cell: Cell, metric: str, of: int) -> Row:
    found = {}
    for count in (3, 5, 10):
        ours, students = [], []
        for run in cell.sessions(metric, count, of):
            ours.append(job_interval(list(run), 2.0).half)
            spread = float(np.std(np.log(run), ddof=1))
            students.append(student_quantile(count - 1, 0.95) * spread / math.sqrt(count))
        found[f"{count} runs"] = float(np.mean(ours) / np.mean(students)) if any(students) else math.nan
    return found


def saved(cell: Cell, metric: str, of: int) -> Row:
    """One run, by the spread of eight calibrated ones."""
    far, near = cell.limit(metric, 1.2), cell.limit(metric, 1.0)
    verdicts = []
    for run in cell.sessions(metric, 9, of):
        spread = SavedSpread(float(np.std(np.log(run[:8]), ddof=1)), 8)
        verdicts.append([decided(metric, run[8:], limit, spread) for limit in (far, near)])
    return {
        "decided, 1.2 x": share(far_one is True for far_one, _ in verdicts),
        "false fail, 1.2 x": share(far_one is False for far_one, _ in verdicts),
        "false pass": share(near_one is True for _, near_one in verdicts),
    }


TABLES = {"one": one, "auto": automatic, "width": width, "saved": saved}


def share(answers: Iterable[bool]) -> float:
    return float(np.mean(list(answers)))


def cells(only: str, pool: int) -> Iterator[Cell]:
    for server, scenario in SERVERS.items():
        for shape, (prompts, concurrency) in SHAPES.items():
            if only not in f"{server}, {shape}":
                continue
            run = base(scenario, prompts, concurrency)
            for noise, spread in NOISES.items():
                generator = np.random.default_rng(1)
                figures = [warped(run, generator, spread, "pauses" in noise) for _ in range(pool)]
                yield Cell(server, shape, noise, {m: np.array([each[m] for each in figures]) for m in GATED})


def shown(name: str, rows: Mapping[tuple[str, str], Sequence[tuple[str, Row]]]) -> None:
    """The table: the mean over servers, shapes and figures, with the worst of them and its per cent."""
    print(f"\n### {name}\n")
    columns = list(dict.fromkeys(key for cell in rows.values() for _, row in cell for key in row))
    print("| noise | figures | " + " | ".join(columns) + " |\n|---|---|" + "---:|" * len(columns))
    for (noise, kind), found in rows.items():
        told = []
        for column in columns:
            own = [(row[column], where) for where, row in found if not math.isnan(row.get(column, math.nan))]
            if not own:
                told.append("")
                continue
            mean = float(np.mean([value for value, _ in own]))
            if column == "runs" or name == "width":
                told.append(f"{mean:.2f}")
                continue
            most, where = max(own) if column.startswith("false") else min(own)
            worst = f" ({where}: {100 * most:.0f})" if abs(most - mean) >= 0.005 else ""
            told.append(f"{100 * mean:.1f} %{worst}")
        print(f"| {noise} | {kind} | " + " | ".join(told) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--pool", type=int, default=200, help="runs of each cell from which sessions draw")
    parser.add_argument("--only", default="", help="servers and shapes with this in their name")
    parser.add_argument("--table", choices=TABLES, action="append")
    given = parser.parse_args()
    tables = given.table or list(TABLES)
    rows: dict[str, dict[tuple[str, str], list[tuple[str, Row]]]] = {
        name: defaultdict(list) for name in tables
    }
    for cell in cells(given.only, given.pool):
        for name in tables:
            for metric in GATED:
                row = TABLES[name](cell, metric, given.sessions)
                rows[name][cell.noise, group(metric)].append((f"{cell.server}, {cell.shape}, {metric}", row))
    for name in tables:
        shown(name, rows[name])


if __name__ == "__main__":
    main()
