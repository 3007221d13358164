"""The identity of a result: the fields that baselines are matched by. ``compare/comparability.py`` says which
of them decide."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from pytest_llmbench.compare.comparability import (
    GOODPUT_LIMITS,
    IF_KNOWN,
    REQUIRED,
    SHOWN,
    Identity,
    Match,
    Waiver,
    made_alike,
)
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.measuring.replies import how_made
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Lengths, Setting, TestDefinition, WarmupPolicy
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.facts import EndpointFact, StreamingFact, SUTFact
from pytest_llmbench.model.judgement import Comparison, Finding
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, describe_loads
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.probes.host import environment
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.store.environment import this_environment
from pytest_llmbench.store.objects import plain_object
from pytest_llmbench.store.schema import OutputLengths
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.stream import streamed

WAIVED = "waived"
LENGTHS: Final = "lengths"
"""The field of the list of lengths of the requests: ``repeated 123``, the same in every run, or ``shared
123``, a stretch for each. It need not agree: it decides how runs are compared."""
REPEATED: Final[Lengths] = "repeated"
SHARED: Final[Lengths] = "shared"
_UNDER_CRITERIA = ("throughput", "tradeoff", "capacity")
"""Tests whose figures belong to the highest load that meets the latency limits."""


def identity_of(
    definition: TestDefinition, parameters: TestParameters, setting: Setting, *, virtual: bool
) -> dict[str, Any]:
    """The identity as JSON values. ``virtual``: in virtual time the host does not matter and is left out."""
    # Not the bound one of the setting, which knows the address of the server.
    asked = workload(parameters.workload)
    once = definition.plans(replace(parameters, runs=None), replace(setting, least_runs=1))
    seeds = {plan.lengths_seed for plan in once}
    lengths = seeds.pop() if len(seeds) == 1 else None  # None: they are drawn with the words
    ceilings = sorted(str(limit) for limit in parameters.objectives if limit.is_ceiling)
    found = {
        "test": definition.name,
        "model": setting.facts.value(EndpointFact.MODEL) or setting.facts.value(SUTFact.MODEL_NAME),
        "api": setting.facts.value(EndpointFact.API),
        "endpoint": setting.facts.value(EndpointFact.URL),
        "scale": setting.scale,
        "seed": setting.seed,
        "workload": asked.name,
        "workload.sha256": _digest(dict(asked.specification())),
        "load": _load(once),
        LENGTHS: None if lengths is None else f"{REPEATED if parameters.is_job else SHARED} {lengths}",
        "criteria": ("; ".join(ceilings) or "none") if definition.name in _UNDER_CRITERIA else None,
        GOODPUT_LIMITS: _goodput_limits(parameters),
        "warmup": _warmup(setting.warmup),
        "figures": "those of a job" if parameters.is_job else "those of a sample",
        "generator.version": version("pytest-llmbench"),
    }
    if not virtual:
        told, about = environment(), this_environment(())
        found |= {
            "host.machine": about.machine,
            "host.cpu": told.get("cpu"),
            "host.cpus": told.get("cpus_usable"),
            "host.python": f"{about.implementation} {about.python}",
            "host.platform": about.platform,
        }
    shown = {*REQUIRED, *IF_KNOWN, *SHOWN} - found.keys()
    facts = {name: fact.value for name, fact in setting.facts.items() if name in shown}
    return plain_object({name: value for name, value in (found | facts).items() if value is not None})


def _load(once: Sequence[LoadPlan]) -> str:
    """The load of one run in words, with a digest of the number of requests and the duration of each load."""
    described = describe_loads([plan.load for plan in once])
    names = ("requests", "duration_s", "variant", "ignore_eos")
    amounts = [
        {"load": plan.load.describe(), **{name: getattr(plan, name) for name in names}} for plan in once
    ]
    return f"{described}; plan {_digest(amounts)[:12]}"


def _goodput_limits(parameters: TestParameters) -> str | None:
    """The limits that make a request or a session good, and those under which jobs per hour are searched for,
    in words; None where a test has none."""
    # The digits are those of saved identities.
    limits = getattr(parameters, "limits_ms", ())
    found = [f"{quantity} <= {format(limit, 'g')} ms" for quantity, limit in limits]
    if (job_s := getattr(parameters, "job_s", None)) is not None:
        found.append(f"job <= {format(job_s, 'g')} s")
    if getattr(parameters, "searches", False):
        found += [str(limit) for limit in parameters.objectives if limit.metric != "jobs_per_hour"]
    return "; ".join(sorted(found)) or None


def _warmup(policy: WarmupPolicy) -> str:
    """The warm-up in words. From the draft's amounts on a system is warm, and more makes no other figures."""
    draft = WarmupPolicy()
    if not policy.wanted:
        return "none, a cold start" if policy.cold_start else "none"
    if policy.requests >= draft.requests and policy.output_tokens >= draft.output_tokens:
        return "as the draft asks"
    return f"{policy.requests} requests, {policy.output_tokens} output tokens"


