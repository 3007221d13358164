"""Prefix Cache Effectiveness, section 5.7 of the draft.

Objective: the benefit of prefix caching when requests share prefixes, as TTFT reduction through hits.
Procedure: the identical sequence of requests three times (AMB-18), each after a warm-up that leaves the
measured prefixes alone: with the cache switched off; switched on and empty (Cold); switched on and filled
with the shared prefixes (Warm). The states are SUT variants. The cold run needs a restart or a flush, else it
is left out with a note. Prompts are the same in all three, so the requests are compared one with one, from
the first on: those that begin the run are the ones that an empty cache misses.

Of a workload of sessions the identical sessions are sent, and the figures are given by the number of the turn
as well: the first turns find what sessions share, the later ones their own history. The draft knows requests
alone, so clauses about these are not met then. The first turn finds at most the
beginning that sessions share; each later one finds its own history, as far as the cache still has it. What
could be cached is known before anything is sent, in closed form: the tokens that an earlier prompt began
with. What was cached is what the server says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np

from pytest_llmbench.methodology.measuring.frame import Heading, Report, framed, result_of
from pytest_llmbench.methodology.measuring.levels import (
    Seen,
    by_session,
    level_of,
    live_answers,
    no_history,
    qualified,
    session_load,
    too_long,
    turn_classes,
)
from pytest_llmbench.methodology.measuring.load_plans import LoadPart, part_of
from pytest_llmbench.methodology.measuring.variants import missing_variants, same_system, variant_facts
from pytest_llmbench.methodology.measuring.warmup import joined, warm_up
from pytest_llmbench.methodology.parameters import LoadParameters, limit, parameter
from pytest_llmbench.methodology.procedure import (
    ByScale,
    Procedure,
    Setting,
    TestDefinition,
    by_load,
)
from pytest_llmbench.methodology.remeasured import attempted, same_requests_again
from pytest_llmbench.metrics.differences import (
    Unexplained,
    change,
    in_both,
    paired_changes,
    pairs,
    unlike_machines,
    unlike_prefill,
)
from pytest_llmbench.metrics.kv_cache import cache_hit_rate, cached_input_share, ttft_reductions, with_zeros
from pytest_llmbench.metrics.server_side import cached_input, tells_cached
from pytest_llmbench.metrics.session_figures import (
    cached_share,
    hit_rate,
    latencies,
    turn_latencies,
    turn_shares,
)
from pytest_llmbench.model.draft import MOST_FIRST_HITS, MOST_WHEN_OFF
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.facts import LoadFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount, Figure, Row, cells
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import USUAL, TurnClass, Workload
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.workloads.adapted import Prefixes, SharedPrefix
from pytest_llmbench.workloads.catalogue import workload as find_workload
from pytest_llmbench.workloads.lengths import Uniform
from pytest_llmbench.workloads.sessions import turns_of
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

_TURNS_SHOWN = 12
"""Number of turns that the table shows one by one."""
_COLUMNS = (
    "Turn", "Turns", "Input Tokens, Mean", "Could be Cached", "Cached", "Hit Rate",
    "TTFT P50, Cache Disabled", "TTFT P50, Cache Enabled", "TTFT Reduction P50",
)  # fmt: skip


def effect_on_sessions(
    without: Seen, with_cache: Seen, classes: Sequence[TurnClass], seed: int
) -> dict[str, Estimate]:
    """``ttft_reduction`` and ``turn_ttft_reduction[c]`` of the turns that ended well inside the window of
    both, ``cache_hit_rate`` and ``cached_input_share`` of all turns. The unit is the session."""
    before, after = in_both(without.inside, with_cache.inside)
    told = _told(with_cache)
    return ttft_reductions(before, after, classes) | {
        "cache_hit_rate": hit_rate([told], seed=seed),
        "cached_input_share": cached_share([told], seed=seed),
    }


def figures_by_turn(with_cache: Seen, classes: Sequence[TurnClass], seed: int) -> dict[str, Estimate]:
    """Latencies of the turns inside the window, and cache shares of all turns that ended well."""
    return turn_latencies([with_cache.inside], classes) | turn_shares([_told(with_cache)], classes, seed=seed)


def _told(seen: Seen) -> Records:
    records = with_zeros(seen.records)
    return records.select(records.ok)


def cache_by_turn_table(without: Seen, with_cache: Seen, seed: int) -> Table:
    """A table of first turns and later ones with intervals, then of the later ones one by one."""
    highest = int(with_cache.records.turn.max(initial=0))
    single = [TurnClass(number) for number in range(2, min(highest, _TURNS_SHOWN) + 1)]
    classes = (*USUAL, *(single if len(single) > 1 else ()))
    before, after = in_both(without.inside, with_cache.inside)
    told = _told(with_cache)
    shares = turn_shares([told], classes, seed=seed)
    reductions = ttft_reductions(before, after, classes)
    rows: list[Row] = []
    for each in classes:
        own = told.select(each.holds(told.turn))
        part: Literal["value", "both"] = "both" if each in USUAL else "value"
        shared = (f"turn_cached_share[{each}]", f"turn_cache_hit_rate[{each}]")
        rows.append(
            (
                str(each),
                len(own),
                Amount(float(np.mean(own.requested_input_tokens)), "count") if len(own) else "",
                *cells(shares, (f"turn_cacheable_share[{each}]",)),
                *cells(shares, shared, part),
                *(_median(arm, each) for arm in (before, after)),
                *cells(reductions, (f"turn_ttft_reduction[{each}].p50",), part),
            )
        )
    return Table("prefix_cache_by_turn", "Cache Effectiveness by Turn", _COLUMNS, tuple(rows))


def _median(arm: Records, turns: TurnClass) -> Figure:
    name = f"turn_ttft[{turns}].p50"
    return Figure(name, latencies([arm], "ttft", turns)[name])


def cache_by_turn_plots(without: Seen, with_cache: Seen) -> tuple[Plot, ...]:
    """Plots of TTFT by turn with the cache off and on, and of cached beside cacheable input."""
    before, after = in_both(without.inside, with_cache.inside)
    medians = {"cache off": _medians(before), "cache on": _medians(after)}
    told = _told(with_cache)
    counted = bool((told.input_tokens > 0).all())
    named = (("could be cached", "shared_prefix_tokens"), ("cached", "cached_tokens"))
    shares = {
        name: _shares(told, column)
        for name, column in named
        if counted and not bool((getattr(told, column) < 0).any())
    }
    x = "turn of the session"
    found = (
        Plot("prefix_cache_ttft_by_turn", "TTFT by turn", x, "TTFT P50 (ms)", medians),
        Plot("prefix_cache_share_by_turn", "Cached share by turn", x, "share of the input (%)", shares),
    )
    return tuple(plot for plot in found if any(line[0] for line in plot.series.values()))


def _medians(arm: Records) -> tuple[tuple[float, ...], tuple[float, ...]]:
    waits = (arm.first_content_ns - arm.submitted_ns) / 1e6
    return _by_number(arm, (float(np.median(waits[arm.turn == number])) for number in np.unique(arm.turn)))


def _shares(told: Records, column: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    counted = getattr(told, column)
    turns = [told.turn == number for number in np.unique(told.turn)]
    return _by_number(told, (100 * float(counted[own].sum() / told.input_tokens[own].sum()) for own in turns))


def _by_number(records: Records, values: Iterable[float]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    return tuple(map(float, np.unique(records.turn))), tuple(values)


_NAMES = {"disabled": "Cache Disabled", "cold": "Cache (Cold)", "warm": "Cache (Warm)"}


HEADING = Heading("prefix_cache", "5.7", "Prefix Cache Effectiveness")


DISABLED, COLD, WARM = "disabled", "cold", "warm"


PERCENTILES = ("p50", "p95", "p99")


REQUESTS = ByScale(quick=60, standard=500, full=2_000)


SESSIONS = ByScale(quick=10, standard=200, full=500)


STAND_IN = SharedPrefix("shared-contexts", SYNTHETIC_UNIFORM, Uniform(512, 1024), 0.8, 10)
"""Default workload: the sharing of Code Completion (80 % begin with one of ten contexts of 512 to 1024
tokens) with random content. The recommended one needs a data set, and a stand-in may not bear its name."""


@dataclass(frozen=True, kw_only=True)
class Parameters(LoadParameters):
    """The identical requests with the prefix cache off, on and empty, on and filled: three SUT variants.
    With a workload of sessions, the identical sessions, with figures by turn.

    Limits are floors on the filled one, shares between 0 and 1.
    """

    takes_adapters = False
    for_sessions = ("sessions", "total_sessions", "min_turn_hit_rate", "min_turn_ttft_reduction")
    for_requests: ClassVar[Mapping[str, str]] = {
        "concurrency": "give sessions for a workload of sessions",
        "requests": "give total_sessions for a workload of sessions",
    }

    workload: str | Workload = parameter("workload", STAND_IN)
    disabled: str = parameter("name", "cache_disabled", doc="SUT variant with the prefix cache switched off.")
    enabled: str = parameter("name", "cache_enabled", doc="SUT variant with the prefix cache switched on.")
    min_ttft_reduction: float | None = limit(
        "ttft_reduction.p50", "share", doc="least reduction of TTFT P50."
    )
    min_ttft_reduction_p95: float | None = limit("ttft_reduction.p95", "share")
    min_ttft_reduction_p99: float | None = limit("ttft_reduction.p99", "share")
    min_hit_rate: float | None = limit("cache_hit_rate", "share")
    min_throughput_improvement: float | None = limit(
        "throughput_improvement", doc="least improvement of throughput; closed loop only."
    )
    sessions: int | None = parameter(
        "count",
        doc="with sessions: sessions at once (default 8); leave it out with ``rate``, which is then the "
        "rate of session starts.",
    )
    total_sessions: int | None = parameter(
        "count", doc="with sessions: measured sessions per run.", scale=SESSIONS
    )
    min_turn_hit_rate: Mapping[int | str, float] | None = limit(
        "turn_cache_hit_rate[{}]",
        "share_by_turn",
        doc='with sessions: least cached share of cacheable tokens, by turn number: ``{"2+": 0.9}``.',
    )
    min_turn_ttft_reduction: Mapping[int | str, float] | None = limit(
        "turn_ttft_reduction[{}].p50",
        "share_by_turn",
        doc="with sessions: least reduction of TTFT P50, by turn number.",
    )

    @property
    def load(self) -> Load:
        if not self.has_sessions:
            return super().load
        return session_load(self.rate, self.sessions, self.arrival, self.burstiness)

    @property
    def classes(self) -> tuple[TurnClass, ...]:
        """The classes of turns that get metrics."""
        asked = (*(self.min_turn_hit_rate or ()), *(self.min_turn_ttft_reduction or ()))
        return turn_classes(asked, self.slo)

    def contradictions(self) -> list[str]:
        found = []
        if not self.has_sessions:
            found = super().contradictions()
        elif self.arrival == "trace":
            found.append("arrival='trace' does not apply to sessions here: give rate or sessions")
        elif self.concurrency is None:
            found = super().contradictions()
        if self.rate is not None and self.sessions is not None:
            found.append("rate (open loop) and sessions (closed loop) exclude each other: give one")
        found += live_answers(find_workload(self.workload), "the runs with the cache off and on")
        if self.disabled == self.enabled:
            found.append(f"disabled and enabled name the same variant {self.enabled!r}")
        return found


@dataclass
class _Runs:
    """The runs, by the state of the cache: what is sent, what was seen, and its figures. Of single
    requests."""

    parameters: Parameters
    setting: Setting
    by_state: dict[str, Seen] = field(default_factory=dict)
    warmups: list[WarmupReport] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    disturbed: list[Seen] = field(default_factory=list)
    """Runs that the generator spoiled, so that they were repeated."""

    @property
    def amount(self) -> dict[str, int]:
        """The size of each run, as its author asks for it."""
        load, asked, scale = self.parameters.load, self.parameters.requests, self.setting.scale
        if not load.is_trace:
            return {"requests": REQUESTS.count(scale, asked)}
        most = asked or len(load.offsets_ns)
        return {"requests": min(most, REQUESTS.count("quick")) if scale == "quick" else most}

    @property
    def requests(self) -> int:
        """Number of requests in each run; of sessions, that of all their turns."""
        return self.amount["requests"]

    @property
    def part(self) -> LoadPart:
        """The part of the requests; every state of the cache gets the same ones."""
        load, setting = self.parameters.load, self.setting
        trace = load.is_trace and not load.of_sessions
        asked = {
            "load": "trace" if trace else load.terms(),
            **self.amount,
            "variants": [self.parameters.disabled, self.parameters.enabled],
        }
        return part_of(setting, setting.workload, "prefix cache", **asked)

    def plan(self, state: str) -> LoadPlan:
        variant = self.parameters.disabled if state == DISABLED else self.parameters.enabled
        load = self.parameters.load
        return self.part.plan(self.setting, f"cache {state}", load, self.requests, variant=variant)

    @cached_property
    def populating(self) -> LoadPlan | None:
        """The load that fills the cache with the shared prefixes; None where the requests share none."""
        prefixes, part = Prefixes(self.setting.workload, self.requests), self.part
        known = prefixes.count(part.seed)
        if not known:
            return None
        more = {"workload": prefixes, "phase": Phase.WARMUP, "ignore_eos": False}
        variant = self.parameters.enabled
        return part.plan(self.setting, "populate", ClosedLoop(1), known, variant=variant, **more)

    @property
    def has_cold_run(self) -> bool:
        return True

    def measured(self, state: str, prepare: Callable[[], Procedure[None]]) -> Procedure[None]:
        """Measure a state of the cache. ``prepare`` brings the cache into it, now and before the same
        requests are sent again."""
        yield from prepare()
        # Without a warm-up there was no plan to carry the wish for a fresh state.
        fresh = state == COLD and not self.setting.warmup.wanted
        plan = self.plan(state).with_(fresh_state=fresh)
        again = same_requests_again(self.setting, plan.variant)
        see = partial(self.seen, state)
        attempts = yield from attempted(lambda: plan, see, again, needed=True, prepare=prepare)
        self.disturbed += attempts.runs[:-1]
        self.notes += attempts.notes
        self.by_state[state] = attempts.level

    def seen(self, state: str, run: Observation) -> Seen:
        return level_of(run, seed=self.setting.seed, label=f"cache {state}", role=state)

    def warmed_up(self, variant: str, *, fresh: bool) -> Procedure[None]:
        """Warm up with prompts of other content, so that nothing measured gets into the cache (section
        5.7.3)."""
        report = yield from warm_up(
            self.setting, variant=variant, workload=SYNTHETIC_UNIFORM, fresh_state=fresh
        )
        self.warmups.append(report)

    def filled(self, *, fresh: bool) -> Procedure[None]:
        """Bring the cache into the state of the warm run: every shared prefix is sent once. Whole prompts
        that an earlier run left are not part of it: Warm is about shared prefixes only."""
        yield from self.warmed_up(self.parameters.enabled, fresh=fresh)
        if (plan := self.populating) is not None:
            yield plan

    def metrics(self) -> dict[str, Estimate]:
        metrics = dict(self.by_state[WARM].level.metrics)
        for state, seen in self.by_state.items():
            metrics |= qualified(seen.level.metrics, state)
        metrics |= self.effect(WARM, self.parameters.classes)
        if COLD in self.by_state:
            metrics |= qualified(self.effect(COLD, ()), COLD)
        return metrics

    def effect(self, state: str, classes: Sequence[TurnClass]) -> dict[str, Estimate]:
        """The effect of the cache in one run: reduction per percentile, hit rates and throughput gain against
        the baseline."""
        baseline, cached = self.by_state[DISABLED], self.by_state[state]
        rate, method = "output_token_throughput", "an open loop below saturation offers the same to both"
        gain = Estimate.undefined(unit="ratio", method=method, reason=Reason.NOT_MEASURABLE)
        if cached.observation.plan.load.in_flight is not None:
            gain = change(baseline.level.metrics[rate], cached.level.metrics[rate], "relative_change")
        return {"throughput_improvement": gain} | self.cached(baseline, cached, classes)

    def cached(self, baseline: Seen, cached: Seen, _: Sequence[TurnClass]) -> dict[str, Estimate]:
        arms, told = pairs("ttft", [baseline.inside], [cached.inside]), [with_zeros(cached.records)]
        return paired_changes("ttft_reduction", arms, "reduction", statistics=PERCENTILES) | {
            "cache_hit_rate": cache_hit_rate(told, seed=self.setting.seed),
            "cached_input_share": cached_input_share(told, seed=self.setting.seed),
        }

    def report(self) -> Report:
        metrics, populated = self.metrics(), self.populating
        prefixes = 0 if populated is None else populated.requests
        return Report(
            levels=[*self.disturbed, *self.by_state.values()],
            metrics=metrics,
            tables=(cache_table(self.by_state), effect_table(metrics, COLD in self.by_state)),
            notes=[*self.notes, Note.of("cache_filled", prefixes=prefixes)],
            load={LoadFact.MODEL: self.parameters.load.model},
            facts=variant_facts(self.setting, self.parameters.enabled, prefixes_populated=prefixes > 0),
            findings=(*state_findings(self.by_state), *same_system(unexplained(self.by_state))),
        )


class _SessionRuns(_Runs):
    """Runs of sessions, with figures by turn."""

    @property
    def amount(self) -> dict[str, int]:
        return {"sessions": SESSIONS.count(self.setting.scale, self.parameters.total_sessions)}

    @property
    def requests(self) -> int:
        return turns_of(self.setting.workload, self.amount["sessions"], self.part.seed)

    @property
    def has_cold_run(self) -> bool:
        """Sessions that share no beginning find an empty cache in the warm run too: one run is enough."""
        return self.populating is not None

    def seen(self, state: str, run: Observation) -> Seen:
        return by_session(super().seen(state, run))

    def metrics(self) -> dict[str, Estimate]:
        warm, classes = self.by_state[WARM], self.parameters.classes
        return super().metrics() | figures_by_turn(warm, classes, self.setting.seed)

    def cached(self, baseline: Seen, cached: Seen, classes: Sequence[TurnClass]) -> dict[str, Estimate]:
        return effect_on_sessions(baseline, cached, classes, self.setting.seed)

    def report(self) -> Report:
        off, on, found = self.by_state[DISABLED], self.by_state[WARM], super().report()
        return replace(
            found,
            tables=(*found.tables, cache_by_turn_table(off, on, self.setting.seed)),
            plots=cache_by_turn_plots(off, on),
            notes=(*found.notes, Note.of("prefix_cache_of_sessions")),
        )


_runs = by_load(_Runs, _SessionRuns)


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    runs = _runs(parameters, setting)
    fresh = setting.variants[parameters.enabled].can_be_fresh
    yield from runs.measured(DISABLED, partial(runs.warmed_up, parameters.disabled, fresh=False))
    if not fresh:
        runs.notes.append(Note.of("no_cold_run", variant=repr(parameters.enabled)))
    elif not runs.has_cold_run:
        runs.notes.append(Note.of("no_cold_run.sessions"))
    else:
        yield from runs.measured(COLD, partial(runs.warmed_up, parameters.enabled, fresh=True))
    yield from runs.measured(WARM, partial(runs.filled, fresh=fresh))
    warmup = joined(runs.warmups, "before each state of the cache")
    return result_of(HEADING, parameters, setting, warmup, runs.report())


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    return tuple(map(_runs(parameters, setting).plan, (DISABLED, COLD, WARM)))


def _missing(parameters: Parameters, setting: Setting) -> list[str]:
    states = {parameters.disabled: "the prefix cache off", parameters.enabled: "the prefix cache on"}
    return missing_variants(setting, states)


def _needs(parameters: Parameters, setting: Setting) -> list[str]:
    found = _missing(parameters, setting)
    fraction: Any = setting.workload.specification().get("prefix_sharing", {}).get("fraction")
    if fraction == 0:
        found.append(
            f"workload {setting.workload.name!r} shares no prefixes, so there is nothing to cache: "
            "use code-completion, conversation or a SharedPrefix workload"
        )
    return found


def _session_needs(parameters: Parameters, setting: Setting) -> list[str]:
    sent = plans(parameters, setting)[:1]
    return [*_missing(parameters, setting), *too_long(setting, sent), *no_history(sent)]


def warmups(parameters: Parameters, setting: Setting) -> tuple[Workload, ...]:
    """The workload of each warm-up, one for each state; there is no cold state if the cache cannot be
    emptied."""
    info = setting.variants.get(parameters.enabled)
    cold = info is not None and info.can_be_fresh and _runs(parameters, setting).has_cold_run
    return (SYNTHETIC_UNIFORM,) * (3 if cold else 2)


def state_findings(by_state: Mapping[str, Seen]) -> tuple[Finding, ...]:
    """A finding for each run. A server that reports nothing about its cache gives a warning and does not void
    the run."""
    return tuple(
        _empty(with_zeros(seen.records)) if state == COLD else _off_or_filled(state, seen)
        for state, seen in by_state.items()
    )


def _off_or_filled(state: str, seen: Seen) -> Finding:
    found = cached_input([seen.observation])
    if state == DISABLED:
        if found is None:
            return Finding.of("cache_disabled.untold", ok=True)
        return Finding.of("cache_disabled", found.share <= MOST_WHEN_OFF, found.share, MOST_WHEN_OFF)
    if found is None:
        return Finding.of("cache_warm.untold", ok=True)
    return Finding.of("cache_warm", found.share > 0, found.share)


def _empty(records: Records) -> Finding:
    """The finding on the empty cache: the first request with each prefix must not find it there."""
    if not tells_cached(records):
        return Finding.of("cache_cold.untold", ok=True)
    order = np.argsort(records.submitted_ns, kind="stable")
    usable = order[(records.ok & (records.cached_tokens != MISSING) & (records.prefix_id != MISSING))[order]]
    first = usable[np.unique(records.prefix_id[usable], return_index=True)[1]]
    hits = int((records.cached_tokens[first] * 2 > records.shared_prefix_tokens[first]).sum())
    share, prefixes = hits / len(first) if len(first) else 0.0, len(first)
    ok = share <= MOST_FIRST_HITS
    return Finding.of("cache_cold", ok, share, MOST_FIRST_HITS, hits=hits, prefixes=prefixes)


def unexplained(by_state: Mapping[str, Seen]) -> list[Unexplained | None]:
    """Differences of the runs with the cache from that without, that no cache explains."""
    off = by_state[DISABLED].records
    return [
        differ(f"the {state} cache", off, seen.records)
        for state, seen in by_state.items()
        if state != DISABLED
        for differ in (unlike_machines, unlike_prefill)
    ]


def cache_table(by_state: Mapping[str, Seen]) -> Table:
    """Table 10, a row for each configuration that was run."""
    columns = ("Configuration", "Requests", "TTFT P50", "TTFT P95", "TTFT P99", "Throughput")
    rows: tuple[Row, ...] = tuple(
        (
            _NAMES[state],
            seen.level.n_ok,
            *cells(seen.level.metrics, ("ttft.p50", "ttft.p95", "ttft.p99"), "both"),
            *cells(seen.level.metrics, ("output_token_throughput",)),
        )
        for state, seen in by_state.items()
    )
    return Table("prefix_cache", "Cache Effectiveness", columns, rows)


def effect_table(metrics: Mapping[str, Estimate], cold: bool) -> Table:
    """A table of the effect of the cache: reductions, hit rates, throughput, with their intervals."""
    rows: list[Row] = [
        (title, *cells(metrics, (name, _of_cold(name)) if cold else (name,), "both"))
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


def _of_cold(name: str) -> str:
    family, dot, statistic = name.partition(".")
    return f"{family}[cold]{dot}{statistic}"


TEST = TestDefinition(
    *HEADING,
    Parameters,
    framed(HEADING, measure, warm=False),
    plans,
    by_load(_needs, _session_needs),
    warmups,
)
