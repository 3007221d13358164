"""``--llm-plan``: what the selected tests send at least and at most, how long it takes and what it costs.
Sends nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.allowance import Budgets, raised
from pytest_llmbench.harness.arms import pairs_wanted, runs_wanted
from pytest_llmbench.harness.budget import Amount, Sampler
from pytest_llmbench.harness.calibrate import RUNS as CALIBRATION_RUNS
from pytest_llmbench.harness.foreseen import Foreseen, foreseen
from pytest_llmbench.harness.repeated import repeats_its_load
from pytest_llmbench.harness.setting import setting_for, warmup_for, with_runs
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut_file import Prices, prices_of
from pytest_llmbench.methodology.amounts import Bounds
from pytest_llmbench.methodology.bounds import bounds_of
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting, TestDefinition
from pytest_llmbench.model.comparison import FEWEST_RUNS
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import describe_loads

Selected = Sequence[tuple[str, TestDefinition, TestParameters]]
PER_RPS = (
    "per req/s: for each request per second that the system completes at most; a search finds out how many "
    "that are, so there is no other upper bound (capacity_rps= in a marker makes it a number)"
)


@dataclass
class _Planned:
    """What the tests so far would send, so that the next one's shared loads are seen."""

    sampler: Sampler = field(default_factory=Sampler)
    owners: dict[str, str] = field(default_factory=dict)
    """Key of a load → node id of the first test that sends it."""
    anew: bool = False
    """A test has brought a server into a fresh state, after which warm-ups are not shared."""


@dataclass(frozen=True)
class Certain:
    """What a test sends in any case."""

    nodeid: str
    requests: float
    input_tokens: float
    seconds: float


@dataclass(frozen=True)
class _Repeated:
    """What is asked of one test, how often that is done, and why."""

    parameters: TestParameters
    times: int = 1
    least_runs: int = 1
    why: str = ""


def plan_lines(
    tests: Selected,
    settings: Settings,
    *,
    offered: Callable[[str], Mapping[str, Any]] = lambda _: {},
) -> list[str]:
    """Lines for the terminal: one block per test, then the total. Raises SuiteError for a wrong SUT file."""
    if not tests:
        return ["llmbench plan: no marked test is selected"]
    known, prices = foreseen(settings, offered), prices_of(settings)
    lines = [f"llmbench plan (scale {settings.scale}): nothing is sent; [least, most]"]
    planned, total = _Planned(), Amount()
    for nodeid, definition, parameters in tests:
        asked = _repetitions(parameters, settings)
        amount, block = _test(nodeid, definition, asked, settings, known, planned)
        total += amount
        block += [f"{asked.times} times{asked.why}"] if asked.times > 1 else []
        block += [_cost(amount, prices)] if prices is not None and amount.requests.worst else []
        lines += [f"  {nodeid}", *(f"    {line}" for line in block)]
    lines.append(f"  total of {len(tests)} tests: {total.describe()}")
    return [*lines, *(f"  {line}" for line in _remarks(total, settings, prices))]


def certain(
    tests: Selected,
    settings: Settings,
    *,
    offered: Callable[[str], Mapping[str, Any]] = lambda _: {},
    tokens: bool = True,
) -> list[Certain]:
    """What the tests send at least, shared loads counted once; without ``tokens`` no request is drawn for it.
    Raises SuiteError for a wrong SUT file; a test that cannot run,
    such as one whose requests cannot be drawn, sends nothing."""
    known, planned, found = foreseen(settings, offered), _Planned(), list[Certain]()
    for nodeid, definition, parameters in tests:
        asked = _repetitions(parameters, settings)
        setting = _setting(nodeid, asked, settings, known)
        if list(definition.needs(asked.parameters, setting)):
            continue
        try:
            own, _ = _divided(nodeid, bounds_of(definition, asked.parameters, setting), planned)
            drawn = [planned.sampler.amount(load).input_tokens.least for load in own] if tokens else []
        except Exception:  # noqa: BLE001 - a suite's own workload may raise anything, its test will too
            continue
        amounts = (sum(load.least for load in own), sum(drawn), sum(load.least_s for load in own))
        found.append(Certain(nodeid, *(asked.times * each for each in amounts)))
    return found


def _remarks(total: Amount, settings: Settings, prices: Prices | None) -> list[str]:
    found = []
    if total.is_worse:
        again = f", and void loads are measured again (--llm-remeasure={settings.remeasure})"
        found.append(
            f"at worst {total.describe_worst()}: failed or short replies prolong warm-ups"
            + (again if settings.remeasure else "")
        )
    if total.requests.per_rps:
        found.append(PER_RPS)
    found += [f"budgets: {settings.budgets.describe()}", *_met(total, settings.budgets)]
    return found if prices is None else [*found, f"{_cost(total, prices)} at the declared prices"]


def _met(total: Amount, budgets: Budgets) -> list[str]:
    """Which budgets the tests exceed in any case, and which they may."""
    tokens = total.input_tokens + total.output_tokens
    spans = {
        "requests": (total.requests, budgets.requests),
        "tokens": (tokens, budgets.tokens),
        "seconds": (total.seconds, budgets.seconds),
    }
    found = []
    for name, (span, budget) in spans.items():
        most = max(span.most, span.worst)
        if span.least > budget:
            more = raised(name, budget, span.least)
            found.append(f"EXCEEDED: at least {span.least:,.0f} {name} are more than {more}")
        elif most > budget:
            more = raised(name, budget, most)
            found.append(f"may be exceeded: at worst {most:,.0f} {name} are more than {more}")
    return found


