"""``--llm-plan``: what the selected tests would send, how long it takes and what it costs. Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.arms import pairs_wanted, runs_wanted
from pytest_llmbench.harness.budget import Amount, Sampler
from pytest_llmbench.harness.calibrate import RUNS as CALIBRATION_RUNS
from pytest_llmbench.harness.foreseen import Foreseen, foreseen
from pytest_llmbench.harness.repeated import repeats_its_load
from pytest_llmbench.harness.setting import setting_for, warmup_for, with_runs
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut_file import prices_of
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.comparison import FEWEST_RUNS
from pytest_llmbench.model.plan import LoadPlan, describe_loads
from pytest_llmbench.model.request import Workload

Selected = Sequence[tuple[str, TestDefinition, TestParameters]]


@dataclass
class _Planned:
    """What the tests so far would send, so that the next one's shared loads are seen."""

    sampler: Sampler = field(default_factory=Sampler)
    owners: dict[str, str] = field(default_factory=dict)
    """Key of a plan → node id of the first test that sends it."""
    warmed: dict[tuple[Any, ...], str] = field(default_factory=dict)


def plan_lines(
    tests: Selected,
    settings: Settings,
    *,
    offered: Callable[[str], Mapping[str, Any]] = lambda _: {},
) -> list[str]:
    """Lines for the terminal: one block per test, then the total. Raises SuiteError for a wrong SUT file."""
    if not tests:
        return ["llmbench plan: no marked test is selected"]
    known = foreseen(settings, offered)
    lines = [f"llmbench plan (scale {settings.scale}): nothing is sent"]
    planned, total = _Planned(), Amount()
    for nodeid, definition, parameters in tests:
        asked, times, why = _repetitions(parameters, settings)
        amount, block = _test(nodeid, definition, asked, settings, known, planned)
        total = sum([amount] * times, total)
        block += [f"{times} times{why}"] if times > 1 else []
        lines += [f"  {nodeid}", *(f"    {line}" for line in block)]
    lines.append(f"  total of {len(tests)} tests: {total.describe()}")
    return lines + _cost(total, settings)


def _repetitions(parameters: TestParameters, settings: Settings) -> tuple[TestParameters, int, str]:
    """What is asked of one test, how often that is done, and why."""
    arms = 2 if settings.baseline_endpoint is not None else max(len(settings.endpoints), 1)
    if arms > 1 or settings.calibrate:
        runs = runs_wanted(parameters, settings.runs, CALIBRATION_RUNS if settings.calibrate else FEWEST_RUNS)
        if settings.baseline_endpoint is not None:
            runs = pairs_wanted(parameters, settings.runs)
        why = f": {runs} runs on each of {arms} systems" if arms > 1 else ": a calibration"
        return replace(parameters, runs=None), arms * runs, why
    times = _times(parameters, settings)
    return with_runs(parameters, settings), times, ", as a whole: a baseline needs runs"


def _times(parameters: TestParameters, settings: Settings) -> int:
    """How often the whole test is run for a baseline (harness/repeated.py)."""
    wanted = max(settings.runs or 1, parameters.runs or 1)
    return wanted if (settings.save or settings.compare) and not repeats_its_load(parameters) else 1


def _test(
    nodeid: str,
    definition: TestDefinition,
    parameters: TestParameters,
    settings: Settings,
    known: Foreseen,
    planned: _Planned,
) -> tuple[Amount, list[str]]:
    setting = setting_for(
        parameters,
        settings,
        warmup=warmup_for(settings.scale),
        facts=known.facts,
        variants=known.variants,
    )
    missing = list(definition.needs(parameters, setting))
    if missing:
        unsure = "" if known.complete else " (as far as is known before the SUT is asked)"
        return Amount(), [f"{definition.title}: CANNOT RUN{unsure}", *(f"- {need}" for need in missing)]
    try:
        plans = definition.plans(parameters, setting)
    except SuiteError as error:
        return Amount(), [f"{definition.title}: CANNOT RUN: {error.what}"]
    own, shared = _divided(nodeid, plans, parameters, planned)
    warmups = definition.warmups(parameters, setting) if plans else ()
    amount, warmed_by = _warmup(nodeid, setting, parameters, warmups, planned)
    searched = _searches(definition, parameters)
    counted = [plan for plan in own if not searched or plan is plans[0]]
    amount = sum(map(planned.sampler.amount, counted), replace(amount, at_least=searched))
    loads = describe_loads([plan.load for plan in plans]) or "no load known beforehand"
    block = [f"{definition.title}: {loads}, workload {setting.workload.name}"]
    block.append(amount.describe(" with the warm-up" if warmed_by == nodeid else ""))
    if searched:
        block.append("what a search sends is not known beforehand: counted is the first of its loads")
    if shared:
        with_ = ", ".join(dict.fromkeys(owner for _, owner in shared))
        block.append(f"{len(shared)} of {len(plans)} loads shared with {with_}")
    if warmed_by not in ("", nodeid):
        block.append(f"warm-up shared with {warmed_by}")
    return amount, block


def _divided(
    nodeid: str, plans: Sequence[LoadPlan], parameters: TestParameters, planned: _Planned
) -> tuple[list[LoadPlan], list[tuple[LoadPlan, str]]]:
    """The loads that the test sends itself, and those that it has from another one."""
    own: list[LoadPlan] = []
    shared: list[tuple[LoadPlan, str]] = []
    taken: set[str] = set()
    for plan in plans:
        key = plan.key
        owner = planned.owners.get(key)
        may = not (parameters.fresh or plan.fresh_state or key in taken)
        if owner is not None and owner != nodeid and may:
            shared.append((plan, owner))
        else:
            own.append(plan)
            if not plan.fresh_state:
                planned.owners[key] = nodeid
        taken.add(key)
    return own, shared


def _searches(definition: TestDefinition, parameters: TestParameters) -> bool:
    """Whether it finds its loads while it runs, so that only the first is known."""
    known = getattr(parameters, "capacity_rps", getattr(parameters, "capacity", None))
    always = definition.name in ("throughput", "capacity", "guardrail")
    may = any(hasattr(parameters, name) for name in ("capacity_rps", "capacity"))
    return always or (may and known is None)


def _warmup(
    nodeid: str, setting: Setting, parameters: TestParameters, warmups: Sequence[Workload], planned: _Planned
) -> tuple[Amount, str]:
    """Amount, and node id of the test that does it: of those that want the same only the first."""
    if not setting.warmup.wanted or not warmups:
        return Amount(), ""
    concurrency = getattr(parameters, "concurrency", None) or setting.warmup.concurrency
    first = warmups[0]
    key = (first.name, str(first.specification()), setting.seed, concurrency, len(warmups))
    owner = planned.warmed.setdefault(key, nodeid)
    if owner != nodeid and not parameters.fresh:
        return Amount(), owner
    return sum((planned.sampler.warmup(setting, each) for each in warmups), Amount()), nodeid


def _cost(total: Amount, settings: Settings) -> list[str]:
    prices = prices_of(settings)
    if prices is None:
        return []
    cost = (
        total.input_tokens * prices.input_per_million + total.output_tokens * prices.output_per_million
    ) / 1e6
    if total.at_least:
        what = f"about {cost:.2f} {prices.currency} for the loads known beforehand, and more for the others"
    else:
        what = f"at most {cost:.2f} {prices.currency}"
    return [f"  cost at the declared prices: {what}"]


__all__ = ["plan_lines"]
