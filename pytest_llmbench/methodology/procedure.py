"""The contract of a test: a generator that yields LoadPlans and is sent Observations.

A procedure holds no I/O, so the same file is pumped against the real generator, the virtual-time engine,
distributed workers or stored records. Searches and sweeps are loops in plain Python::

    def procedure(parameters, setting):
        warmup = yield from warm_up(setting, ...)
        seen = yield plan                      # LoadPlan out, Observation in
        return result_of(seen)                 # TestResult

Parts of a procedure (warm-up, a capacity search) are procedures too, joined with ``yield from``.

How much warm-up is done (section 4.5) is a value that the ``llm_warmup`` fixture returns. How long and how
many depends on the scale: the draft's own figures (``full``), a gate, or a smoke run (``quick``).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from pytest_llmbench.model.draft import (
    ADVISED_LEVEL_S,
    SHORTEST_LEVEL_S,
    WARMUP_OUTPUT_TOKENS,
    WARMUP_REQUESTS,
)
from pytest_llmbench.model.estimate import SavedSpread
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Deadlines, LoadPlan
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.workloads.stream import streamed


@dataclass(frozen=True, slots=True)
class WarmupPolicy:
    """How much warm-up is done. The default is that of the draft: the warm-up reaches both amounts (AMB-02),
    the queue drains, and the probes agree.

    A policy below the draft's amounts is allowed, for smoke runs; the compliance audit sees what was done.
    """

    requests: int = WARMUP_REQUESTS
    """Fewest successful requests."""
    output_tokens: int = WARMUP_OUTPUT_TOKENS
    """Fewest output tokens."""
    concurrency: int = 8
    """Requests in flight during the warm-up."""
    probes: int = 10
    """Most probes after the warm-up; they end as soon as the last three agree."""
    tolerance: float = 0.10
    """Relative difference below which consecutive probes agree."""
    max_requests: int = 2_000
    """Most requests of a warm-up, for a server whose replies are too short ever to reach
    ``output_tokens``."""

    cold_start: bool = False
    """Whether the measurement is about the cold system: no warm-up, and the result says so (AMB-42)."""

    @classmethod
    def none(cls) -> WarmupPolicy:
        """A policy without warm-up, for experiments: the audit counts its absence as unmet."""
        return cls(requests=0, output_tokens=0, probes=0)

    @classmethod
    def cold(cls) -> WarmupPolicy:
        """The policy of a declared cold-start measurement (section 4.5): no warm-up, labelled in the
        title."""
        return cls(requests=0, output_tokens=0, probes=0, cold_start=True)

    @property
    def wanted(self) -> bool:
        return self.requests > 0 or self.output_tokens > 0

    def problems(self) -> list[str]:
        """The impossible values, in words."""
        found = [
            f"{name} must not be negative, got {getattr(self, name)}"
            for name in ("requests", "output_tokens", "probes")
            if getattr(self, name) < 0
        ]
        if self.concurrency < 1:
            found.append(f"concurrency must be at least 1, got {self.concurrency}")
        if not 0 < self.tolerance < 1:
            found.append(f"tolerance must lie between 0 and 1, got {self.tolerance}")
        if self.cold_start and self.wanted:
            found.append("cold_start rules out a warm-up: use WarmupPolicy.cold()")
        return found


Scale = Literal["quick", "standard", "full"]
Lengths = Literal["drawn", "shared", "repeated"]

R = TypeVar("R")
Procedure = Generator[LoadPlan, Observation, R]


def relayed(
    steps: Procedure[R],
    sent: Callable[[LoadPlan], LoadPlan] = lambda plan: plan,
    seen: Callable[[Observation], Observation] = lambda run: run,
) -> Procedure[R]:
    """The procedure with its plans, and what is seen of them, changed on their way."""
    try:
        plan = next(steps)
        while True:
            plan = steps.send(seen((yield sent(plan))))
    except StopIteration as stop:
        found: R = stop.value
        return found
    finally:
        steps.close()


@dataclass(frozen=True, slots=True)
class VariantInfo:
    """A SUT variant as a procedure knows it, before anything was started."""

    name: str
    facts: Facts = field(default_factory=Facts)
    """Facts that it declares, overriding those of the SUT: ``sut.prefix_caching``,
    ``guardrails.input_filter`` …"""
    can_be_fresh: bool = False
    """Whether ``LoadPlan.fresh_state`` can be granted: by a restart, or by a call that flushes its cache."""


@dataclass(frozen=True)
class Setting:
    """What a procedure runs with: workload, seed, scale and the like."""

    workload: Workload
    seed: int
    scale: Scale = "standard"
    facts: Facts = field(default_factory=Facts)
    """The disclosure of the SUT, frozen before the first request."""
    warmup: WarmupPolicy = field(default_factory=WarmupPolicy)
    deadlines: Deadlines = field(default_factory=Deadlines)
    timeout_s: float | None = None
    """The user's own wait in seconds for the first byte and between chunks, as in ``deadlines``; None: it
    grows with the times of the SUT (methodology/patience.py)."""
    ignore_eos: bool = False
    variants: Mapping[str, VariantInfo] = field(default_factory=dict)
    """Name → SUT variant that plans may name."""
    most_runs: int | None = None
    """Most runs of a test that repeats its load, where a budget of time ends them; None: no budget."""
    least_runs: int = 1
    """Fewest runs that a comparison needs of a test that repeats its load, at any scale."""
    remeasure: int = 2
    """How often a load that was void for a cause on the generator's own host is measured again."""
    salt: str = ""
    """Salt of a measurement that must not repeat the prompts of another one in this session, because a test
    is measured anew or once more. Empty for all others, whose equal loads are shared."""
    spreads: Mapping[str, SavedSpread] = field(default_factory=dict)
    """Metric → its spread between earlier runs or sessions of this load on this system."""
    lengths: Lengths = "drawn"
    """Lengths of the requests of a test that repeats its load, and its arrivals: ``drawn`` with the words;
    ``shared``, one list for all sessions and arms of this seed, of which each run has its own stretch; or
    ``repeated``, the same list in every run. See ``load_plans.with_lengths``."""
    overload_allowed: bool = False
    """Whether the user allows a test to load the system up to failure (section 7)."""


