"""Prefix Cache Effectiveness, section 5.7 of the draft (METHODOLOGY §11.7).

Objective: the benefit of prefix caching when requests share prefixes, as TTFT reduction through hits.
Procedure: the identical sequence of requests three times (AMB-18), each after a warm-up that leaves the
measured prefixes alone: with the cache switched off; switched on and empty (Cold); switched on and filled
with the shared prefixes (Warm). The states are SUT variants. The cold run needs a restart or a flush, else it
is left out with a note. Prompts are the same in all three, so the requests are compared one with one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from pytest_llmbench.methodology.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.levels import Seen, level_of, qualified
from pytest_llmbench.methodology.parameters import LoadParameters, parameter
from pytest_llmbench.methodology.prefix_cache_state import state_findings, with_zeros
from pytest_llmbench.methodology.prefix_cache_tables import cache_table, effect_table
from pytest_llmbench.methodology.procedure import Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.remeasured import attempted, same_requests_again
from pytest_llmbench.methodology.scales import ByScale
from pytest_llmbench.methodology.seeds import Part, part_of
from pytest_llmbench.methodology.variants import missing_variants, variant_facts
from pytest_llmbench.methodology.warmup import joined, warm_up
from pytest_llmbench.metrics.differences import change, paired_changes, pairs
from pytest_llmbench.metrics.prefix import cache_hit_rate, cached_input_share
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import TestResult, WarmupReport
from pytest_llmbench.workloads.adapted import SharedPrefix
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.prefixes import Prefixes
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

HEADING = Heading("prefix_cache", "5.7", "Prefix Cache Effectiveness")
DISABLED, COLD, WARM = "disabled", "cold", "warm"
PERCENTILES = ("p50", "p95", "p99")
REQUESTS = ByScale(quick=60, standard=500, full=2_000)
STAND_IN = SharedPrefix("shared-contexts", SYNTHETIC_UNIFORM, Uniform(512, 1024), 0.8, 10)
"""Default workload: the sharing of Code Completion (80 % begin with one of ten contexts of 512 to 1024
tokens) with random content. The recommended one needs a data set, and a stand-in may not bear its name."""


@dataclass(frozen=True, kw_only=True)
class Parameters(LoadParameters):
    """Keywords of ``@llmbench.prefix_cache``. Limits are floors on the warm run, shares between 0 and 1."""

    workload: str | Workload = parameter("workload", STAND_IN)
    disabled: str = parameter("name", "cache_disabled")
    """SUT variant with the prefix cache switched off."""
    enabled: str = parameter("name", "cache_enabled")
    """SUT variant with the prefix cache switched on."""
    min_ttft_reduction: float | None = parameter("share")
    """At P50."""
    min_ttft_reduction_p95: float | None = parameter("share")
    min_ttft_reduction_p99: float | None = parameter("share")
    min_hit_rate: float | None = parameter("share")
    min_throughput_improvement: float | None = parameter("positive")

    @property
    def objectives(self) -> tuple[Objective, ...]:
        floors = {
            "ttft_reduction.p50": self.min_ttft_reduction,
            "ttft_reduction.p95": self.min_ttft_reduction_p95,
            "ttft_reduction.p99": self.min_ttft_reduction_p99,
            "cache_hit_rate": self.min_hit_rate,
            "throughput_improvement": self.min_throughput_improvement,
        }
        own = [Objective(name, ">=", floor, "ratio") for name, floor in floors.items() if floor is not None]
        return (*own, *self.slo)

    def contradictions(self) -> list[str]:
        found = super().contradictions()
        if self.disabled == self.enabled:
            found.append(f"disabled and enabled name the same variant {self.enabled!r}")
        return found


@dataclass
class _Runs:
    """What was run so far, by the state of the cache."""

    parameters: Parameters
    setting: Setting
    by_state: dict[str, Seen] = field(default_factory=dict)
    warmups: list[WarmupReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    disturbed: list[Seen] = field(default_factory=list)
    """Runs that the generator spoiled, and that were repeated."""
    populated: int = 0
    """Shared prefixes that the cache was filled with before the warm run."""

    def measured(self, state: str, variant: str, prepare: Callable[[], Procedure[None]]) -> Procedure[None]:
        """``prepare`` brings the cache into the state, now and before the same requests are sent again."""
        yield from prepare()
        # Without a warm-up there was no plan to carry the wish for a fresh state.
        fresh = state == COLD and not self.setting.warmup.wanted
        plan = _plan(self.parameters, self.setting, state, variant).with_(fresh_state=fresh)
        see = partial(level_of, seed=self.setting.seed, label=f"cache {state}", role=state)
        again = same_requests_again(self.setting, variant)
        attempts = yield from attempted(lambda: plan, see, again, needed=True, prepare=prepare)
        self.disturbed += attempts.runs[:-1]
        self.notes += attempts.notes
        self.by_state[state] = attempts.level

    def warmed_up(self, variant: str, *, fresh: bool) -> Procedure[None]:
        """With prompts of other content: nothing measured gets into the cache (section 5.7.3)."""
        report = yield from warm_up(
            self.setting, variant=variant, workload=SYNTHETIC_UNIFORM, fresh_state=fresh
        )
        self.warmups.append(report)

    def filled(self, *, fresh: bool) -> Procedure[None]:
        """The state of the warm run. What a run before it left, whole prompts, is not in it: Warm is about
        shared prefixes only."""
        yield from self.warmed_up(self.parameters.enabled, fresh=fresh)
        self.populated = yield from _populate(self.parameters, self.setting)


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    runs = _Runs(parameters, setting)
    fresh = setting.variants[parameters.enabled].can_be_fresh
    off = partial(runs.warmed_up, parameters.disabled, fresh=False)
    yield from runs.measured(DISABLED, parameters.disabled, off)
    if fresh:
        empty = partial(runs.warmed_up, parameters.enabled, fresh=True)
        yield from runs.measured(COLD, parameters.enabled, empty)
    else:
        runs.notes.append(
            f"no cold run: the cache of variant {parameters.enabled!r} cannot be emptied; declare a reset "
            "call or a launch command for it"
        )
    yield from runs.measured(WARM, parameters.enabled, partial(runs.filled, fresh=fresh))
    return _result(runs)


def _populate(parameters: Parameters, setting: Setting) -> Procedure[int]:
    """Send every shared prefix once; returns how many there are."""
    plan = populating(parameters, setting)
    if plan is None:
        return 0
    yield plan
    return plan.requests


def populating(parameters: Parameters, setting: Setting) -> LoadPlan | None:
    """The load that fills the cache with the shared prefixes; None where the requests share none."""
    prefixes = Prefixes(setting.workload, request_count(parameters, setting))
    part = _part(parameters, setting)
    known = prefixes.count(part.seed)
    if not known:
        return None
    return LoadPlan(
        label="populate",
        workload=prefixes,
        load=ClosedLoop(1),
        requests=known,
        seed=part.seed,
        part=part.name,
        phase=Phase.WARMUP,
        deadlines=setting.deadlines,
        variant=parameters.enabled,
    )


def _part(parameters: Parameters, setting: Setting) -> Part:
    """Every state of the cache gets the same requests."""
    trace = isinstance(parameters.load, OpenLoop) and parameters.load.arrival == "trace"
    asked = {
        "load": "trace" if trace else asdict(parameters.load),
        "requests": request_count(parameters, setting),
        "variants": [parameters.disabled, parameters.enabled],
    }
    return part_of(setting, setting.workload, "prefix cache", **asked)


def _plan(parameters: Parameters, setting: Setting, state: str, variant: str) -> LoadPlan:
    part = _part(parameters, setting)
    return LoadPlan(
        label=f"cache {state}",
        workload=setting.workload,
        load=parameters.load,
        requests=request_count(parameters, setting),
        seed=part.seed,
        part=part.name,
        deadlines=setting.deadlines,
        ignore_eos=setting.ignore_eos,
        variant=variant,
    )


def request_count(parameters: Parameters, setting: Setting) -> int:
    load, asked = parameters.load, parameters.requests
    if isinstance(load, OpenLoop) and load.arrival == "trace":
        most = asked or len(load.offsets_ns)
        return min(most, REQUESTS.count("quick")) if setting.scale == "quick" else most
    return REQUESTS.count(setting.scale, asked)


def _result(runs: _Runs) -> TestResult:
    parameters, setting, populated = runs.parameters, runs.setting, runs.populated
    levels = [*runs.disturbed, *runs.by_state.values()]
    metrics = _metrics(runs)
    facts = variant_facts(setting, parameters.enabled, prefixes_populated=populated > 0)
    report = Report(
        levels=levels,
        metrics=metrics,
        tables=(cache_table(runs.by_state), effect_table(metrics, COLD in runs.by_state)),
        notes=(*runs.notes, f"the cache was filled with {populated} shared prefixes before the warm run"),
        load={"load.model": parameters.load.model},
        facts=facts,
        findings=state_findings(runs.by_state),
    )
    return result_of(
        HEADING, parameters, setting, joined(runs.warmups, "before each state of the cache"), report
    )


def _metrics(runs: _Runs) -> dict[str, Estimate]:
    baseline, warm = runs.by_state[DISABLED], runs.by_state[WARM]
    metrics = dict(warm.level.metrics)
    for state, seen in runs.by_state.items():
        metrics |= qualified(seen.level.metrics, state)
    metrics |= _effect(baseline, warm, runs.setting.seed)
    if COLD in runs.by_state:
        metrics |= qualified(_effect(baseline, runs.by_state[COLD], runs.setting.seed), COLD)
    return metrics


def _effect(baseline: Seen, cached: Seen, seed: int) -> dict[str, Estimate]:
    """Reduction per percentile, hit rates and throughput gain of one run against the baseline."""
    rate = "output_token_throughput"
    if isinstance(cached.observation.plan.load, ClosedLoop):
        gain = change(baseline.level.metrics[rate], cached.level.metrics[rate], "relative_change")
    else:
        method = "not measurable: an open loop below saturation offers the same to both"
        gain = Estimate.undefined(unit="ratio", method=method)
    arms = pairs("ttft", [baseline.inside], [cached.inside])
    told = [with_zeros(cached.records)]
    return paired_changes("ttft_reduction", arms, "reduction", statistics=PERCENTILES) | {
        "cache_hit_rate": cache_hit_rate(told, seed=seed),
        "cached_input_share": cached_input_share(told, seed=seed),
        "throughput_improvement": gain,
    }


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    states = ((DISABLED, parameters.disabled), (COLD, parameters.enabled), (WARM, parameters.enabled))
    return tuple(_plan(parameters, setting, state, variant) for state, variant in states)


def needs(parameters: Parameters, setting: Setting) -> list[str]:
    found = missing_variants(
        setting, {parameters.disabled: "the prefix cache off", parameters.enabled: "the prefix cache on"}
    )
    fraction: Any = setting.workload.specification().get("prefix_sharing", {}).get("fraction")
    if fraction == 0:
        found.append(
            f"workload {setting.workload.name!r} shares no prefixes, so there is nothing to cache: "
            "use code-completion, conversation or a SharedPrefix workload"
        )
    return found


def warmups(parameters: Parameters, setting: Setting) -> tuple[Workload, ...]:
    """One for each state; without a means to empty the cache there is no cold one."""
    info = setting.variants.get(parameters.enabled)
    return (SYNTHETIC_UNIFORM,) * (3 if info is not None and info.can_be_fresh else 2)


procedure = framed(HEADING, measure, warm=False)
TEST = TestDefinition(
    HEADING.test, HEADING.section, HEADING.title, Parameters, procedure, plans, needs, warmups
)

__all__ = [
    "COLD",
    "DISABLED",
    "STAND_IN",
    "TEST",
    "WARM",
    "Parameters",
    "measure",
    "needs",
    "plans",
    "populating",
]
