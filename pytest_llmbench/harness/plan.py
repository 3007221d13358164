"""``--llm-plan``: a dry run of the selected tests. Nothing is sent.

The procedures are driven against the embedded engine in virtual time, and the loads that they ask for are
counted: requests, tokens, time and cost. How many requests a search takes is decided by the system, so an
endpoint that is no preset of the embedded engine is planned for as if it were a slow one and as if it were a
quick one: what is printed lies between the two (docs/decisions/0062).

What a session sends in any case is known without a dry run. If that is more than a budget, the session is
refused before anything is sent.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.allowance import raised
from pytest_llmbench.harness.comparison.replication import Replication, replication
from pytest_llmbench.harness.execution import SharedRuns, drive
from pytest_llmbench.harness.setting import (
    prompts_of,
    salt_of,
    setting_for,
    warmup_for,
    with_runs,
    within_budget,
)
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.declared import declared_variants, prices_of, sut_file_of
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.harness.sut.variant_executor import VariantExecutor
from pytest_llmbench.methodology.parameters import TestParameters
from pytest_llmbench.methodology.procedure import Setting, TestDefinition, VariantInfo
from pytest_llmbench.model.facts import Facts, GuardrailFact, SUTFact
from pytest_llmbench.model.numbers import number, quantity, rough_duration, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, OpenLoop, describe_loads
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import LIVE_ANSWERS
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.workloads.adapted import told_of_cuts
from pytest_llmbench.workloads.profiles import told_of
from pytest_llmbench.workloads.stream import streamed

if TYPE_CHECKING:
    from pytest_llmbench.probes.sut_schema import Prices

TYPICAL = ("h100-70b-tp4", "h100-8b")
"""The presets that stand for a slow and for a quick system where nothing is known of the endpoint."""
MOST_S = 15.0
"""Seconds of computing after which the dry run of one test on one engine ends. What would have come is not
counted, and that is told."""
MOST_REQUESTS = 5_000
"""The most requests of a load that a dry run runs; what they come to is scaled."""
SAMPLE_REQUESTS = 12_000
"""Number of requests drawn to count the tokens that a load has at least; beyond them by their mean."""
MOST_DRAWN = 1_000_000
"""Number of arrivals up to which the time that a load takes at least is exact."""

Selected = Sequence[tuple[str, TestDefinition, TestParameters]]
Systems = Mapping[str, Hashable]
"""Node id → what tells the systems of the tests apart, which share no load; none: all have the same one."""
Offered = Callable[[str], Mapping[str, Any]]
"""Endpoint → the variants that hooks declare for it."""


@dataclass(frozen=True)
class Known:
    """What is known of a system from the options, the SUT file and the hooks, without asking it."""

    facts: Facts
    variants: Mapping[str, VariantInfo]
    engines: tuple[str, ...]
    """Scenarios of the embedded engine that stand for it: its own, or :data:`TYPICAL`."""
    options: Mapping[str, str]
    """Variant → the options of the embedded engine that stand for it."""

    @property
    def is_engine(self) -> bool:
        """Whether it is the embedded engine itself."""
        return self.engines != TYPICAL


def known_of(settings: Settings, offered: Offered = lambda _: {}) -> Known:
    """Raises SuiteError for mistakes in the options, the SUT file and the hooks."""
    file, sut = sut_file_of(settings), SUT(settings.endpoint or "")
    engine = sut.is_embedded or sut.is_replay
    facts = Facts()
    if engine:  # who measures an endpoint does not wait for the simulator
        from pytest_llmbench.simulator.scenario import disclosure, parse_scenario

        scenario = parse_scenario(sut.preset)
        facts = disclosure(scenario.engine, scenario.deployment)
    if file is not None:
        facts = facts | file.facts
    fresh = engine or (file is not None and file.tables.endpoint.reset.path is not None)
    infos, options = {"": VariantInfo("", Facts(), fresh)}, {"": "" if engine else _options(facts)}
    for name, variant in declared_variants(sut, file, offered(sut.endpoint)).items():
        own = variant.facts
        if variant.preset is not None:
            from pytest_llmbench.harness.sut.embedded import overridden
            from pytest_llmbench.simulator.scenario import variant_facts

            own = variant_facts(overridden(sut.preset, variant.preset)) | own
        restarts = variant.way in ("command", "preset") or variant.table.reset.path is not None
        infos[name] = VariantInfo(name, own, restarts or (fresh and variant.way in ("control", "request")))
        options[name] = variant.preset if variant.preset is not None else _options(facts | own)
    return Known(facts, infos, (sut.preset,) if engine else TYPICAL, options)


def _options(facts: Facts) -> str:
    """The options of the embedded engine for what is declared of a cache and of filters."""
    caching = {"enabled": "on", "disabled": "off"}.get(str(facts.value(SUTFact.PREFIX_CACHING)))
    filters = {f"{side}_filter": facts.value(key) for side, key in GuardrailFact.FILTERS.items()}
    given = {"prefix_caching": caching} | {
        name: state for name, state in filters.items() if state in ("absent", "disabled", "enabled")
    }
    return "&".join(f"{name}={value}" for name, value in given.items() if value is not None)


AMOUNTS = ("requests", "unmeasured", "input_tokens", "output_tokens", "seconds")
"""The quantities that are counted. ``unmeasured``: requests of warm-ups and probes among all."""


@dataclass
class Count:
    """What one test came to in a dry run on one engine."""

    amounts: FloatArray = field(default_factory=lambda: np.zeros(len(AMOUNTS)))
    """A figure for each of :data:`AMOUNTS`."""
    sent: list[LoadPlan] = field(default_factory=list)
    """The measured loads."""
    shared: Counter[str] = field(default_factory=Counter)
    """Node id → how many of the measured loads are those of that earlier test."""
    warmed_by: str | None = None
    """The earlier test whose warm-up counts for this one."""
    problem: str | None = None
    """Why the test cannot run, in words."""
    cut: bool = False
    """Whether the dry run ended before the test did."""

    def note(self, plan: LoadPlan, seen: Observation) -> None:
        records = seen.records
        count, output = len(records), records.output_tokens
        scale = plan.requests / count if _is_cut(plan) and count else 1.0
        self.amounts += scale * np.array([
            count,
            0 if plan.phase is Phase.MEASURE else count,
            records.requested_input_tokens.sum(),
            output[output != MISSING].sum(),
            seen.duration_s,
        ])  # fmt: skip


def _is_cut(plan: LoadPlan) -> bool:
    return plan.duration_s is None and plan.requests > MOST_REQUESTS


class _TimeIsUp(Exception):  # noqa: N818 - no error: the dry run ends
    """The dry run of a test has taken :data:`MOST_S`."""


class DryRun:
    """Drives tests against one scenario of the embedded engine in virtual time, and counts what they send.
    Equal loads of several tests are run once, as in a session."""

    def __init__(self, scenario: str, known: Known) -> None:
        self._scenario = scenario
        self._known = known
        self._shared = SharedRuns()
        self._systems: dict[tuple[Hashable, bool], VariantExecutor] = {}
        """(System, whether it generates tokens) → its engines."""

    def count(
        self,
        nodeid: str,
        definition: TestDefinition,
        parameters: TestParameters,
        setting: Setting,
        system: Hashable = None,
    ) -> Count:
        """What the test sends, as far as the dry run goes."""
        found, ends = Count(), time.process_time() + MOST_S
        which = (system, definition.parameters.generates)
        key = f"{which}"

        def in_time(_: object = None) -> None:
            if time.process_time() > ends:
                raise _TimeIsUp

        def execute(plan: LoadPlan) -> Observation:
            in_time()
            executor = self._executor(*which)
            state = executor.state(plan.variant)
            seen = None if parameters.fresh else self._shared.find(key, plan, nodeid, state)
            measured = plan.phase is Phase.MEASURE
            if measured:
                found.sent.append(plan)
            if seen is not None:
                owner = str(seen.shared_from)
                if measured:
                    found.shared[owner] += 1
                else:
                    found.warmed_by = found.warmed_by or owner
                return seen
            run = plan.with_(requests=MOST_REQUESTS) if _is_cut(plan) else plan
            seen = executor.run(run, in_time)
            found.note(plan, seen)
            self._shared.keep(key, plan, nodeid, executor.state(plan.variant), seen)
            return seen

        try:
            drive(definition.procedure(parameters, setting), execute)
        except _TimeIsUp:
            found.cut = True
            self._systems.pop(which, None)  # it was left in the middle of a load
            self._shared.forget(key)
        except LLMBenchError as error:
            found.problem = error.what
        except Exception as error:  # noqa: BLE001 - a suite's own workload may raise anything
            found.problem = f"{type(error).__name__}: {error}"
        return found

    def _executor(self, system: Hashable, generates: bool) -> VariantExecutor:
        executor = self._systems.get((system, generates))
        if executor is None:
            from pytest_llmbench.harness.sut.embedded import Replayed, overridden

            base = Replayed(scenario=self._scenario, generates=generates, any_model=not self._known.is_engine)

            def engine(name: str) -> Replayed:
                options = self._known.options[name]
                scenario = overridden(self._scenario, options) if options else self._scenario
                facts = self._known.variants[name].facts
                return replace(base, name=name, server=name, facts=facts, scenario=scenario)

            executor = VariantExecutor(engine(""))
            for name in filter(None, self._known.variants):
                executor.add(engine(name))
            self._systems[system, generates] = executor
        return executor


@dataclass(frozen=True)
class Amount:
    """What a test sends, or several: each quantity on the engine on which it is least, and on that on which
    it is most."""

    least: FloatArray = field(default_factory=lambda: np.zeros(len(AMOUNTS)))
    most: FloatArray = field(default_factory=lambda: np.zeros(len(AMOUNTS)))
    cut: bool = False

    @classmethod
    def of(cls, counts: Sequence[Count], times: int) -> Amount:
        """The amounts of one test on several engines, so many times."""
        amounts = times * np.array([count.amounts for count in counts])
        return cls(amounts.min(axis=0), amounts.max(axis=0), any(count.cut for count in counts))

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.least + other.least, self.most + other.most, self.cut or other.cut)

    def span(self, name: str) -> tuple[float, float]:
        at = AMOUNTS.index(name)
        return float(self.least[at]), float(self.most[at])

    def describe(self, prices: Prices | None) -> str:
        if not self.most[0] and not self.cut:
            return "no requests of its own"
        requests, unmeasured, read, written = (_text(self.span(name)) for name in AMOUNTS[:-1])
        least = "at least " if self.cut else ""
        beside = f" ({unmeasured} in warm-ups and probes)" if self.span("unmeasured")[1] else ""
        cost = ""
        if prices is not None:
            ends = (prices.of(*each[2:4]) for each in (self.least, self.most))
            cost = f", {_text(tuple(ends), number)} {prices.currency}"
        return (
            f"{least}{requests} requests{beside}, {read} input and {written} output tokens, "
            f"{_text(self.span('seconds'), rough_duration)}{cost}"
        )


def _text(span: tuple[float, ...], shown: Callable[[float], str] = lambda value: f"{round(value):,}") -> str:
    """``1,104``, or ``9,180 to 16,000``: where the engines differ three digits are enough."""
    if len({shown(value) for value in span}) > 1:
        span = tuple(
            round(value, 2 - math.floor(math.log10(value))) if value > 0 else value for value in span
        )
    return " to ".join(dict.fromkeys(map(shown, span)))


def plan_lines(
    tests: Selected,
    settings: Settings,
    *,
    offered: Offered = lambda _: {},
    systems: Systems = MappingProxyType({}),
) -> Iterator[str]:
    """Lines for the terminal, as they come: a block for each test, then the total. Raises SuiteError for a
    wrong SUT file."""
    if not tests:
        yield "llmbench plan: no marked test is selected"
        return
    known, prices = known_of(settings, offered), prices_of(settings)
    how = "a dry run in virtual time"
    if not known.is_engine:
        slow, quick = known.engines
        how = (
            f"estimates by dry runs on a slow and a quick engine ({slow}, {quick}; for another one: "
            "--llm-endpoint=replay:PRESET)"
        )
    yield f"llmbench plan (scale {settings.scale}): {how}; nothing is sent"
    runs = [DryRun(scenario, known) for scenario in known.engines]
    total, counted = Amount(), 0
    for nodeid, definition, parameters in tests:
        asked, times, why = _repetitions(parameters, settings, len(tests))
        setting = _setting(nodeid, asked, settings, known)
        yield f"  {nodeid}"
        missing = list(definition.needs(asked.parameters, setting))
        if missing:
            unsure = "" if known.is_engine else " (without asking the SUT)"
            yield f"    {definition.title}: CANNOT RUN{unsure}"
            yield from (f"    - {need}" for need in missing)
            continue
        counts = [
            run.count(nodeid, definition, asked.parameters, setting, systems.get(nodeid)) for run in runs
        ]
        ran = [count for count in counts if count.problem is None]
        if not ran:  # what one assumed engine alone cannot do says nothing of the system
            yield f"    {definition.title}: CANNOT RUN: {counts[0].problem}"
            continue
        amount = Amount.of(ran, times)
        total, counted = total + amount, counted + 1
        yield from (f"    {line}" for line in _block(definition, setting, ran, amount, prices))
        if times > 1:
            yield f"    {times} times{why}"
    yield f"  total of {counted} test{'' if counted == 1 else 's'}: {total.describe(prices)}"
    yield from (f"  {line}" for line in _remarks(total, settings))


def _block(
    definition: TestDefinition,
    setting: Setting,
    counts: Sequence[Count],
    amount: Amount,
    prices: Prices | None,
) -> Iterator[str]:
    loads = describe_loads([plan.load for count in counts for plan in count.sent]) or "no load"
    yield f"{definition.title}: {loads}, workload {setting.workload.name}"
    yield amount.describe(prices)
    if amount.cut:
        yield f"its dry run stopped after {quantity(MOST_S, 's')} of computing; the rest is not counted"
    stated = setting.workload.specification()
    yield from told_of(stated.get("profiles", ()))
    yield from filter(None, [told_of_cuts(stated.get("cuts"))])
    if "answers" in stated:
        yield f"live answers: {LIVE_ANSWERS}"
    last = counts[-1]
    if last.shared:
        shared = sum(last.shared.values())
        yield f"{shared} of {len(last.sent)} loads shared with {', '.join(last.shared)}"
    if last.warmed_by is not None:
        yield f"warm-up shared with {last.warmed_by}"


def _remarks(total: Amount, settings: Settings) -> Iterator[str]:
    again = (
        f", and loads that this machine makes void are measured again (--llm-remeasure={settings.remeasure})"
    )
    yield "on top: failed or short replies prolong warm-ups" + (again if settings.remeasure else "")
    if prompts_of(SUT(settings.endpoint or ""), settings) == settings.new_prompts != "":
        yield (
            "each session draws its own prompts, since the server may have cached earlier ones; counts "
            "differ a little from session to session (--llm-prompts=NAME fixes them)"
        )
    yield f"budgets: {settings.budgets.describe()}"
    spans = {name: total.span(name) for name in ("requests", "seconds")}
    spans["tokens"] = float(total.least[2:4].sum()), float(total.most[2:4].sum())
    for name in ("requests", "tokens", "seconds"):
        budget: float = getattr(settings.budgets, name)
        for told, most in zip(("EXCEEDED", "may be exceeded"), spans[name], strict=True):
            if most > budget:
                yield f"{told}: {round(most):,} {name} are more than {raised(name, budget, most)}"
                break


def _repetitions(parameters: TestParameters, settings: Settings, tests: int) -> tuple[Replication, int, str]:
    """How each arm of one of so many tests is run, how often the whole is in all, and why."""
    asked, budget_s = within_budget(with_runs(parameters, settings), settings, tests)
    own = replication(asked, settings, budget_s)
    arms = 2 if settings.baseline_endpoint is not None else max(len(settings.endpoints), 1)
    if arms > 1:
        why = f": {own.runs} runs on each of {arms} systems"
    elif settings.calibrate:
        why = ": a calibration"
    else:
        why = ", as a whole: a baseline needs runs"
    return own, arms * own.whole, why


def _setting(nodeid: str, asked: Replication, settings: Settings, known: Known) -> Setting:
    setting = setting_for(
        asked.parameters,
        settings,
        warmup=warmup_for(settings.scale),
        facts=known.facts,
        variants=known.variants,
    )
    own = nodeid if asked.parameters.fresh else ""
    salt = salt_of(SUT(settings.endpoint or ""), settings, own)
    return replace(asked.setting(setting), salt=salt)


_LONGEST = 200_000
"""Assumed most tokens of a prompt: if so many for each request are within the budget, none is drawn to
see."""
_NAMED = 5
_WIDEST = ("rate", "max_rate", "concurrency", "max_concurrency", "maximum")
"""The keywords of markers that say how far a load may go."""


def exceeding(
    tests: Selected,
    settings: Settings,
    offered: Offered = lambda _: {},
    systems: Systems = MappingProxyType({}),
) -> list[str]:
    """A line for each budget that is certainly exceeded, and for each test whose marker exceeds the allowed
    rate or concurrency. Raises SuiteError for a wrong SUT file."""
    budgets, loads = settings.budgets, list(_certain_loads(tests, settings, offered, systems))
    requests = [(nodeid, times * plan.requests) for nodeid, times, plan in loads]
    tokens: list[tuple[str, float]] = []
    if sum(count for _, count in requests) * _LONGEST > budgets.tokens:
        tokens = [(nodeid, times * _input_tokens(plan)) for nodeid, times, plan in loads]
    seconds = [(nodeid, times * _seconds(plan)) for nodeid, times, plan in loads]
    too_wide = []
    for nodeid, _, parameters in tests:
        for keyword in _WIDEST:
            asked, name = getattr(parameters, keyword, None), "rate" if "rate" in keyword else "concurrency"
            most: float = getattr(budgets, name)
            if isinstance(asked, int | float) and asked > most:
                given, allowed = trimmed(asked), raised(name, most, asked)
                too_wide.append(f"{nodeid}: {keyword}={given} is more than {allowed}, or lower {keyword}")
    return [
        *too_wide,
        *_summed("requests", requests, budgets.requests),
        *_summed("tokens", tokens, budgets.tokens),
        *_summed("seconds", seconds, budgets.seconds),
    ]


def _certain_loads(
    tests: Selected, settings: Settings, offered: Offered, systems: Systems
) -> Iterator[tuple[str, int, LoadPlan]]:
    """The loads that are sent whatever the system does, each at the first test that sends it, and how often:
    those of tests that repeat one load of a number of requests. A test that cannot run sends none."""
    known, seen = known_of(settings, offered), set[tuple[Hashable, str]]()
    for nodeid, definition, parameters in tests:
        asked, times, _ = _repetitions(parameters, settings, len(tests))
        setting = _setting(nodeid, asked, settings, known)
        if definition.result is None or list(definition.needs(asked.parameters, setting)):
            continue
        try:
            plans = definition.plans(asked.parameters, setting)
        except Exception:  # noqa: BLE001 - a suite's own workload may raise anything, its test will too
            continue
        as_needed = asked.parameters.runs_as_needed and asked.least_runs == 1
        for plan in plans[:1] if as_needed or asked.most_runs is not None else plans:
            key = (systems.get(nodeid), plan.key)
            if plan.looks is None and key not in seen:
                seen.add(key)
                yield nodeid, times, plan


def _input_tokens(plan: LoadPlan) -> float:
    """Exact up to :data:`SAMPLE_REQUESTS`; nine tenths of their mean for each further one, so that it is not
    too much."""
    try:
        requests = islice(streamed(plan.workload).stream(plan.seed), min(plan.requests, SAMPLE_REQUESTS))
        drawn = [request.input_tokens for request in requests]
    except Exception:  # noqa: BLE001 - a suite's own workload may raise anything, its test will too
        return 0.0
    mean = sum(drawn) / len(drawn) if drawn else 0.0
    return sum(drawn) + 0.9 * mean * (plan.requests - len(drawn))


def _seconds(plan: LoadPlan) -> float:
    """Seconds to the last arrival, or the nominal duration; 0 where the system decides. Very many arrivals
    are not drawn: nine tenths of their mean."""
    if plan.duration_s is not None or not isinstance(plan.load, OpenLoop) or not plan.requests:
        return plan.duration_s or 0.0
    if plan.load.of_sessions:
        return plan.duration_s or 0.0
    if plan.requests > MOST_DRAWN and not plan.load.is_trace and not plan.load.stages:
        return 0.9 * plan.requests / plan.load.rate
    due_ns = schedule_ns(plan.load, plan.first + plan.requests, arrival_seed(plan.schedule_seed))
    return float(due_ns[-1] - (due_ns[plan.first - 1] if plan.first else 0)) / 1e9


def _summed(name: str, amounts: Sequence[tuple[str, float]], budget: float) -> list[str]:
    by_test = Counter[str]()
    for nodeid, amount in amounts:
        by_test[nodeid] += amount  # type: ignore[assignment]
    total = sum(by_test.values())
    if total <= budget:
        return []
    named = ", ".join(f"{nodeid} {round(amount):,}" for nodeid, amount in by_test.most_common(_NAMED))
    more = f", {len(by_test) - _NAMED} more" if len(by_test) > _NAMED else ""
    allowed = raised(name, budget, total)
    return [f"the tests send at least {round(total):,} {name} ({named}{more}), more than {allowed}"]
