"""Makes the Setting of a procedure from options and marker parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from pytest_llmbench.errors import SUTError
from pytest_llmbench.harness.settings import AUTO, BY_SEED, DEFAULT_SEED, Settings
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Scale, Setting, VariantInfo, WarmupPolicy
from pytest_llmbench.model.facts import Facts, ManifestFact, Origin, WorkloadFact
from pytest_llmbench.model.plan import Deadlines
from pytest_llmbench.workloads.catalogue import workload

if TYPE_CHECKING:
    from pytest_llmbench.harness.sut.open_sut import OpenSUT


def warmup_for(scale: Scale) -> WarmupPolicy:
    """The warm-up of the draft; at quick scale a nominal one, which the audit sees."""
    if scale == "quick":
        return WarmupPolicy(requests=10, output_tokens=0, probes=3)
    return WarmupPolicy()


def prompts_of(sut: SUT, settings: Settings) -> str:
    """The name of the requests that a system gets, a salt of the names of their parts. Empty: those of the
    seed alone, as for systems that begin with the session; a server that was there before gets new ones in
    each session, since its prefix cache may hold those of the last."""
    if settings.prompts == AUTO:
        return settings.new_prompts if sut.was_there_before else ""
    return "" if settings.prompts == BY_SEED else settings.prompts


def salt_of(sut: SUT, settings: Settings, own: str = "") -> str:
    """``own``: of a test that must not repeat the prompts of another one of this session."""
    return " ".join(filter(None, (prompts_of(sut, settings), own)))


def setting_for(
    parameters: TestParameters,
    settings: Settings,
    *,
    warmup: WarmupPolicy,
    facts: Facts | None = None,
    ignore_eos: bool = False,
    variants: Mapping[str, VariantInfo] | None = None,
) -> Setting:
    """The setting of a test. A marker's own seed takes precedence over ``--llm-seed``, its ``timeout_s`` over
    ``--llm-timeout``."""
    seed = next(seed for seed in (parameters.seed, settings.seed, DEFAULT_SEED) if seed is not None)
    timeout_s = settings.timeout if parameters.timeout_s is None else parameters.timeout_s
    usual = Deadlines()
    simulated = any(fact.origin is Origin.SIMULATED for fact in (facts or {}).values())  # nobody else uses it
    return Setting(
        workload=workload(parameters.workload),
        seed=seed,
        scale=settings.scale,
        facts=facts if facts is not None else Facts(),
        warmup=warmup,
        deadlines=usual if timeout_s is None else usual.waiting(timeout_s),
        timeout_s=timeout_s,
        ignore_eos=ignore_eos,
        variants=variants or {},
        remeasure=settings.remeasure,
        lengths="shared" if settings.compares_runs else "drawn",
        overload_allowed=settings.allow_overload or simulated,
    )


def setting_on(
    opened: OpenSUT, parameters: TestParameters, settings: Settings, warmup: WarmupPolicy, salt: str = ""
) -> Setting:
    """The setting of a test on a SUT that has answered; its manifest is frozen now. SUTError for an
    impossible warm-up."""
    problems = warmup.problems()
    if problems:
        raise SUTError("; ".join(problems), where="llm_warmup")
    digest = opened.facts.sha256()
    frozen = Facts.of(
        Origin.GENERATOR, {ManifestFact.SHA256: digest, ManifestFact.FROZEN_NS: opened.now_ns()}
    )
    selftest = Facts()
    if not opened.virtual:
        from pytest_llmbench.harness.selftest.certificate import facts_of, find_for

        selftest = facts_of(*find_for(opened.base_url, settings))
    name = prompts_of(SUT(opened.endpoint), settings)
    named = Facts.of(Origin.GENERATOR, {WorkloadFact.PROMPTS: name} if name else {})
    setting = setting_for(
        parameters,
        settings,
        warmup=warmup,
        facts=opened.facts | frozen | selftest | named,
        ignore_eos=opened.access.asking.ignore_eos,
        variants=opened.variants,
    )
    asked = setting.workload
    if opened.counter is not None or opened.vocabulary is not None:
        from pytest_llmbench.harness.workloads.exact_lengths import bound

        asked = bound(asked, opened.counter, opened.vocabulary)
    return replace(setting, workload=asked, salt=salt)


P = TypeVar("P", bound=TestParameters)


def with_runs(parameters: P, settings: Settings) -> P:
    """The parameters with ``--llm-runs`` as the default number of runs, where the test repeats its load."""
    if parameters.runs is None and settings.runs is not None and parameters.repeats:
        return replace(parameters, runs=settings.runs)
    return parameters


def within_budget(
    parameters: TestParameters, settings: Settings, tests: int
) -> tuple[TestParameters, float | None]:
    """The parameters of a test with a budget of time, and its seconds; None where it has none. ``tests``: how
    many share the budget of the session."""
    if settings.budget is None and getattr(parameters, "budget", None) is None:
        return parameters, None
    from pytest_llmbench.harness.comparison.budget import budget_of, shaped

    seconds = budget_of(parameters, settings, tests)
    return (parameters if seconds is None else shaped(parameters, settings, seconds)), seconds
