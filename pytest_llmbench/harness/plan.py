"""``--llm-plan``: what the selected tests send at least and at most, how long it takes and what it costs.
Nothing is sent.

So the tests that would certainly exceed a budget of the session are named before anything is sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.allowance import Budgets, raised
from pytest_llmbench.harness.comparison.replication import replication
from pytest_llmbench.harness.setting import (
    prompts_of,
    salt_of,
    setting_for,
    warmup_for,
    with_runs,
    within_budget,
)
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.declared import Prices, Variant, declared_variants, prices_of, sut_file_of
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Bounds, Setting, TestDefinition, VariantInfo
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.plan import describe_loads
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.session import LIVE_ANSWERS, OfSessions
from pytest_llmbench.reports.numbers import rough_duration
from pytest_llmbench.workloads.adapted import told_of_cuts
from pytest_llmbench.workloads.profiles import told_of
from pytest_llmbench.workloads.stream import stream_of

SAMPLE_REQUESTS = 12_000
"""Number of requests drawn to estimate the tokens of longer loads, or fewer: see :data:`SAMPLE_TOKENS`."""
SAMPLE_TOKENS = 4_000_000
"""Number of input tokens after which no more requests are drawn; long contexts reach it sooner."""
_FEWEST_SAMPLED = 500
"""The fewest requests to sample where it is not known how many there will be."""
_SIGMAS = 4.0
"""Half-width of the estimated bounds, in standard errors."""
_SLACK = 0.02
_BETWEEN_SEQUENCES = 0.1
"""Assumed relative difference between sequences with shared prefixes, as each draws a few prefixes of its
own; and between sequences of sessions, whose turns grow together."""


@dataclass(frozen=True)
class Span:
    """Lower and upper bound of a quantity of the plan."""

    least: float = 0.0
    most: float = 0.0
    per_rps: float = 0.0
    """Added to ``most`` for each request per second that the system completes at its best."""
    worst: float = 0.0
    """The upper bound if replies fail or are short, or loads are measured again."""
    worst_per_rps: float = 0.0

    def __add__(self, other: Span) -> Span:
        return Span(
            self.least + other.least,
            self.most + other.most,
            self.per_rps + other.per_rps,
            self.worst + other.worst,
            self.worst_per_rps + other.worst_per_rps,
        )

    def times(self, factor: float) -> Span:
        every = (self.least, self.most, self.per_rps, self.worst, self.worst_per_rps)
        return Span(*(factor * each for each in every))

    def worst_text(self, shown: Callable[[float], str] = lambda value: f"{value:,.0f}") -> str:
        more = f" + {shown(self.worst_per_rps)} per req/s" if self.worst_per_rps else ""
        return shown(self.worst) + more

    def text(self, shown: Callable[[float], str] = lambda value: f"{value:,.0f}") -> str:
        """The bounds as text: ``1,100``, ``[104, 1,100]`` or ``[104, 1,100 + 12 per req/s]``."""
        if self.per_rps:
            return f"[{shown(self.least)}, {shown(self.most)} + {shown(self.per_rps)} per req/s]"
        if shown(self.least) == shown(self.most):
            return shown(self.most)
        return f"[{shown(self.least)}, {shown(self.most)}]"


@dataclass(frozen=True)
class Amount:
    """Bounds of what loads send. ``seconds`` are those of loads with a nominal duration; the system decides
    about others."""

    requests: Span = field(default_factory=Span)
    input_tokens: Span = field(default_factory=Span)
    output_tokens: Span = field(default_factory=Span)
    seconds: Span = field(default_factory=Span)
    open_ended: bool = False
    """Whether some of the measured load takes as long as the system needs."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.requests + other.requests,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.seconds + other.seconds,
            self.open_ended or other.open_ended,
        )

    def times(self, count: int) -> Amount:
        return Amount(
            self.requests.times(count),
            self.input_tokens.times(count),
            self.output_tokens.times(count),
            self.seconds.times(count),
            self.open_ended,
        )

    def price(self, per_million_input: float, per_million_output: float) -> Span:
        return self.input_tokens.times(per_million_input / 1e6) + self.output_tokens.times(
            per_million_output / 1e6
        )

    def describe(self) -> str:
        """The amounts in words: ``[least, most]`` of each."""
        return (
            f"requests {self.requests.text()}, input tokens {self.input_tokens.text()}, output tokens "
            f"{self.output_tokens.text()}, {self._duration()}"
        )

    @property
    def is_worse(self) -> bool:
        """Whether the worst case is more than the usual one."""
        return self.requests.worst > self.requests.most

    def describe_worst(self) -> str:
        return (
            f"{self.requests.worst_text()} requests, {self.input_tokens.worst_text()} input and "
            f"{self.output_tokens.worst_text()} output tokens"
        )

    def _duration(self) -> str:
        if self.open_ended and self.seconds.most == 0:
            return "duration set by the SUT (closed loop)"
        more = ", and loads of a number of requests as long as the SUT needs" if self.open_ended else ""
        return f"{self.seconds.text(rough_duration)} of measured load{more}"


