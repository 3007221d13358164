"""Engines with round figures, and a driver that runs them on a virtual clock until they are idle."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_llmbench.registry import names
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.scheduling import Preemption, StepResult
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import parse_scenario

A, B, C, D = 1000.0, 10.0, 50.0, 0.5
FIGURES: dict[str, object] = {
    "step_base_us": A,
    "prefill_us_per_token": B,
    "decode_us_per_sequence": C,
    "kv_us_per_token": D,
}


def installed(*scenarios: str) -> list[str]:
    """Those of these options that this installation knows: those of several engines are an extra's."""
    of_extras = ("replicas=", "_workers=")
    return [each for each in scenarios if names("deployments") or not any(name in each for name in of_extras)]


def config(**overrides: object) -> EngineConfig:
    options = {**FIGURES, **overrides}
    return parse_scenario("fast?" + "&".join(f"{name}={value}" for name, value in options.items())).engine


def small_memory(**overrides: object) -> EngineConfig:
    """Five blocks of four tokens."""
    figures: dict[str, object] = {"kv_block_tokens": 4, "kv_blocks": 5, "context_limit_tokens": 20}
    return config(**{**figures, **overrides})


def eight_blocks(**overrides: object) -> EngineConfig:
    """Eight blocks of four tokens."""
    return small_memory(**{"kv_blocks": 8, "context_limit_tokens": 32, **overrides})


def us(value: float) -> int:
    return round(value * 1000)


@dataclass
class Run:
    """Everything that came of driving an engine until it was idle, on a virtual clock."""

    end_ns: int = 0
    steps: list[StepResult] = field(default_factory=list)
    step_ends_ns: list[int] = field(default_factory=list)
    token_ns: dict[EngineSequence, list[int]] = field(default_factory=dict)
    admitted_ns: dict[EngineSequence, int] = field(default_factory=dict)
    finished: list[EngineSequence] = field(default_factory=list)
    failed: list[EngineSequence] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)

    def note(self, step: StepResult) -> None:
        self.steps.append(step)
        for sequence in step.admitted:
            self.admitted_ns[sequence] = self.end_ns
        self.end_ns += step.duration_ns
        self.step_ends_ns.append(self.end_ns)
        for sequence in step.first_tokens + step.decoded:
            self.token_ns[sequence].append(self.end_ns)
        self.finished += step.finished
        self.failed += step.failed
        self.preempted += step.preempted


def drive(engine: Engine, arrivals: list[tuple[int, EngineSequence]]) -> Run:
    """Submit each sequence at its instant; what arrives during a step joins the next one."""
    run = Run(token_ns={sequence: [] for _, sequence in arrivals})
    coming = 0
    while coming < len(arrivals) or not engine.idle:
        if engine.idle:
            run.end_ns = max(run.end_ns, arrivals[coming][0])
        while coming < len(arrivals) and arrivals[coming][0] <= run.end_ns:
            engine.submit(arrivals[coming][1])
            coming += 1
        run.note(engine.step())
    return run


def drive_at_once(engine: Engine, sequences: list[EngineSequence]) -> Run:
    return drive(engine, [(0, sequence) for sequence in sequences])
