"""The contract of a test: a generator that yields LoadPlans and is sent Observations.

A procedure holds no I/O, so the same file is pumped against the real generator, the virtual-time engine,
distributed workers or stored records. Searches and sweeps are loops in plain Python::

    def procedure(parameters, setting):
        warmup = yield from warm_up(setting, ...)
        seen = yield plan                      # LoadPlan out, Observation in
        return result_of(seen)                 # TestResult

Parts of a procedure (warm-up, a capacity search) are procedures too, joined with ``yield from``.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pytest_llmbench.methodology.warmup_policy import WarmupPolicy
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Deadlines, LoadPlan
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult

Scale = Literal["quick", "standard", "full"]
SCALES: tuple[Scale, ...] = ("quick", "standard", "full")

R = TypeVar("R")
Procedure = Generator[LoadPlan, Observation, R]


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """A SUT variant as a procedure knows it, before anything was started."""

    name: str
    facts: Facts = field(default_factory=Facts)
    """What it declares, over the facts of the SUT: ``sut.prefix_caching``, ``guardrails.input_filter`` …"""
    can_be_fresh: bool = False
    """Whether ``LoadPlan.fresh_state`` can be granted: by a restart, or by a call that flushes its cache."""


@dataclass(frozen=True)
class Setting:
    """What a procedure is told about its surroundings."""

    workload: Workload
    seed: int
    scale: Scale = "standard"
    facts: Facts = field(default_factory=Facts)
    """The disclosure of the SUT, frozen before the first request."""
    warmup: WarmupPolicy = field(default_factory=WarmupPolicy)
    deadlines: Deadlines = field(default_factory=Deadlines)
    timeout_s: float | None = None
    """The user's own wait for the first byte and between chunks, as it stands in ``deadlines``; None: grown
    with what the SUT takes (methodology/patience.py)."""
    ignore_eos: bool = False
    variants: Mapping[str, VariantInfo] = field(default_factory=dict)
    """SUT variants that plans may name (DESIGN §2.4)."""
    least_runs: int = 1
    """Runs of its load that a comparison needs of a test that repeats it, at any scale."""
    remeasure: int = 2
    """How often a load is measured again that was void for a cause on the generator's own host."""
    salt: str = ""
    """The salt of a measurement that must not repeat the prompts of another one of this session: of a test
    that is measured anew, or once more. Empty for all others, whose equal loads are one."""
    overload_allowed: bool = False
    """The user allows a test to load the system up to failure (METHODOLOGY §13)."""


def one_warmup(parameters: Any, setting: Setting) -> Sequence[Workload]:  # noqa: ARG001 - the signature is the contract
    return (setting.workload,)


def no_needs(parameters: Any, setting: Setting) -> Sequence[str]:  # noqa: ARG001 - the signature is the contract
    return ()


@dataclass(frozen=True)
class TestDefinition:
    """A row of the catalogue: everything the harness needs to know about one test."""

    __test__ = False

    name: str
    section: str
    title: str
    parameters: type[Any]
    """Frozen dataclass of the marker's parameters."""
    procedure: Callable[[Any, Setting], Procedure[TestResult]]
    plans: Callable[[Any, Setting], tuple[LoadPlan, ...]]
    """The measured plans as far as they are known beforehand, in words of ``--llm-plan`` and for the identity
    of a baseline. What is sent at least and at most: ``bounds.py``."""
    needs: Callable[[Any, Setting], Sequence[str]] = no_needs
    """What the test misses in its surroundings, in words, before anything is sent; empty when it can run."""
    warmups: Callable[[Any, Setting], Sequence[Workload]] = one_warmup
    """The workload of each of its warm-ups."""
