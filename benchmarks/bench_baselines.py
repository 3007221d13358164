"""How wide a comparison with saved sessions is, how often it errs, and what it finds.

    python benchmarks/bench_baselines.py [--sessions 400] [--replay] [--only MODE]

The first table is simulated: the logarithm of a run's figure is the sum of what its day, its requests and
the run itself add, each normal; requests add 4 % where their lengths are others. Sessions are judged as the
plugin judges them (``Reference``). Columns: median half-width of the interval; how often it lies wholly on
the worse and on the better side where nothing has changed (nominal 2.5 % each); how often a candidate 5 %
slower is found with nothing allowed, and one 10 % slower with 5 % allowed.

``--replay`` measures the same with a job and an open loop of the embedded engine in virtual time, whose speed
differs by 1 % from run to run; requests have the lengths that the plugin gives them, or new ones in each run
(``drawn``), as before there were lists.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compare.limits import RegressionLimit
from pytest_llmbench.harness.comparison.baselines import Reference
from pytest_llmbench.harness.comparison.identity import LENGTHS
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.methodology.sections.ttft import TEST
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import PRESETS, parse_scenario
from pytest_llmbench.store.baselines import BaselineTest
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

Floats = npt.NDArray[np.float64]
LISTS = {"drawn": None, "shared": "shared 7", "repeated": "repeated 7"}
"""Whose lengths the requests have → the field of the identity."""
MODES = {
    "other lengths in each run": ("drawn", 1),
    "one list, a stretch for each run": ("shared", 1),
    "one list, the same in each run": ("repeated", 1),
    "the same, 3 sessions": ("repeated", 3),
    "the same, 5 sessions": ("repeated", 5),
    "the same, 10 sessions": ("repeated", 10),
    "the same, one of them broken": ("repeated", 10),
}
"""Name → whose lengths, and the stored sessions."""
BROKEN = 0.2
"""Logarithm by which a broken session is slower."""
METRICS = ("ttft.p50", "tpot.p50", "e2e.p50")
STEP_COSTS = ("step_base_us", "prefill_us_per_token", "decode_us_per_sequence", "kv_us_per_token")


class Comparisons(NamedTuple):
    """The ends of the intervals of the change where nothing has changed, as logarithms."""

    lower: Floats
    upper: Floats

    @property
    def halfwidth(self) -> float:
        return math.expm1(float(np.median(self.upper - self.lower)) / 2)

    @property
    def false_alarms(self) -> tuple[float, float]:
        return float((self.lower > 0).mean()), float((self.upper < 0).mean())

    def found(self, slower: float, allowed: float = 0.0) -> float:
        """Share of the sessions in which a candidate slower by so much is called regressed. On logarithms a
        change moves the interval and nothing else."""
        return float((self.lower + math.log1p(slower) > math.log1p(allowed)).mean())

    def row(self) -> str:
        worse, better = self.false_alarms
        power = f"{self.found(0.05):.0%} | {self.found(0.10, 0.05):.0%}"
        return f"{self.halfwidth:.1%} | {worse:.1%} | {better:.1%} | {power}"


def compared(sessions: Sequence[Floats], lists: str) -> tuple[float, float]:
    """The ends of the interval of the last session against those before it, given by the figures of runs."""
    identity = {} if LISTS[lists] is None else {LENGTHS: LISTS[lists]}
    saved = [
        BaselineTest.model_construct(identity=identity, by_run={"tpot.p50": values.tolist()}, gate=None)
        for values in sessions[:-1]
    ]
    limit = RegressionLimit("tpot.p50", 0.05, "here")
    now = {"tpot.p50": sessions[-1].tolist()}
    (found,) = Reference.of(saved, identity).compared(now, [limit], ("saved", "now"))
    change = found.change
    assert change.lower is not None
    assert change.upper is not None
    return math.log1p(change.lower), math.log1p(change.upper)


@dataclass(frozen=True)
class Noise:
    """Standard deviations of logarithms."""

    run: float
    day: float
    lengths: float = 0.0


def simulated(
    noise: Noise, lists: str, stored: int, runs: int, count: int, *, broken: float = 0.0
) -> Comparisons:
    """Sessions whose days, lengths and runs add to the logarithm of a figure what ``noise`` says; to that of
    the second one ``broken`` as well."""
    generator = np.random.default_rng(
        [stored, runs, len(lists), round(1e4 * noise.run), round(1e4 * noise.day)]
    )
    shape = stored + 1, runs
    of_lengths = {"drawn": shape, "shared": (1, runs), "repeated": (1, 1)}[lists]
    ends = []
    for _ in range(count):
        days = noise.day * generator.standard_normal((stored + 1, 1))
        lengths = noise.lengths * generator.standard_normal(of_lengths)
        logs = days + lengths + noise.run * generator.standard_normal(shape)
        logs[1] += broken
        ends.append(compared(list(100 * np.exp(logs)), lists))
    return Comparisons(*np.array(ends).T)


class _Unlisted(SyntheticWorkload):
    """A workload that is not known to have other words, so that its lengths are drawn with them."""

    def rewording(self) -> Any:
        return None


LOADS: Mapping[str, Mapping[str, Any]] = {
    "job, 64 in flight": {"concurrency": 64, "requests": 200},
    "open loop, 20 req/s": {"rate": 20, "requests": 200},
}


def replayed(
    load: Mapping[str, Any],
    lists: str,
    noise: Noise,
    runs: int,
    generator: np.random.Generator,
) -> dict[str, Floats]:
    """The figures of the runs of a session on ``replay:h100-8b``, a day of its own."""
    laws = Uniform(128, 512), Uniform(64, 256)
    workload = (_Unlisted if lists == "drawn" else SyntheticWorkload)("lengths", *laws)
    parameters = build(TEST.parameters, {**load, "runs": runs, "workload": workload})
    setting = Setting(
        workload, 42, warmup=WarmupPolicy.none(), salt=str(generator.integers(1 << 30)),
        lengths="drawn" if lists == "drawn" else "shared",
    )  # fmt: skip
    day = noise.day * generator.standard_normal()

    def execute(plan: LoadPlan) -> Observation:
        slower = math.exp(day + noise.run * generator.standard_normal())
        costs = "&".join(f"{name}={getattr(PRESETS['h100-8b'], name) * slower:.9g}" for name in STEP_COSTS)
        return ReplayEngine(parse_scenario(f"h100-8b?{costs}")).run(plan)

    by_run = drive(TEST.procedure(parameters, setting), execute).by_run
    return {name: np.array(by_run[name], float) for name in METRICS}


def of_replays(count: int, noise: Noise, runs: int) -> Iterator[str]:
    """Rows of the second table."""
    for name, load in LOADS.items():
        for lists in ("drawn", "repeated" if "concurrency" in load else "shared"):
            generator = np.random.default_rng(5)
            pairs = [[replayed(load, lists, noise, runs, generator) for _ in range(2)] for _ in range(count)]
            for metric in METRICS:
                ends = [compared([own[metric] for own in two], lists) for two in pairs]
                found = Comparisons(*np.array(ends).T)
                yield f"| {name} | {lists} | {metric} | {found.row()} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--only", default="")
    parser.add_argument("--replay", action="store_true")
    given = parser.parse_args()
    figures = "half-width | false alarms, worse | better | 5 % slower | 10 % slower, 5 % allowed"
    if given.replay:
        print(f"| load | lengths | metric | {figures} |\n|{'---|' * 8}")
        for line in of_replays(given.sessions, Noise(run=0.01, day=0.0), given.runs):
            print(line, flush=True)
        return
    print(f"| noise of runs | of days | runs | lengths | {figures} |\n|{'---|' * 9}")
    for run, day, (name, (lists, stored)) in product((0.01, 0.02, 0.05), (0.0, 0.02), MODES.items()):
        if given.only not in name:
            continue
        broken = BROKEN if "broken" in name else 0.0
        noise = Noise(run, day, 0.04)
        found = simulated(noise, lists, stored, given.runs, given.sessions, broken=broken)
        print(f"| {run:.0%} | {day:.0%} | {given.runs} | {name} | {found.row()} |", flush=True)


if __name__ == "__main__":
    main()