def _cost(amount: Amount, prices: Prices) -> str:
    cost = amount.price(prices.input_per_million, prices.output_per_million)
    worst = f", at worst {cost.worst_text(_money)}" if _money(cost.worst) != _money(cost.most) else ""
    return f"cost {cost.text(_money)} {prices.currency}{worst}"


def _money(amount: float) -> str:
    return f"{amount:,.2f}"


def _repetitions(parameters: TestParameters, settings: Settings) -> _Repeated:
    arms = 2 if settings.baseline_endpoint is not None else max(len(settings.endpoints), 1)
    if arms > 1 or settings.calibrate:
        if settings.baseline_endpoint is not None:
            runs = pairs_wanted(parameters, settings.runs)
        else:
            least = CALIBRATION_RUNS if settings.calibrate else FEWEST_RUNS
            runs = runs_wanted(parameters, settings.runs, least)
        why = f": {runs} runs on each of {arms} systems" if arms > 1 else ": a calibration"
        if repeats_its_load(parameters):
            return _Repeated(replace(parameters, runs=runs), arms, runs, why)
        return _Repeated(replace(parameters, runs=None), arms * runs, why=why)
    asked = with_runs(parameters, settings)
    if not (settings.save or settings.compare):
        return _Repeated(asked)
    wanted = max(settings.runs or 1, parameters.runs or 1)  # harness/repeated.py
    if repeats_its_load(parameters):
        return _Repeated(replace(asked, runs=wanted), least_runs=wanted)
    why = ", as a whole: a baseline needs runs"
    return _Repeated(replace(asked, runs=None), wanted, why=why)


def _test(
    nodeid: str,
    definition: TestDefinition,
    asked: _Repeated,
    settings: Settings,
    known: Foreseen,
    planned: _Planned,
) -> tuple[Amount, list[str]]:
    parameters = asked.parameters
    setting = _setting(nodeid, asked, settings, known)
    missing = list(definition.needs(parameters, setting))
    if missing:
        unsure = "" if known.complete else " (as far as is known before the SUT is asked)"
        return Amount(), [f"{definition.title}: CANNOT RUN{unsure}", *(f"- {need}" for need in missing)]
    try:
        plans = definition.plans(parameters, setting)
        loads = bounds_of(definition, parameters, setting)
    except SuiteError as error:
        return Amount(), [f"{definition.title}: CANNOT RUN: {error.what}"]
    own, shared = _divided(nodeid, loads, planned)
    # Whole tests are repeated with other seeds.
    own = [replace(load, one_sequence=load.one_sequence and asked.times == 1) for load in own]
    amount = sum(
        (planned.sampler.amount(load.measured_up_to(1 + settings.remeasure)) for load in own), Amount()
    )
    amount = amount.times(asked.times)
    described = describe_loads([plan.load for plan in plans]) or "no load known beforehand"
    block = [f"{definition.title}: {described}, workload {setting.workload.name}", amount.describe()]
    block += _of_warm_up(own, planned, asked.times)
    measured = [load for load in loads if load.phase is Phase.MEASURE]
    with_ = [owner for load, owner in shared if load.phase is Phase.MEASURE]
    if with_:
        block.append(f"{len(with_)} of {len(measured)} loads shared with {', '.join(dict.fromkeys(with_))}")
    if warmed_by := [owner for load, owner in shared if load.phase is Phase.WARMUP]:
        block.append(f"warm-up shared with {warmed_by[0]}")
    return amount, block


def _setting(nodeid: str, asked: _Repeated, settings: Settings, known: Foreseen) -> Setting:
    setting = setting_for(
        asked.parameters,
        settings,
        warmup=warmup_for(settings.scale),
        facts=known.facts,
        variants=known.variants,
    )
    salt = nodeid if asked.parameters.fresh else ""
    return replace(setting, least_runs=asked.least_runs, salt=salt)


def _of_warm_up(own: Sequence[Bounds], planned: _Planned, times: int) -> list[str]:
    loads = [load for load in own if load.phase is not Phase.MEASURE]
    if not loads:
        return []
    amount = sum(map(planned.sampler.amount, loads), Amount()).times(times)
    return [f"of these, requests {amount.requests.text()} in warm-ups and probes"]


def _divided(
    nodeid: str, loads: Sequence[Bounds], planned: _Planned
) -> tuple[list[Bounds], list[tuple[Bounds, str]]]:
    """The loads that the test sends itself, and those that it has from another one."""
    own: list[Bounds] = []
    shared: list[tuple[Bounds, str]] = []
    for load in loads:
        owner = planned.owners.get(load.key)
        if owner is None or owner == nodeid or load.fresh:
            own.append(load)
            if not load.fresh:
                planned.owners.setdefault(load.key, nodeid)
            continue
        shared.append((load, owner))
        if load.phase is not Phase.MEASURE and planned.anew:
            own.append(replace(load, least=0, least_s=0.0))
    planned.anew = planned.anew or any(load.fresh for load in loads)
    return own, shared


__all__ = ["Certain", "certain", "plan_lines"]
