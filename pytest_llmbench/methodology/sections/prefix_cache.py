"""Prefix Cache Effectiveness, section 5.7 of the draft (METHODOLOGY §11.7).

Objective: the benefit of prefix caching when requests share prefixes, as TTFT reduction through hits.
Procedure: the identical sequence of requests three times (AMB-18), each after a warm-up that leaves the
measured prefixes alone: with the cache switched off; switched on and empty (Cold); switched on and filled
with the shared prefixes (Warm). The states are SUT variants. The cold run needs a restart or a flush, else it
is left out with a note. Prompts are the same in all three, so the requests are compared one with one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from pytest_llmbench.methodology.amounts import plan_bounds, warm_up_bounds
from pytest_llmbench.methodology.measuring.cells import cell
from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import Seen, level_of, qualified
from pytest_llmbench.methodology.measuring.scales import ByScale
from pytest_llmbench.methodology.measuring.seeds import Part, part_of
from pytest_llmbench.methodology.measuring.variants import missing_variants, variant_facts
from pytest_llmbench.methodology.measuring.warmup import joined, warm_up
from pytest_llmbench.methodology.parameters import LoadParameters, parameter
from pytest_llmbench.methodology.procedure import Bounds, Procedure, Setting, TestDefinition
from pytest_llmbench.methodology.remeasured import attempted, same_requests_again
from pytest_llmbench.metrics.differences import change, paired_changes, pairs
from pytest_llmbench.metrics.prefix import cache_hit_rate, cached_input_share
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.outcome import Phase
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import Table, TestResult, WarmupReport
from pytest_llmbench.workloads.adapted import SharedPrefix
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.prefixes import Prefixes
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

MOST_WHEN_OFF = 0.01
"""Share of the input that a cache which is switched off may seem to serve (system prompts of the server)."""
MOST_FIRST_HITS = 0.1
"""Share of the prefixes whose very first request may find them in an empty cache."""


_NAMES = {"disabled": "Cache Disabled", "cold": "Cache (Cold)", "warm": "Cache (Warm)"}


HEADING = Heading("prefix_cache", "5.7", "Prefix Cache Effectiveness")


DISABLED, COLD, WARM = "disabled", "cold", "warm"


PERCENTILES = ("p50", "p95", "p99")


REQUESTS = ByScale(quick=60, standard=500, full=2_000)


STAND_IN = SharedPrefix("shared-contexts", SYNTHETIC_UNIFORM, Uniform(512, 1024), 0.8, 10)
"""Default workload: the sharing of Code Completion (80 % begin with one of ten contexts of 512 to 1024
tokens) with random content. The recommended one needs a data set, and a stand-in may not bear its name."""


@dataclass(frozen=True, kw_only=True)
class Parameters(LoadParameters):
    """The identical requests with the prefix cache off, on and empty, on and filled: three SUT variants.

    Limits are floors on the filled one, shares between 0 and 1.
    """

    workload: str | Workload = parameter("workload", STAND_IN)
    disabled: str = parameter("name", "cache_disabled", doc="SUT variant with the prefix cache switched off.")
    enabled: str = parameter("name", "cache_enabled", doc="SUT variant with the prefix cache switched on.")
    min_ttft_reduction: float | None = parameter("share", doc="at P50.")
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
        """Warm up with prompts of other content, so that nothing measured gets into the cache (section
        5.7.3)."""
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


def state_findings(by_state: Mapping[str, Seen]) -> tuple[Finding, ...]:
    """One finding per run; a run whose server tells nothing about its cache is warned of, not voided."""
    checks = {"disabled": _off, "cold": _empty, "warm": _filled}
    return tuple(checks[state](seen) for state, seen in by_state.items())


def with_zeros(records: Records) -> Records:
    """Servers such as vLLM tell cached tokens only where there are any: where some reply tells, the others
    mean zero. Where none does, nothing is known."""
    if not _told(records):
        return records
    silent = records.ok & (records.cached_tokens == MISSING)
    return replace(records, cached_tokens=np.where(silent, 0, records.cached_tokens))


def _off(seen: Seen) -> Finding:
    share = _cached_share(seen)
    if share is None:
        return _untold("disabled")
    ok = share <= MOST_WHEN_OFF
    advice = "" if ok else ": the cache is not off; check how the variant switches it"
    return Finding(
        "cache_disabled",
        ok=ok,
        voids=True,
        message=f"with the cache off the server took {share:.1%} of the input from it{advice}",
        value=share,
        limit=MOST_WHEN_OFF,
        unit="ratio",
    )


def _empty(seen: Seen) -> Finding:
    """The first request with each prefix cannot find it in an empty cache."""
    records = with_zeros(seen.records)
    if not _told(records):
        return _untold("cold")
    first = _first_of_each_prefix(records)
    hits = int((records.cached_tokens[first] * 2 > records.shared_prefix_tokens[first]).sum())
    share = hits / len(first) if len(first) else 0.0
    ok = share <= MOST_FIRST_HITS
    advice = "" if ok else ": it was not empty; check the reset call or the restart"
    return Finding(
        "cache_cold",
        ok=ok,
        voids=True,
        message=f"{hits} of {len(first)} prefixes were in the cache before their first request{advice}",
        value=share,
        limit=MOST_FIRST_HITS,
        unit="ratio",
    )


def _filled(seen: Seen) -> Finding:
    share = _cached_share(seen)
    if share is None:
        return _untold("warm")
    ok = share > 0
    advice = "" if ok else ": the cache is not on, or evicts what it holds before it is used"
    return Finding(
        "cache_warm",
        ok=ok,
        voids=True,
        message=f"with the cache filled the server took {share:.1%} of the input from it{advice}",
        value=share,
        unit="ratio",
    )


def _untold(state: str) -> Finding:
    message = f"cache {state}: the server does not say what it takes from its cache; its state is as declared"
    return Finding(f"cache_{state}", ok=True, voids=False, message=message)


def _cached_share(seen: Seen) -> float | None:
    """The share of the input that was cached: from the replies, else from the engine's own counters."""
    records = with_zeros(seen.records)
    if _told(records):
        counted = records.ok & (records.cached_tokens != MISSING) & (records.input_tokens > 0)
        total = int(records.input_tokens[counted].sum())
        return int(records.cached_tokens[counted].sum()) / total if total else None
    engine = seen.observation.engine
    if engine is None:
        return None
    asked, hit = engine.grown("prefix_queries_tokens"), engine.grown("prefix_hits_tokens")
    if asked is None or hit is None:
        return None
    return hit / asked if asked > 0 else 0.0