def by_load(
    of_requests: Callable[[Any, Setting], R], of_sessions: Callable[[Any, Setting], R]
) -> Callable[[Any, Setting], R]:
    """The function of a test for single requests, or that for sessions where the workload has sessions."""

    def chosen(parameters: Any, setting: Setting) -> R:
        own = of_sessions if streamed(setting.workload).unit == "session" else of_requests
        return own(parameters, setting)

    return chosen


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
    """Frozen dataclass with the marker's parameters."""
    procedure: Callable[[Any, Setting], Procedure[TestResult]]
    plans: Callable[[Any, Setting], tuple[LoadPlan, ...]]
    """The measured plans as far as they are known beforehand, for the words of ``--llm-plan`` and the
    identity of a baseline."""
    needs: Callable[[Any, Setting], Sequence[str]] = no_needs
    """What the test lacks in its surroundings, in words, before anything is sent; empty when it can run."""
    warmups: Callable[[Any, Setting], Sequence[Workload]] = one_warmup
    """The workload of each of its warm-ups."""
    result: Callable[[Any, Setting, WarmupReport, Sequence[Observation]], TestResult] | None = None
    """The result of some runs of its load; None for a test with several levels."""


@dataclass(frozen=True, slots=True)
class ByScale:
    """One quantity at the three scales."""

    quick: float
    standard: float
    full: float

    def __str__(self) -> str:
        return " / ".join(map(trimmed, (self.quick, self.standard, self.full)))

    def at(self, scale: Scale, asked: float | None = None) -> float:
        """The value at this scale. What a marker asks for takes precedence over ``standard``; it can only
        shorten ``quick`` and only lengthen ``full``."""
        value: float = getattr(self, scale)
        if asked is None:
            return value
        if scale == "quick":
            return min(value, asked)
        return max(value, asked) if scale == "full" else asked

    def count(self, scale: Scale, asked: int | None = None) -> int:
        """:meth:`at` for a count: rounded to an integer."""
        return round(self.at(scale, asked))


PROBE_S = ByScale(quick=4.0, standard=20.0, full=SHORTEST_LEVEL_S)
"""Seconds of a level of a search, ramp-up included (section 5.2.2.1; AMB-17: probes may be as short as 60
s)."""
PROBE_REQUESTS = ByScale(quick=5, standard=20, full=50)
"""Fewest requests of a level in an open loop, however slow the system and long the level: of five requests it
is chance whether they are served as they come. 20 tell a load of 1.2 times the capacity from it."""
LEVEL_S = ByScale(quick=4.0, standard=30.0, full=SHORTEST_LEVEL_S)
"""Seconds of a level of a sweep (section 5.3.2)."""
REPORTED_S = ByScale(quick=6.0, standard=60.0, full=ADVISED_LEVEL_S)
"""Seconds of the level whose throughput is reported (section 5.2.2.1, advised)."""
