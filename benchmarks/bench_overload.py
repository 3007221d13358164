"""How often a system is called overloaded: one that is, and one that is only busy.

    python benchmarks/bench_overload.py [--table queues|engines|curves|busy] [--replications 200]
                                        [--only NAME ...]

Loads in percent of what the system carries, from an empty system on. ``queues``: requests taken in the order
sent by so many slots, with exponential, constant, Erlang, log-normal and hyperexponential services, and with
bursts; told by first outputs, and by ends alone. ``engines``: whole sessions of the test of TTFT on the
embedded engine, with a limit of twice what P50 is at half its capacity: FAIL, INVALID, and what is called
overloaded. ``curves``: what is called overloaded of engines whose time per step is no straight line over the
number of sequences that decode, and goes from the same to the same. ``busy``: the engine with a limit on P99
of TTFT at the true P99 of a long run, at 1/1.25 and at half of it (all of them should not pass), and at two
and three times it (that should).
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from replayed_sut import ReplayedSUT

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.validity import Budget, validity_of
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.metrics.latency import ttft_ms
from pytest_llmbench.metrics.overload import Passage, backing, overload, with_slots
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import Scenario, parse_scenario
from pytest_llmbench.stats.backlog import SlotQueue
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

Floats = npt.NDArray[np.float64]
Law = Callable[[np.random.Generator, int], Floats]
"""So many values of mean 1."""

LOADS = (70, 90, 95, 97, 110, 120, 150, 300, 600)
COUNTS = (300, 1000, 3000)
_NS = 1e9


def exponential(random: np.random.Generator, n: int) -> Floats:
    return random.exponential(size=n)


def constant(_: np.random.Generator, n: int) -> Floats:
    return np.ones(n)


def log_normal(random: np.random.Generator, n: int) -> Floats:
    return random.lognormal(-0.5, 1.0, n)


def erlang(random: np.random.Generator, n: int) -> Floats:
    return random.gamma(4.0, 0.25, n)


def hyperexponential(random: np.random.Generator, n: int) -> Floats:
    short = (1 + np.sqrt(0.6)) / 2
    return random.exponential(size=n) / np.where(random.random(n) < short, 2 * short, 2 - 2 * short)


def bursts(random: np.random.Generator, n: int) -> Floats:
    """Gaps at two rates, 1 : 5, that change once in 30."""
    gaps, state = np.empty(n), int(random.integers(2))
    for place in range(n):
        gaps[place] = random.exponential() * (3.0, 0.6)[state]
        state ^= int(random.random() < -np.expm1(-gaps[place] / 30))
    return gaps


class Queue(NamedTuple):
    slots: int
    services: Law
    gaps: Law = exponential

    def stamps(self, load: float, n: int, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """When each of n requests is sent, begins and ends."""
        sent = np.cumsum(self.gaps(random, n)) / (load * self.slots)
        lengths = self.services(random, n).tolist()
        free, begun = [0.0] * self.slots, sent.copy()
        for place, length in enumerate(lengths):
            begun[place] = max(begun[place], free[0])
            heapq.heapreplace(free, begun[place] + length)
        return sent, begun, begun + lengths


QUEUES = {
    "M/M/1": Queue(1, exponential),
    "M/M/8": Queue(8, exponential),
    "M/M/64": Queue(64, exponential),
    "M/D/1": Queue(1, constant),
    "M/D/8": Queue(8, constant),
    "M/E4/64": Queue(64, erlang),
    "M/LN/8": Queue(8, log_normal),
    "M/H2/8": Queue(8, hyperexponential),
    "bursts/M/1": Queue(1, exponential, bursts),
    "bursts/M/8": Queue(8, exponential, bursts),
}


def called(queue: Queue, load: float, n: int, random: np.random.Generator) -> tuple[bool, bool]:
    """Whether a run is called overloaded: by first outputs, and by ends alone."""
    sent, begun, ended = (np.round(each * _NS).astype(np.int64) for each in queue.stamps(load, n, random))
    first = begun + (ended - begun) // 20
    served, failed = np.ones(n, dtype=np.bool_), np.zeros(n, dtype=np.bool_)
    slots = SlotQueue.of(sent, ended, served).slots
    offered = load * queue.slots
    passages = (Passage(sent, first, served, failed), Passage(sent, ended, served, failed, slots))
    by_output, by_end = (backing([passage], offered) is not None for passage in passages)
    return by_output, by_end


def queue_rows(replications: int, only: list[str]) -> Iterator[str]:
    yield f"| first output · end alone | requests | {' | '.join(f'{load} %' for load in LOADS)} |"
    yield "|---|---:|" + "---:|" * len(LOADS)
    for name, queue in QUEUES.items():
        if only and not any(part in name for part in only):
            continue
        loads = [60, *LOADS[2:]] if queue.gaps is bursts else LOADS
        for n in COUNTS:
            cells = []
            for load in LOADS:
                if load not in loads:
                    cells.append("")
                    continue
                draws = [
                    np.random.default_rng([7, n, load, at, *name.encode()]) for at in range(replications)
                ]
                shares = np.mean([called(queue, load / 100, n, draw) for draw in draws], axis=0)
                cells.append(" · ".join(f"{share:.1%}" for share in shares))
            yield f"| {name} | {n:,} | {' | '.join(cells)} |"


ENGINES = (
    "h100-8b",
    "h100-8b?max_num_seqs=32",
    "h100-8b?max_num_seqs=128",
    "h100-70b-tp4",
    "fast",
    "fast?max_num_seqs=16",
    "fast?max_num_seqs=4",
    "cpu-laptop",
    "fast?max_num_seqs=1",
)
_ENGINE_LOADS = (70, 90, 95, 110, 120, 150, 300, 600)


def capacity(parsed: Scenario) -> float:
    """Requests per second with all slots at work."""
    slots = parsed.engine.max_num_seqs
    plan = LoadPlan("full", SYNTHETIC_UNIFORM, ClosedLoop(slots + max(1, slots // 6)), 6000, seed=1)
    records = ReplayEngine(parsed).run(plan).records
    assert records.ok.all()
    ended = np.sort(records.finished_ns)
    return 3000 / (float(ended[4500] - ended[1500]) / _NS)


def session(scenario: str, rate: float, n: int, seed: int, limit_ms: float) -> TestResult:
    sut = ReplayedSUT(scenario)
    parameters = ttft.Parameters(rate=rate, requests=n, p50_ms=limit_ms, workload=SYNTHETIC_UNIFORM.name)
    setting = replace(sut.setting(parameters.workload), seed=seed)
    result = drive(ttft.TEST.procedure(parameters, setting), sut.run)
    validity = validity_of(result, Budget())
    return result.judged(validity, None, gate(result.objectives, result.metrics, result.overload))


def engine_rows(replications: int, only: list[str]) -> Iterator[str]:
    yield "| engine | requests | figure | " + " | ".join(f"{load} %" for load in _ENGINE_LOADS) + " |"
    yield "|---|---:|---|" + "---:|" * len(_ENGINE_LOADS)
    for scenario in ENGINES:
        if only and scenario not in only:
            continue
        full = capacity(parse_scenario(scenario))
        calm = session(scenario, full / 2, 1000, 0, 1e9).metrics["ttft.p50"].point
        for n in COUNTS:
            found = []
            for load in _ENGINE_LOADS:
                every = [
                    session(scenario, full * load / 100, n, seed, 2 * calm) for seed in range(replications)
                ]
                found.append(np.mean([_figures(each) for each in every], axis=0))
            for place, figure in enumerate(("FAIL", "INVALID", "overloaded")):
                yield (
                    f"| {scenario} | {n:,} | {figure} | "
                    + " | ".join(f"{c[place]:.1%}" for c in found)
                    + " |"
                )


def _figures(judged: TestResult) -> tuple[bool, bool, bool]:
    void = bool(judged.validity.reasons)
    return judged.gate.verdict is GateVerdict.FAIL and not void, void, judged.overload is not None


CURVES: dict[str, Callable[[float], float]] = {
    "straight": lambda full: full,
    "root": math.sqrt,
    "ceiling from half on": lambda full: min(1.0, 2 * full),
    "powers of two": lambda full: 2.0 ** math.ceil(math.log2(full)),
    "jump at half": lambda full: full / 2 + (full > 0.5) / 2,
    "squared": lambda full: full**2,
    "flat until half": lambda full: max(0.0, 2 * full - 1),
}
"""What decoding adds to a step, over the share of the slots that decode; both of the full ones."""
_CURVED_ENGINES = ("h100-8b", "h100-8b?decode_us_per_sequence=60", "fast?decode_us_per_sequence=30")
_CURVED_LOADS = (90, 95, 97, 110, 120, 150)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvedEngine(EngineConfig):
    curve: str

    @classmethod
    def of(cls, scenario: str, curve: str) -> Scenario:
        parsed = parse_scenario(scenario)
        figures = {each.name: getattr(parsed.engine, each.name) for each in fields(EngineConfig)}
        return replace(parsed, engine=cls(**figures, curve=curve))

    def _more_us(self, decoding: int) -> float:
        full = decoding / self.max_num_seqs
        bent = CURVES[self.curve](full) - full if decoding else 0.0
        return self.decode_us_per_sequence * self.max_num_seqs * bent

    def step_ns(self, prefill_tokens: int, decode_sequences: int, *more: float) -> int:  # type: ignore[override]
        straight = EngineConfig.step_ns(self, prefill_tokens, decode_sequences, *more)  # type: ignore[arg-type]
        return straight + round(1000 * self._more_us(decode_sequences))

    def decode_step_us(self, decode_sequences: int) -> float:
        return EngineConfig.decode_step_us(self, decode_sequences) + self._more_us(decode_sequences)


def curve_rows(replications: int, only: list[str]) -> Iterator[str]:
    yield "| engine | curve | requests | " + " | ".join(f"{load} %" for load in _CURVED_LOADS) + " |"
    yield "|---|---|---:|" + "---:|" * len(_CURVED_LOADS)
    for scenario, curve in product(_CURVED_ENGINES, CURVES):
        if only and scenario not in only and curve not in only:
            continue
        curved = CurvedEngine.of(scenario, curve)
        full = capacity(curved)
        for n in COUNTS[:2]:
            cells = []
            for load in _CURVED_LOADS:
                rate, called = full * load / 100, 0
                for seed in range(replications):
                    plan = LoadPlan("curved", SYNTHETIC_UNIFORM, OpenLoop(rate), n, seed=seed)
                    called += overload([with_slots(ReplayEngine(curved).run(plan))], rate) is not None
                cells.append(f"{called / replications:.1%}")
            yield f"| {scenario} | {curve} | {n:,} | {' | '.join(cells)} |"


_BUSY_LOADS = (50, 70, 80, 90)


def busy_rows(replications: int, only: list[str]) -> Iterator[str]:
    yield "| engine | load | P99 of TTFT, ms | at it | at 1/1.25 | at 1/2 | at 2 x | at 3 x |"
    yield "|---|---:|" + "---:|" * 6
    for scenario in ENGINES:
        if only and scenario not in only:
            continue
        full = capacity(parse_scenario(scenario))
        for load in _BUSY_LOADS:
            rate = full * load / 100
            plan = LoadPlan("truth", SYNTHETIC_UNIFORM, OpenLoop(rate), 60_000, seed=7)
            seen = ReplayEngine(parse_scenario(scenario)).run(plan)
            truth = float(np.percentile(ttft_ms(seen.records)[5000:], 99))
            every = [session(scenario, rate, 1000, seed, truth) for seed in range(replications)]
            ends = np.array([each.metrics["ttft.p99"].upper or np.inf for each in every])
            shares = [np.mean(ends <= times * truth) for times in (1, 0.8, 0.5, 2, 3)]
            cells = " | ".join(f"{share:.1%}" for share in shares)
            yield f"| {scenario} | {load} % | {truth:.4g} | {cells} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = {"queues": queue_rows, "engines": engine_rows, "curves": curve_rows, "busy": busy_rows}
    parser.add_argument("--table", choices=tables, default="queues")
    parser.add_argument("--replications", type=int, default=200)
    parser.add_argument("--only", nargs="*", default=[])
    asked = parser.parse_args()
    for line in tables[asked.table](asked.replications, asked.only):
        print(line, flush=True)


if __name__ == "__main__":
    main()