def _told(records: Records) -> bool:
    return bool(np.any(records.cached_tokens[records.ok] != MISSING))


def _first_of_each_prefix(records: Records) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    order = np.argsort(records.submitted_ns, kind="stable")
    usable = order[(records.ok & (records.cached_tokens != MISSING) & (records.prefix_id != MISSING))[order]]
    _, places = np.unique(records.prefix_id[usable], return_index=True)
    first: np.ndarray[tuple[int], np.dtype[np.int64]] = usable[places]
    return first


def cache_table(by_state: Mapping[str, Seen]) -> Table:
    """Table 10, one row per configuration that was run."""
    columns = ("Configuration", "Requests", "TTFT P50", "TTFT P95", "TTFT P99", "Throughput")
    rows = tuple(
        (
            _NAMES[state],
            f"{seen.level.n_ok}",
            *(cell(seen.level.metrics[f"ttft.{q}"], interval=True) for q in ("p50", "p95", "p99")),
            cell(seen.level.metrics["output_token_throughput"]),
        )
        for state, seen in by_state.items()
    )
    return Table("prefix_cache", "Cache Effectiveness", columns, rows)


def effect_table(metrics: Mapping[str, Estimate], cold: bool) -> Table:
    """What the cache brought: reductions, hit rates, throughput, with their intervals."""
    rows = [
        (title, cell(metrics[name], interval=True), *((_cold_cell(metrics, name),) if cold else ()))
        for title, name in (
            ("TTFT reduction P50", "ttft_reduction.p50"),
            ("TTFT reduction P95", "ttft_reduction.p95"),
            ("TTFT reduction P99", "ttft_reduction.p99"),
            ("Cache hit rate (shared prefixes)", "cache_hit_rate"),
            ("Cached share of all input tokens", "cached_input_share"),
            ("Throughput improvement", "throughput_improvement"),
        )
    ]
    columns = ("Metric", "Warm", *(("Cold",) if cold else ()))
    return Table("prefix_cache_effect", "Effect of the Cache", columns, tuple(rows))


def _cold_cell(metrics: Mapping[str, Estimate], name: str) -> str:
    family, dot, statistic = name.partition(".")
    return cell(metrics.get(f"{family}[cold]{dot}{statistic}"), interval=True)


procedure = framed(HEADING, measure, warm=False)


def bounds(parameters: Parameters, setting: Setting) -> list[Bounds]:
    info = setting.variants.get(parameters.enabled)
    fresh = info is not None and info.can_be_fresh
    disabled, cold, warm = plans(parameters, setting)
    populate = populating(parameters, setting)

    def warmed(variant: str, *, anew: bool) -> list[Bounds]:
        return warm_up_bounds(setting, workload=SYNTHETIC_UNIFORM, variant=variant, fresh=anew)

    found = [*warmed(parameters.disabled, anew=False), plan_bounds(disabled)]
    if fresh:
        found += [*warmed(parameters.enabled, anew=True), replace(plan_bounds(cold), fresh=True)]
    found += warmed(parameters.enabled, anew=fresh)
    found += [plan_bounds(populate)] if populate is not None else []
    return [*found, replace(plan_bounds(warm), fresh=True)]


TEST = TestDefinition(
    HEADING.test, HEADING.section, HEADING.title, Parameters, procedure, plans, bounds, needs, warmups
)
