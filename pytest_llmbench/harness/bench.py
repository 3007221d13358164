"""``llm_bench``: measure by hand, from synchronous and asynchronous tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pytest_llmbench.harness.sut.sut import SUT, SetUp
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import TestParameters, build
from pytest_llmbench.methodology.procedure import TestDefinition, WarmupPolicy
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.result import TestResult

if TYPE_CHECKING:
    from pytest_llmbench.harness.judging import Measured


class Session(Protocol):
    """The part of the session that a bench uses."""

    def execute(self, plan: LoadPlan, sut: SUT | str, set_up: SetUp | None = None) -> Observation: ...

    def measure(
        self,
        nodeid: str,
        definition: TestDefinition,
        parameters: TestParameters,
        sut: SUT | str,
        warmup: WarmupPolicy,
        *,
        set_up: SetUp | None = None,
    ) -> Measured: ...


class Bench:
    """Runs plans and whole tests on one SUT. The generator has its own thread and loop, so the synchronous
    and the asynchronous methods work whether or not the caller has a loop running."""

    def __init__(
        self,
        session: Session,
        sut: SUT,
        warmup: WarmupPolicy,
        on_missing: Callable[[str], None] = lambda _: None,
        set_up: SetUp | None = None,
    ) -> None:
        """``on_missing`` is called with the reason when somebody reads a number that a result does not
        have. ``set_up``: of the fixture that gave ``sut``."""
        self._session = session
        self._set_up = set_up
        self._on_missing = on_missing
        self.sut = sut
        self.warmup = warmup

    def run(self, plan: LoadPlan) -> Observation:
        """Send one plan and return the observation; nothing is judged."""
        return self._session.execute(plan, self.sut, self._set_up)

    async def run_async(self, plan: LoadPlan) -> Observation:
        """:meth:`run` without blocking the caller's loop."""
        return await asyncio.to_thread(self.run, plan)

    def measure(self, test: str = "ttft", **parameters: Any) -> TestResult:
        """Measure a whole test with the keywords of its marker: warm-up, load, statistics, judgements."""
        chosen = definition(test, where="llm_bench.measure")
        built: TestParameters = build(chosen.parameters, parameters, where=f"llm_bench.measure({test!r})")
        measured = self._session.measure(
            f"llm_bench::{test}", chosen, built, self.sut, self.warmup, set_up=self._set_up
        )
        return measured.result.read_by(self._on_missing)

    async def measure_async(self, test: str = "ttft", **parameters: Any) -> TestResult:
        """:meth:`measure` without blocking the caller's loop."""
        return await asyncio.to_thread(lambda: self.measure(test, **parameters))