Lengths = npt.NDArray[np.int64]


class Sampler:
    """Draws the beginning of each request sequence, once."""

    def __init__(self) -> None:
        self._samples: dict[tuple[str, str, int], tuple[Lengths, Lengths]] = {}

    def amount(self, load: Bounds) -> Amount:
        more = load.attempts * load.per_rps
        requests = Span(load.least, load.most, load.per_rps, load.at_worst, more)
        inputs, outputs = self._lengths(load)
        exact, spread = load.one_sequence and load.first < len(inputs), 0.0
        if exact:
            inputs, outputs = inputs[load.first :], outputs[load.first :]
        if not load.one_sequence and _is_clustered(load.workload):
            spread = _BETWEEN_SEQUENCES
        seconds = Span(load.least_s, load.most_s, worst=load.attempts * load.most_s)
        asked = _tokens(inputs, requests, exact, spread)
        # A reply may end before its limit, after one token or none.
        answered = replace(_tokens(outputs, requests, exact, 0.0), least=0.0)
        open_ended = load.open_ended and load.phase is Phase.MEASURE
        return Amount(requests, asked, answered, seconds, open_ended)

    def _lengths(self, load: Bounds) -> tuple[Lengths, Lengths]:
        least = _FEWEST_SAMPLED if load.per_rps else 0
        wanted = min(SAMPLE_REQUESTS, load.first + max(load.at_worst, least))
        key = (load.workload.name, str(load.workload.specification()), load.seed)
        if key not in self._samples or len(self._samples[key][0]) < wanted:
            self._samples[key] = _sampled(load.workload, load.seed, wanted)
        return self._samples[key]


def _is_clustered(workload: Workload) -> bool:
    """Whether the lengths of requests are correlated: by shared prefixes, or turn by turn in a session."""
    return isinstance(workload, OfSessions) or workload.specification()["prefix_sharing"]["fraction"] > 0


def _sampled(workload: Workload, seed: int, count: int) -> tuple[Lengths, Lengths]:
    inputs: list[int] = []
    outputs: list[int] = []
    tokens = 0
    for request in islice(stream_of(workload, seed), count):
        inputs.append(request.input_tokens)
        outputs.append(request.max_tokens)
        tokens += request.input_tokens
        if tokens > SAMPLE_TOKENS:
            break
    return np.array(inputs, dtype=np.int64), np.array(outputs, dtype=np.int64)


def _tokens(lengths: Lengths, requests: Span, exact: bool, spread: float) -> Span:
    """The tokens of so many requests: exact for the part of a sequence that was drawn, else estimated from
    its lengths."""
    known = len(lengths)
    if not known:
        return Span()
    mean, deviation = float(lengths.mean()), float(lengths.std())
    error = _SIGMAS * deviation / math.sqrt(known) + spread * mean

    def total(count: float, sign: int) -> float:
        if exact and count <= known:
            return float(lengths[: int(count)].sum())
        return max(0.0, count * (mean + sign * error) + sign * _SIGMAS * deviation * math.sqrt(count))

    most, worst = total(requests.most, 1), total(requests.worst, 1)
    if requests.per_rps:
        # √x grows slower than any share of x: the deviation of so many more requests, as a share and a sum.
        fixed = (_SIGMAS * deviation) ** 2 / (4 * _SLACK * mean)
        most, worst = most + fixed, worst + fixed
    each = mean * (1 + _SLACK) + error
    more, worst_more = each * requests.per_rps, each * requests.worst_per_rps
    return Span(total(requests.least, -1), most, more, worst, worst_more)


@dataclass(frozen=True)
class Foreseen:
    facts: Facts = field(default_factory=Facts)
    variants: Mapping[str, VariantInfo] = field(default_factory=dict)
    complete: bool = False
    """Whether asking the system would add nothing (the embedded engine)."""


