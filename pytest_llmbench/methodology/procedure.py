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
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

from pytest_llmbench.methodology.warmup_policy import WarmupPolicy
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Phase
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


@dataclass(frozen=True)
class Bounds:
    """Requests of one load, or of all loads of a kind that are taken from sequences of one workload."""

    workload: Workload
    seed: int
    """The seed of the sequence that they are taken from, or of the first of them."""
    key: str
    """Equal keys are the same requests, which are measured once."""
    least: int
    most: int
    per_rps: float = 0.0
    """Further requests for each request per second of capacity."""
    worst: int | None = None
    """The number with failed or short replies; None: no more than ``most``."""
    attempts: int = 1
    """How often it may be measured, where this machine spoils it."""
    least_s: float = 0.0
    most_s: float = 0.0
    """Nominal length of the loads that have one."""
    open_ended: bool = False
    """Some of them take as long as the system needs."""
    phase: Phase = Phase.MEASURE
    variant: str = ""
    fresh: bool = False
    """Preceded by a fresh state of the system: shared with no other test."""
    first: int = 0
    """Index of the first of them."""
    one_sequence: bool = True
    """False: of several sequences, so that their lengths are known by their laws only."""

    @property
    def at_worst(self) -> int:
        return self.attempts * max(self.most, self.worst or 0)

    def measured_up_to(self, attempts: int) -> Bounds:
        """These bounds, where every measured load may be void so often, and is measured again."""
        return self if self.phase is not Phase.MEASURE else replace(self, attempts=attempts)


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
    of a baseline."""
    bounds: Callable[[Any, Setting], Sequence[Bounds]]
    """All that the test sends at least and at most, warm-ups and probes included, with every way that its
    procedure may go; a load is counted once. Raises SuiteError for what cannot be run."""
    needs: Callable[[Any, Setting], Sequence[str]] = no_needs
    """What the test misses in its surroundings, in words, before anything is sent; empty when it can run."""
    warmups: Callable[[Any, Setting], Sequence[Workload]] = one_warmup
    """The workload of each of its warm-ups."""
