"""From options and marker parameters to the Setting of a procedure."""

from __future__ import annotations

from dataclasses import replace

from pytest_llmbench.harness.settings import DEFAULT_SEED, Settings
from pytest_llmbench.methodology.parameters import LoadParameters
from pytest_llmbench.methodology.procedure import Scale, Setting
from pytest_llmbench.methodology.warmup_policy import WarmupPolicy
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.workloads.catalogue import workload


def warmup_for(scale: Scale) -> WarmupPolicy:
    """The draft's warm-up; at quick scale a token of it, which the audit sees."""
    if scale == "quick":
        return WarmupPolicy(requests=10, output_tokens=0, probes=3)
    return WarmupPolicy()


def setting_for(
    parameters: LoadParameters,
    settings: Settings,
    *,
    warmup: WarmupPolicy,
    facts: Facts | None = None,
    ignore_eos: bool = False,
) -> Setting:
    """A marker's own seed stands before ``--llm-seed``."""
    seed = next(seed for seed in (parameters.seed, settings.seed, DEFAULT_SEED) if seed is not None)
    return Setting(
        workload=workload(parameters.workload),
        seed=seed,
        scale=settings.scale,
        facts=facts if facts is not None else Facts(),
        warmup=warmup,
        ignore_eos=ignore_eos,
    )


def with_runs(parameters: LoadParameters, settings: Settings) -> LoadParameters:
    """``--llm-runs`` is the default of a marker that does not say."""
    if parameters.runs is None and settings.runs is not None:
        return replace(parameters, runs=settings.runs)
    return parameters


__all__ = ["setting_for", "warmup_for", "with_runs"]