def foreseen(settings: Settings, offered: Callable[[str], Mapping[str, Any]] = lambda _: {}) -> Foreseen:
    """What is known of the system from the options, the SUT file and the hooks, without asking it.

    Raises SuiteError for mistakes in them.
    """
    file = sut_file_of(settings)
    sut = SUT(settings.endpoint or "")
    engine = sut.is_embedded or sut.is_replay
    facts = Facts()
    if engine:
        from pytest_llmbench.simulator.scenario.scenario import parse_scenario
        from pytest_llmbench.simulator.scenario.variants import disclosure

        scenario = parse_scenario(sut.preset)
        facts = disclosure(scenario.engine, scenario.router)
    if file is not None:
        facts = facts | file.facts
    variants = declared_variants(sut, file, offered(sut.endpoint))
    fresh = engine or (file is not None and file.endpoint.reset.path is not None)
    infos = {"": VariantInfo("", Facts(), fresh)}
    for name, variant in variants.items():
        infos[name] = VariantInfo(name, _facts(variant, sut), _can_be_fresh(variant, fresh))
    return Foreseen(facts, infos, engine)


def _facts(variant: Variant, sut: SUT) -> Facts:
    if variant.preset is None:
        return variant.facts
    from pytest_llmbench.harness.sut.embedded import overridden
    from pytest_llmbench.simulator.scenario.variants import variant_facts

    return variant_facts(overridden(sut.preset, variant.preset)) | variant.facts


def _can_be_fresh(variant: Variant, base: bool) -> bool:
    if variant.way in ("command", "preset") or variant.table.reset.path is not None:
        return True
    return base and variant.way in ("control", "request")


Selected = Sequence[tuple[str, TestDefinition, TestParameters]]
Systems = Mapping[str, Hashable]
"""Node id → what tells the systems of the tests apart, which share no load; none: all have the same one."""
PER_RPS = (
    "per req/s: for each request per second that the system completes at most; a search finds out how many "
    "that are, so there is no other upper bound (capacity_rps= in a marker makes it a number)"
)


@dataclass
class _Planned:
    """The loads that the tests so far would send, so that shared loads of the next one are found."""

    sampler: Sampler = field(default_factory=Sampler)
    owners: dict[tuple[Hashable, str], str] = field(default_factory=dict)
    """(System, key of a load) → node id of the first test that sends it."""
    system: Hashable = None
    """The system of the next test."""
    anew: bool = False
    """Whether a test has brought a server into a fresh state, after which warm-ups are not shared."""


@dataclass(frozen=True)
class Certain:
    """The amounts that a test sends in any case."""

    nodeid: str
    requests: float
    input_tokens: float
    seconds: float


@dataclass(frozen=True)
class _Repeated:
    """The parameters of one test with its repetitions, and the reason for them."""

    parameters: TestParameters
    times: int
    least_runs: int
    most_runs: int | None
    why: str


def plan_lines(
    tests: Selected,
    settings: Settings,
    *,
    offered: Callable[[str], Mapping[str, Any]] = lambda _: {},
    systems: Systems = MappingProxyType({}),
) -> list[str]:
    """Lines for the terminal: a block for each test, then the total. Raises SuiteError for a wrong SUT
    file."""
    if not tests:
        return ["llmbench plan: no marked test is selected"]
    known, prices = foreseen(settings, offered), prices_of(settings)
    lines = [f"llmbench plan (scale {settings.scale}): nothing is sent; [least, most]"]
    planned, total = _Planned(), Amount()
    for nodeid, definition, parameters in tests:
        asked, planned.system = _repetitions(parameters, settings, len(tests)), systems.get(nodeid)
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
    systems: Systems = MappingProxyType({}),
    tokens: bool = True,
) -> list[Certain]:
    """The least that each test sends, shared loads counted once. ``tokens=False``: no request is drawn to
    count them. A test that cannot run, such as one whose requests cannot be drawn, sends nothing. Raises
    SuiteError for a wrong SUT file."""
    known, planned, found = foreseen(settings, offered), _Planned(), list[Certain]()
    for nodeid, definition, parameters in tests:
        asked, planned.system = _repetitions(parameters, settings, len(tests)), systems.get(nodeid)
        setting = _setting(nodeid, asked, settings, known)
        if list(definition.needs(asked.parameters, setting)):
            continue
        try:
            own, _ = _divided(nodeid, definition.bounds(asked.parameters, setting), planned)
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
    if prompts_of(SUT(settings.endpoint or ""), settings) == settings.new_prompts != "":
        found.append(
            "each session draws prompts of its own, since the server may have kept those of the last: counts "
            "of another differ a little (--llm-prompts=NAME fixes them)"
        )
    found += [f"budgets: {settings.budgets.describe()}", *_met(total, settings.budgets)]
    return found if prices is None else [*found, f"{_cost(total, prices)} at the declared prices"]


def _met(total: Amount, budgets: Budgets) -> list[str]:
    """Lines on the budgets that the tests exceed in any case, and those that they may exceed."""
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


