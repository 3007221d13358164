"""A SUT with variants, in virtual time: what the harness puts around a procedure, by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import (
    Scale,
    Setting,
    TestDefinition,
    VariantInfo,
    WarmupPolicy,
)
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Outcome, Phase
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import (
    STANDARD_VARIANTS,
    parse_scenario,
    variant_facts,
    with_overrides,
)
from pytest_llmbench.workloads.catalogue import workload

Change = Callable[[Observation], Observation]
QUARTER = "fast?step_base_us=4800&decode_us_per_sequence=24&prefill_us_per_token=40"
"""The embedded engine at a quarter of its speed: a search has a quarter of the requests in as many loads."""

SHORT_WARMUP = WarmupPolicy(requests=3, output_tokens=0, probes=3)
"""The draft's warm-up sends more than most loads of these tests; those about it ask for it."""


@dataclass
class ReplayedSUT:
    """The embedded engine and its standard variants; remembers every plan that was sent."""

    scenario: str = "fast"
    can_be_fresh: bool = True
    change: Change = lambda seen: seen
    """What the world does to an observation before the procedure sees it."""
    plans: list[LoadPlan] = field(default_factory=list)
    engines: dict[str, ReplayEngine] = field(default_factory=dict)
    overrides: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Options of the engine by variant, over those of the standard one: a variant that is another machine."""
    generates: bool = True
    """False: requests are prefill alone, as those for embeddings are. As the test wants it."""

    def setting(self, wanted: Any, scale: Scale = "standard", **more: Any) -> Setting:
        base = parse_scenario(self.scenario)
        variants = {
            name: VariantInfo(name, variant_facts(with_overrides(base, options)), self.can_be_fresh)
            for name, options in STANDARD_VARIANTS.items()
        }
        facts = ReplayEngine(base).disclosure()
        given = {"warmup": SHORT_WARMUP, "facts": facts, "variants": variants} | more
        return Setting(workload(wanted), 42, scale, **given)

    def run(self, plan: LoadPlan) -> Observation:
        self.plans.append(plan)
        return self.change(self._engine(plan.variant).run(plan))

    def measure(
        self,
        test: TestDefinition,
        scale: Scale = "standard",
        *,
        keep: Mapping[str, Any] | None = None,
        **given: Any,
    ) -> TestResult:
        """The test's result; ``given``: keywords of its marker, ``keep``: further fields of the setting."""
        parameters = build(test.parameters, given)
        setting = self.setting(parameters.workload, scale, **(keep or {}))
        if self.generates != test.parameters.generates:
            self.generates = test.parameters.generates
            self.engines.clear()
        return drive(test.procedure(parameters, setting), self.run)

    def _engine(self, variant: str) -> ReplayEngine:
        if variant not in self.engines:
            scenario = parse_scenario(self.scenario)
            if variant:
                scenario = with_overrides(scenario, STANDARD_VARIANTS[variant])
                if own := self.overrides.get(variant):
                    scenario = with_overrides(scenario, own)
            self.engines[variant] = ReplayEngine(scenario, generates=self.generates)
        return self.engines[variant]


__all__ = ["ReplayedSUT"]


def ended(seen: Observation, outcome: Outcome, which: slice = slice(None)) -> Observation:
    """The observation with this end of some of its requests."""
    outcomes = seen.records.outcome.copy()
    outcomes[which] = OUTCOMES.index(outcome)
    return replace(seen, records=replace(seen.records, outcome=outcomes))


def broken_by(level: str) -> Change:
    """From the level with this label on, no probe is answered any more."""
    broken = False

    def change(seen: Observation) -> Observation:
        nonlocal broken
        broken = broken or seen.plan.label.startswith(level)
        spared = not broken or seen.plan.phase is Phase.MEASURE
        return seen if spared else ended(seen, Outcome.DISCONNECTED)

    return change
