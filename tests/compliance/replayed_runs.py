"""A complete result of every test: its own procedure at full scale, in virtual time, on a small engine."""

from __future__ import annotations

import dataclasses
import importlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from complete_run import DISCLOSED, vouched
from kept_runs import kept

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import Setting, TestDefinition, VariantInfo
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import (
    STANDARD_VARIANTS,
    parse_scenario,
    variant_facts,
    with_overrides,
)
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.catalogue import workload as find_workload
from pytest_llmbench.workloads.dataset import (
    CodeCompletionWorkload,
    CodeFunction,
    Conversation,
    ConversationWorkload,
    DatasetIdentity,
)

ENGINE = "h100-8b?step_base_us=25000&max_num_seqs=12&input_filter=enabled&output_filter=disabled"
"""Slow, so that an hour of load is a few thousand requests; filters make it a gateway."""
ENGINES = {
    "capacity": ENGINE.replace("max_num_seqs=12", "max_num_seqs=4"),
    "guardrail": ENGINE.replace("step_base_us=25000", "step_base_us=100000"),
}
"""Of the tests that would send the most: with fewer places in the batch, or slower still."""
SEED = 42
_MORE_FACTS = {
    "isolation.isolated_system": True,
    "isolation.recovery_plan": "restart the process",
    "sut.context_limit_tokens": 131584,
}


def _words(start: int, count: int) -> str:
    return " ".join(f"name{start + place} = value{(7 * place) % 13}" for place in range(count))


CODE = CodeCompletionWorkload(
    functions=tuple(CodeFunction(f"def f{n}(a, b):\n    return {_words(n, 20)}") for n in range(40)),
    contexts=tuple(f"# repository {n}\n{_words(1000 * n, 400)}" for n in range(10)),
    dataset=DatasetIdentity("The Stack", "1.2", "first of each file", file_sha256="ab" * 32),
)
CONVERSATION = ConversationWorkload(
    conversations=tuple(
        Conversation(f"Tell me about {_words(n, 10 + n % 30)}.", _words(n, 8 + n % 12)) for n in range(60)
    ),
    dataset=DatasetIdentity(
        "ShareGPT", "2023-04-12", "an assistant turn", subset="vicuna_cleaned", file_sha256="cd" * 32
    ),
)


@cache
def _encoded(text: str) -> array[int]:
    return array("I", reference_tokenizer().encode(text))


@dataclasses.dataclass(frozen=True)
class Tokenised:
    """A workload of texts as token ids: what the replay's prefix cache goes by."""

    base: CodeCompletionWorkload

    @property
    def name(self) -> str:
        return self.base.name

    @property
    def standard(self) -> bool:
        return self.base.standard

    def shared_prefixes(self, seed: int) -> Sequence[int]:
        return self.base.shared_prefixes(seed)

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [
            dataclasses.replace(planned, token_ids=_encoded(planned.text or ""), text=None)
            for planned in self.base.requests(count, seed)
        ]

    def specification(self) -> Mapping[str, Any]:
        return self.base.specification()


DIGESTS = {"The Stack": frozenset({"ab" * 32}), "ShareGPT": frozenset({"cd" * 32})}
"""As if those data sets were published."""
KEYWORDS: Mapping[str, Mapping[str, Any]] = {
    "throughput": {"min_rate": 0.5, "max_rate": 4.0, "rate_step": 0.25, "arrival": "uniform"},
    "tradeoff": {},
    "itl": {},
    "capacity": {"ttft_p99_ms": 900.0, "initial": 2, "maximum": 64},
    "fairness": {},
    "prefix_cache": {},
    "memory_pressure": {"ttft_p99_ms": 700.0},
    "long_context": {},
    "guardrail": {"workload": CONVERSATION},
}


SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "memory_pressure": {"sut.context_limit_tokens": 9_000},
}
"""Facts of single tests: fewer lengths of Long Context are enough here."""


def setting_of(
    test: str, wanted: Any, engine: str, base_workload: Any = None
) -> tuple[Setting, Callable[[LoadPlan], Observation]]:
    base = ReplayEngine(parse_scenario(engine))
    engines = {"": base}

    def run(plan: LoadPlan) -> Observation:
        if plan.variant not in engines:
            engines[plan.variant] = base.variant(plan.variant)
        return engines[plan.variant].run(plan)

    frozen = {"manifest.sha256": "0" * 64, "manifest.frozen_ns": base.clock.now_ns}
    stated = Facts.of(Origin.DECLARED, DISCLOSED | _MORE_FACTS | frozen | SPECIAL.get(test, {}))
    variants = {
        name: VariantInfo(name, variant_facts(with_overrides(base.scenario, options)), True)
        for name, options in STANDARD_VARIANTS.items()
    }
    setting = Setting(
        find_workload(wanted) if base_workload is None else base_workload,
        SEED,
        "full",
        facts=base.disclosure() | stated,
        variants=variants,
        overload_allowed=True,
    )
    return setting, run


@kept
def measured(test: str, options: str = "", engine: str = "", **keywords: Any) -> TestResult:
    """``options``: of the engine, beside those of ``engine``."""
    engine = engine or ENGINES.get(test, ENGINE)
    definition: TestDefinition = importlib.import_module(f"pytest_llmbench.methodology.sections.{test}").TEST
    parameters = build(definition.parameters, {**KEYWORDS[test], **keywords})
    tokenised = Tokenised(CODE) if test == "prefix_cache" else None
    setting, run = setting_of(test, parameters.workload, engine + options, tokenised)
    return drive(definition.procedure(parameters, setting), run)


@kept
def by_itself(test: str) -> Evidence:
    """Of an engine without filters, with nothing declared but what it says of itself."""
    definition: TestDefinition = importlib.import_module(f"pytest_llmbench.methodology.sections.{test}").TEST
    parameters = build(definition.parameters, KEYWORDS[test])
    engine = ReplayEngine(parse_scenario(ENGINE.partition("&input_filter")[0]))
    frozen = Facts.of(Origin.GENERATOR, {"manifest.sha256": "0" * 64, "manifest.frozen_ns": 0})
    facts = engine.disclosure() | frozen
    setting = Setting(find_workload(parameters.workload), SEED, "full", facts=facts)
    return Evidence(test, drive(definition.procedure(parameters, setting), engine.run))


def complete(test: str, options: str = "", engine: str = "", **keywords: Any) -> Evidence:
    """The result with what only a whole report has: a run with Conversation beside it."""
    result = measured(test, options, engine, **keywords)
    conversation = Facts.of(Origin.DECLARED, {"workload.name": "conversation"})
    sibling = vouched(dataclasses.replace(result, facts=result.facts | conversation))
    return Evidence(test, result, siblings=(sibling,), published_digests=DIGESTS)