def _repetitions(parameters: TestParameters, settings: Settings, tests: int) -> _Repeated:
    """The repetitions of one of so many tests."""
    asked, budget_s = within_budget(with_runs(parameters, settings), settings, tests)
    own = replication(asked, settings, budget_s)
    arms = 2 if settings.baseline_endpoint is not None else max(len(settings.endpoints), 1)
    if arms > 1:
        why = f": {own.runs} runs on each of {arms} systems"
    elif settings.calibrate:
        why = ": a calibration"
    else:
        why = ", as a whole: a baseline needs runs"
    return _Repeated(own.parameters, arms * own.whole, own.least_runs, own.most_runs, why)


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
        loads = definition.bounds(parameters, setting)
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
    stated = setting.workload.specification()
    block += [*told_of(stated.get("profiles", ())), *filter(None, [told_of_cuts(stated.get("cuts"))])]
    block += [f"live answers: {LIVE_ANSWERS}"] if "answers" in stated else []
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
    own = nodeid if asked.parameters.fresh else ""
    salt = salt_of(SUT(settings.endpoint or ""), settings, own)
    return replace(setting, least_runs=asked.least_runs, most_runs=asked.most_runs, salt=salt)


def _of_warm_up(own: Sequence[Bounds], planned: _Planned, times: int) -> list[str]:
    loads = [load for load in own if load.phase is not Phase.MEASURE]
    if not loads:
        return []
    amount = sum(map(planned.sampler.amount, loads), Amount()).times(times)
    return [f"of these, requests {amount.requests.text()} in warm-ups and probes"]


def _divided(
    nodeid: str, loads: Sequence[Bounds], planned: _Planned
) -> tuple[list[Bounds], list[tuple[Bounds, str]]]:
    """The loads that the test sends itself, and those that it shares with an earlier test, each with that
    test."""
    own: list[Bounds] = []
    shared: list[tuple[Bounds, str]] = []
    for load in loads:
        owner = planned.owners.get((planned.system, load.key))
        if owner is None or owner == nodeid or load.fresh:
            own.append(load)
            if not load.fresh:
                planned.owners.setdefault((planned.system, load.key), nodeid)
            continue
        shared.append((load, owner))
        if load.phase is not Phase.MEASURE and planned.anew:
            own.append(replace(load, least=0, least_s=0.0))
    planned.anew = planned.anew or any(load.fresh for load in loads)
    return own, shared


_LONGEST = 200_000
"""Assumed most tokens of a prompt: if so many for each request are within the budget, none is drawn to
see."""
_NAMED = 5
_WIDEST = ("rate", "max_rate", "concurrency", "max_concurrency", "maximum")
"""The keywords of markers that say how far a load may go."""


def exceeding(
    tests: Selected,
    settings: Settings,
    offered: Callable[[str], Mapping[str, Any]] = lambda _: {},
    systems: Systems = MappingProxyType({}),
) -> list[str]:
    """A line for each budget that is certainly exceeded, and for each test whose marker exceeds the allowed
    rate or concurrency. Raises SuiteError for a wrong SUT file."""
    budgets = settings.budgets
    least = certain(tests, settings, offered=offered, systems=systems, tokens=False)
    if sum(each.requests for each in least) * _LONGEST > budgets.tokens:
        least = certain(tests, settings, offered=offered, systems=systems)
    return [
        *_too_wide(tests, settings),
        *_summed("requests", least, [each.requests for each in least], budgets.requests),
        *_summed("tokens", least, [each.input_tokens for each in least], budgets.tokens),
        *_summed("seconds", least, [each.seconds for each in least], budgets.seconds),
    ]


def _summed(name: str, tests: Sequence[Certain], amounts: Sequence[float], budget: float) -> list[str]:
    total = sum(amounts)
    if total <= budget:
        return []
    rows = sorted(zip(amounts, tests, strict=True), key=lambda row: -row[0])
    named = ", ".join(f"{test.nodeid} {amount:,.0f}" for amount, test in rows[:_NAMED])
    more = f", {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    allowed = raised(name, budget, total)
    return [f"the tests send at least {total:,.0f} {name} ({named}{more}), more than {allowed}"]


def _too_wide(tests: Selected, settings: Settings) -> list[str]:
    budgets, found = settings.budgets, []
    for nodeid, _, parameters in tests:
        for keyword in _WIDEST:
            asked = getattr(parameters, keyword, None)
            name = "rate" if "rate" in keyword else "concurrency"
            most = budgets.rate if name == "rate" else budgets.concurrency
            if isinstance(asked, int | float) and asked > most:
                allowed = raised(name, most, asked)
                found.append(f"{nodeid}: {keyword}={asked:g} is more than {allowed}, or lower {keyword}")
    return found
