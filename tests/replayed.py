"""Loads on the engine in virtual time, and what they gave as values that can be compared."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.records import Records
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

MIXED = SyntheticWorkload("mixed", Uniform(20, 300), Uniform(1, 120))
CHAT = SessionWorkload("chat", Uniform(2, 8), Uniform(10, 90), Uniform(5, 60), Uniform(100, 4000))
WITH_SYSTEM = SessionWorkload(
    "system", Uniform(2, 8), Uniform(10, 90), Uniform(5, 60), Uniform(100, 4000), system_tokens=330
)


def fixed(prompt: int, output: int) -> SyntheticWorkload:
    return SyntheticWorkload(f"{prompt}-{output}", Fixed(prompt), Fixed(output))


def replayed(scenario: str, *plans: LoadPlan) -> list[Observation]:
    """The plans one after another on one engine."""
    engine = ReplayEngine(parse_scenario(scenario))
    return [engine.run(plan) for plan in plans]


def replay(scenario: str, plan: LoadPlan) -> Observation:
    (seen,) = replayed(scenario, plan)
    return seen


def columns(records: Records) -> dict[str, list[object]]:
    values = {column.name: getattr(records, column.name) for column in fields(records)}
    return {k: v.tolist() if isinstance(v, np.ndarray) else list(v) for k, v in values.items()}