def made_by(result: TestResult) -> dict[str, str]:
    """How the metrics of a result were made, as only its records tell."""
    fixed = result.facts.value(StreamingFact.ITL_OPTION) if result.test == "itl" else None
    return how_made(result.observations, result.facts, fixed)


def refused_metrics(
    compared: Sequence[Comparison], baseline: Identity, candidate: Identity, waivers: Sequence[Waiver] = ()
) -> list[Finding]:
    """A finding for each difference in how compared metrics were made. It voids the test where one of them
    decides: no verdict is no reason to be content."""
    differing: dict[str, list[Comparison]] = {}
    answered: dict[str, None] = {}
    for each in compared:
        match = made_alike(each.metric, baseline, candidate, waivers)
        answered |= dict.fromkeys(match.waived)
        for mismatch in match.mismatches:
            differing.setdefault(mismatch, []).append(each)
    said = [Finding.of("waived", difference=text) for text in answered]
    for mismatch, metrics in differing.items():
        names, voids = tuple(each.metric for each in metrics), any(each.gated for each in metrics)
        said.append(Finding.of("made_otherwise", voids=voids, difference=mismatch, metrics=names))
    return said


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def refuse_mismatch(match: Match, where: str) -> None:
    """Raise SuiteError for differences that are not waived."""
    if match.mismatches:
        raise SuiteError.from_mistakes(
            [f"the baseline measured something else: {mismatch}" for mismatch in match.mismatches],
            where=where,
            remedy="measure the same, save a new baseline, or waive the difference: "
            "--llm-waive 'FIELD=REASON@YYYY-MM-DD'",
        )


def refuse_live_answers(asked: Workload, where: str) -> None:
    """Raise SuiteError if systems would be compared on histories that each of them wrote itself, unless the
    workload asks for that."""
    if streamed(asked).answers == "live":
        raise SuiteError(
            f"workload {asked.name!r} has live answers, so the two sides would not read the same prompts",
            where=where,
            remedy='leave out answers="live", or write answers="live-compared" to compare all the same',
        )


def refuse_few_runs(theirs: int, ours: int, where: str, how: str) -> None:
    """Raise SuiteError if a side has too few runs. ``how``: how to get more runs of the baseline."""
    for what, count in (("the baseline has", theirs), ("this session has", ours)):
        if count < FEWEST_RUNS:
            raise SuiteError(
                f"{what} {count} {'run' if count == 1 else 'runs'} of this test: each side needs at least "
                f"{FEWEST_RUNS} to tell a change from noise",
                where=where,
                remedy=how,
            )


def waived(match: Match) -> list[Finding]:
    """A finding for each difference that is waived, to be reported with the result."""
    return [Finding.of("waived", difference=text) for text in match.waived]


def lengths_of(seen: Sequence[Observation]) -> OutputLengths:
    """How many measured requests that ended well had each output length."""
    counted: Counter[int] = Counter()
    for run in seen:
        if run.plan.phase is Phase.MEASURE:
            tokens = run.records.output_tokens
            counted.update(tokens[run.records.ok & (tokens >= 0)].tolist())
    return OutputLengths(tokens=sorted(counted), requests=[counted[length] for length in sorted(counted)])


def lengths_vector(lengths: OutputLengths | None) -> FloatArray:
    """The lengths one by one, in ascending order; empty where they are not known."""
    if lengths is None:
        return np.empty(0)
    return np.repeat(np.asarray(lengths.tokens, dtype=np.float64), lengths.requests)
