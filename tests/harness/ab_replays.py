"""A/B sessions in replay: arms that differ by a known share of every step, and by chance in their answers."""

from __future__ import annotations

from pytest_llmbench.compare.limits import RegressionLimit, comparisons
from pytest_llmbench.harness.comparison.arms import drive_together
from pytest_llmbench.harness.comparison.replication import paired_runs
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, WarmupPolicy
from pytest_llmbench.methodology.sections.ttft import TEST
from pytest_llmbench.model.estimate import ByRun
from pytest_llmbench.model.judgement import Comparison
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import PRESETS, parse_scenario
from pytest_llmbench.workloads.catalogue import workload

STEP_COSTS = ("step_base_us", "prefill_us_per_token", "decode_us_per_sequence", "kv_us_per_token")
ALLOWED = 0.02


def preset(slower: float, seed: int) -> str:
    """``fast``, each step of which takes ``slower`` longer, and whose answers end by chance."""
    figures = PRESETS["fast"]
    costs = "&".join(f"{name}={getattr(figures, name) * (1 + slower):.9g}" for name in STEP_COSTS)
    return f"fast?{costs}&eos_mean_tokens=400&seed={seed}"


def session(slower: float, seed: int, *, runs: int = 3, requests: int = 100) -> Comparison:
    """``tpot.p50`` of the candidate against the baseline, of which it may be 2 % more."""
    engines = {
        "candidate": ReplayEngine(parse_scenario(preset(slower, 2 * seed))),
        "baseline": ReplayEngine(parse_scenario(preset(0.0, 2 * seed + 1))),
    }
    parameters = build(TEST.parameters, {"rate": 20, "requests": requests, "runs": runs})
    setting = Setting(workload("synthetic-uniform"), seed, warmup=WarmupPolicy.none())
    results = drive_together(
        {name: TEST.procedure(parameters, setting) for name in engines},
        lambda name, plan: engines[name].run(plan),
        seed=seed,
    )
    arms: list[ByRun] = [dict(results[name].by_run) for name in ("baseline", "candidate")]
    limit = RegressionLimit("tpot.p50", ALLOWED, "test")
    return comparisons(*paired_runs(*arms), [limit], paired=True)[0]


def arms_of_a_load(
    baseline: str, candidate: str, *, runs: int = 2, concurrency: int = 8
) -> tuple[list[Observation], list[Observation]]:
    """The loads of two arms."""
    parameters = build(TEST.parameters, {"concurrency": concurrency, "requests": 60, "runs": runs})
    setting = Setting(workload("synthetic-uniform"), 1, warmup=WarmupPolicy.none())
    seen = []
    for scenario in (baseline, candidate):
        result = drive(TEST.procedure(parameters, setting), ReplayEngine(parse_scenario(scenario)).run)
        seen.append(list(result.observations))
    return seen[0], seen[1]


__all__ = ["ALLOWED", "arms_of_a_load", "preset", "session"]
