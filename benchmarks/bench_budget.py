"""What a comparison within a budget of time finds, and how soon.

    python benchmarks/bench_budget.py [--sessions 400] [--replay 20]

The first table is of simulated arms: the logarithm of a figure of a run is normal with the noise between
runs, both arms drift by 1 % a run, twelve rounds fit. Whether an unchanged build comes out red (slower, or
undecided), how often builds that are 5 and 10 % slower are found, and how many rounds that took, over the
rounds of an oracle: the fewest pairs with which a t-test that knows the noise beforehand finds 5 % in 90 of
100 sessions. ``saved``: a calibration of 8 runs is there, else 3 % of noise is assumed. The rounds are
counted for the slower build; a session without a decision counts with all of its rounds.

``--replay``: so many real sessions of ``replay:h100-8b`` at 20 requests per second in five minutes, whose
engine is by 0, 5 and 10 % slower in every step and has 1 % of noise between rounds.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.compare.regression import LogRatio, as_promised
from pytest_llmbench.harness.comparison.arms import drive_together
from pytest_llmbench.harness.comparison.budget import ALPHA, ROUNDS, Spending, detectable, shaped, spending
from pytest_llmbench.harness.comparison.replication import MOST_ROUNDS
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, TestDefinition, WarmupPolicy
from pytest_llmbench.methodology.sections import job, ttft
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.judgement import ComparisonVerdict
from pytest_llmbench.model.observation import ClockAnchor, Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

METRIC = "e2e.p50"
ARMS = ("candidate", "baseline")
PLAN = LoadPlan("run", SYNTHETIC_UNIFORM, ClosedLoop(8), 1, seed=1)
NOTHING = Records.concatenate([])
SECOND = 1_000_000_000
NOISES, MARGINS, SLOWER = (0.01, 0.02, 0.05), (0.0, 0.02), (0.0, 0.05, 0.10)
DRIFT = 0.01


class Ended(NamedTuple):
    verdict: ComparisonVerdict
    rounds: int


def session(noise: float, slower: float, margin: float, saved: bool, random: np.random.Generator) -> Ended:
    """One session whose budget has time for twelve rounds of runs of one second."""
    limits = (RegressionLimit(METRIC, margin, "bench"),)
    spread = SavedSpread(float(np.std(random.normal(0, noise, 8), ddof=1)), 8)
    spreads = {METRIC: spread} if saved else {}
    values: dict[int, float] = {}

    def figures(_: str, seen: Observation) -> Mapping[str, float | None]:
        return {METRIC: values[seen.started_ns]}

    promised = {each.metric: each.share for each in detectable(limits, spreads, ROUNDS)}
    spent = Spending(2.0 * ROUNDS, ARMS, figures, limits, promised=promised)
    at = 0
    while True:
        for arm in ARMS if at % 4 == 0 else ARMS[::-1]:
            if spent.declines(arm, PLAN) is not None:
                return Ended(_verdict(spent, limits, METRIC), spent.rounds)
            level = math.log1p(slower) if arm == ARMS[0] else 0.0
            values[at] = math.exp(level + DRIFT * at / 2 + random.normal(0, noise))
            spent.note(arm, PLAN, Observation(PLAN, NOTHING, at, at + SECOND, ClockAnchor(0, 0)))
            at += 1


def _verdict(spent: Spending, limits: Sequence[RegressionLimit], metric: str) -> ComparisonVerdict:
    arms = [{metric: [run[metric] for run in spent.figures[arm]]} for arm in reversed(ARMS)]
    (found,) = comparisons(*arms, limits, paired=True, level=spent.level)
    return as_promised(found, spent.promised[metric]).verdict


def oracle_rounds(noise: float, margin: float, slower: float = 0.05) -> int:
    """The fewest pairs with which a t-test at 95 % finds the worsening in 90 of 100 sessions, planned with
    the true noise."""
    beyond = math.log1p(slower) - math.log1p(margin)
    for pairs in range(2, 1000):
        ratio = LogRatio(0.0, noise * math.sqrt(2 / pairs), pairs - 1.0, 0.95, "", noise_freedom=1e6)
        found = ratio.found_with(0.9)
        if found is not None and found <= beyond:
            return pairs
    return 1000


def simulated(sessions: int) -> None:
    print(f"{sessions} sessions a cell, at most {ROUNDS} rounds, error of all looks {ALPHA:.0%}\n")
    print(
        "| noise | margin | noise known | unchanged red | 5 % found | 10 % found | rounds for 5 % | oracle "
        "| ratio |"
    )
    print("|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    for noise in NOISES:
        for margin in MARGINS:
            for saved in (True, False):
                random = np.random.default_rng(1)
                ended = {
                    slower: [session(noise, slower, margin, saved, random) for _ in range(sessions)]
                    for slower in SLOWER
                }
                red = [
                    each.verdict in (ComparisonVerdict.REGRESSED, ComparisonVerdict.INCONCLUSIVE)
                    for each in ended[0.0]
                ]
                found = [
                    np.mean([each.verdict is ComparisonVerdict.REGRESSED for each in ended[slower]])
                    for slower in SLOWER[1:]
                ]
                rounds, oracle = np.mean([each.rounds for each in ended[0.05]]), oracle_rounds(noise, margin)
                print(
                    f"| {noise:.0%} | {margin:.0%} | {'saved' if saved else 'assumed'} | {np.mean(red):.1%} "
                    f"| {found[0]:.1%} | {found[1]:.1%} | {rounds:.1f} | {oracle} | {rounds / oracle:.2f} |"
                )


STEP = {
    "step_base_us": 6500.0,
    "prefill_us_per_token": 36.0,
    "decode_us_per_sequence": 15.0,
    "kv_us_per_token": 0.065,
}
"""The costs of ``h100-8b``, which a slower engine has more of."""
FIVE_MINUTES, RATE = 300.0, 20.0


def replayed(sessions: int) -> None:
    """Whole procedures on the embedded engine: TTFT and request latency of an open loop, throughput of a
    job."""
    print(f"\n{sessions} sessions of h100-8b in five minutes, 1 % of noise between runs, margin 2 %\n")
    print("| test | metric | unchanged red | 5 % found | 10 % found | rounds for 5 % |")
    print("|---|---|---:|---:|---:|---:|")
    loads = (
        (ttft.TEST, {"rate": RATE}, ("tpot.p50", "e2e.p50", "ttft.p50")),
        (job.TEST, {"prompts": 200, "concurrency": 64}, ("output_token_throughput", "ttft.p50")),
    )
    for test, given, metrics in loads:
        for metric in metrics:
            random = np.random.default_rng(1)
            ended = {
                slower: [replayed_session(test, given, metric, slower, random) for _ in range(sessions)]
                for slower in SLOWER
            }
            bad = (ComparisonVerdict.REGRESSED, ComparisonVerdict.INCONCLUSIVE)
            red = np.mean([each.verdict in bad for each in ended[0.0]])
            found = [
                np.mean([each.verdict is ComparisonVerdict.REGRESSED for each in ended[slower]])
                for slower in SLOWER[1:]
            ]
            rounds = np.mean([each.rounds for each in ended[0.05]])
            print(f"| {test.name} | {metric} | {red:.1%} | {found[0]:.1%} | {found[1]:.1%} | {rounds:.1f} |")


def replayed_session(
    test: TestDefinition, given: Mapping[str, Any], metric: str, slower: float, random: np.random.Generator
) -> Ended:
    settings = Settings(baseline_endpoint="replay")
    parameters = shaped(build(test.parameters, given), settings, FIVE_MINUTES)
    base = parse_scenario("h100-8b")
    setting = Setting(
        workload("synthetic-uniform"),
        int(random.integers(1 << 31)),
        facts=ReplayEngine(base).disclosure(),
        warmup=WarmupPolicy.none(),
        least_runs=3,
        most_runs=MOST_ROUNDS,
        lengths="shared",
    )
    limits = (RegressionLimit(metric, 0.02, "bench"),)
    spent = spending(test, parameters, dict.fromkeys(ARMS, setting), limits, FIVE_MINUTES)

    def execute(arm: str, plan: LoadPlan) -> Observation:
        why = spent.declines(arm, plan)
        if why is not None:
            return Observation(plan, NOTHING, 0, 1, ClockAnchor(0, 0), declined=why)
        speed = math.exp(random.normal(0, 0.01)) * (1 + slower if arm == ARMS[0] else 1)
        costs = "&".join(f"{name}={value * speed:.8g}" for name, value in STEP.items())
        seen = ReplayEngine(parse_scenario(f"h100-8b?{costs}")).run(plan)
        spent.note(arm, plan, seen)
        return seen

    procedures = {arm: test.procedure(parameters, setting) for arm in ARMS}
    drive_together(procedures, execute, seed=setting.seed)
    return Ended(_verdict(spent, limits, metric), spent.rounds)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--replay", type=int, default=0, help="sessions of the embedded engine")
    given = parser.parse_args()
    simulated(given.sessions)
    if given.replay:
        replayed(given.replay)


if __name__ == "__main__":
    main()
