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
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

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
from pytest_llmbench.methodology.parameters import LoadParameters, parameter
from pytest_llmbench.methodology.procedure import ByScale, Procedure, Setting, TestDefinition
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
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import USUAL, OfSessions, TurnClass, Workload
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
    takes_sessions = True

    workload: str | Workload = parameter("workload", STAND_IN)
    disabled: str = parameter("name", "cache_disabled", doc="SUT variant with the prefix cache switched off.")
    enabled: str = parameter("name", "cache_enabled", doc="SUT variant with the prefix cache switched on.")
    min_ttft_reduction: float | None = parameter("share", doc="least reduction of TTFT P50.")
    min_ttft_reduction_p95: float | None = parameter("share")
    min_ttft_reduction_p99: float | None = parameter("share")
    min_hit_rate: float | None = parameter("share")
    min_throughput_improvement: float | None = parameter(
        "positive", doc="least improvement of throughput; closed loop only."
    )
    sessions: int | None = parameter(
        "count",
        doc="with sessions: sessions at once (default 8); leave it out with ``rate``, which is then the "
        "rate of session starts.",
    )
    total_sessions: int | None = parameter(
        "count", doc="with sessions: measured sessions per run.", scale=SESSIONS
    )
    min_turn_hit_rate: Mapping[int | str, float] | None = parameter(
        "share_by_turn",
        doc='with sessions: least cached share of cacheable tokens, by turn number: ``{"2+": 0.9}``.',
    )
    min_turn_ttft_reduction: Mapping[int | str, float] | None = parameter(
        "share_by_turn", doc="with sessions: least reduction of TTFT P50, by turn number."
    )

    @property
    def load(self) -> Load:
        if not isinstance(find_workload(self.workload), OfSessions):
            return super().load
        return session_load(self.rate, self.sessions, self.arrival, self.burstiness)

    @property
    def classes(self) -> tuple[TurnClass, ...]:
        """The classes of turns that get metrics."""
        asked = (*(self.min_turn_hit_rate or ()), *(self.min_turn_ttft_reduction or ()))
        return turn_classes(asked, self.slo)

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
        by_turn = (
            ("turn_cache_hit_rate", "", self.min_turn_hit_rate),
            ("turn_ttft_reduction", ".p50", self.min_turn_ttft_reduction),
        )
        own += [
            Objective(f"{family}[{TurnClass.parse(key)}]{statistic}", ">=", floor, "ratio")
            for family, statistic, floors_by_turn in by_turn
            for key, floor in (floors_by_turn or {}).items()
        ]
        return (*own, *self.slo)

    def contradictions(self) -> list[str]:
        of_sessions = isinstance(find_workload(self.workload), OfSessions)
        found = self._of_sessions() if of_sessions else self._of_requests()
        if self.disabled == self.enabled:
            found.append(f"disabled and enabled name the same variant {self.enabled!r}")
        return found

    def _of_requests(self) -> list[str]:
        names = ("sessions", "total_sessions", "min_turn_hit_rate", "min_turn_ttft_reduction")
        return super().contradictions() + [
            f"{name} applies to sessions: name a workload of sessions, for example 'session:chat'"
            for name in names
            if getattr(self, name) is not None
        ]

    def _of_sessions(self) -> list[str]:
        """Mistakes: parameters that do not apply to a workload of sessions."""
        found = [
            f"{name} applies to requests: give {other} for a workload of sessions"
            for name, other in (("concurrency", "sessions"), ("requests", "total_sessions"))
            if getattr(self, name) is not None
        ]
        if self.arrival == "trace":
            found.append("arrival='trace' does not apply to sessions here: give rate or sessions")
        elif not found:
            found = super().contradictions()
        if self.rate is not None and self.sessions is not None:
            found.append("rate (open loop) and sessions (closed loop) exclude each other: give one")
        return found + live_answers(find_workload(self.workload), "the runs with the cache off and on")


@dataclass
class _Runs:
    """The runs so far, by the state of the cache."""

    parameters: Parameters
    setting: Setting
    by_state: dict[str, Seen] = field(default_factory=dict)
    warmups: list[WarmupReport] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    disturbed: list[Seen] = field(default_factory=list)
    """Runs that the generator spoiled, so that they were repeated."""
    populated: int = 0
    """Number of shared prefixes with which the cache was filled before the warm run."""

    def measured(self, state: str, variant: str, prepare: Callable[[], Procedure[None]]) -> Procedure[None]:
        """Measure a state of the cache. ``prepare`` brings the cache into it, now and before the same
        requests are sent again."""
        yield from prepare()
        # Without a warm-up there was no plan to carry the wish for a fresh state.
        fresh = state == COLD and not self.setting.warmup.wanted
        plan = _plan(self.parameters, self.setting, state, variant).with_(fresh_state=fresh)
        see = partial(_seen, self.setting, state)
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
        """Bring the cache into the state of the warm run. Whole prompts that an earlier run left are not part
        of it: Warm is about shared prefixes only."""
        yield from self.warmed_up(self.parameters.enabled, fresh=fresh)
        self.populated = yield from _populate(self.parameters, self.setting)


def _seen(setting: Setting, state: str, run: Observation) -> Seen:
    seen = level_of(run, seed=setting.seed, label=f"cache {state}", role=state)
    return by_session(seen) if isinstance(setting.workload, OfSessions) else seen


def measure(parameters: Parameters, setting: Setting, _: WarmupReport) -> Procedure[TestResult]:
    runs = _Runs(parameters, setting)
    fresh = setting.variants[parameters.enabled].can_be_fresh
    off = partial(runs.warmed_up, parameters.disabled, fresh=False)
    yield from runs.measured(DISABLED, parameters.disabled, off)
    if not fresh:
        runs.notes.append(Note.of("no_cold_run", variant=repr(parameters.enabled)))
    elif not _has_cold_run(parameters, setting):
        runs.notes.append(Note.of("no_cold_run.sessions"))
    else:
        empty = partial(runs.warmed_up, parameters.enabled, fresh=True)
        yield from runs.measured(COLD, parameters.enabled, empty)
    yield from runs.measured(WARM, parameters.enabled, partial(runs.filled, fresh=fresh))
    return _result(runs)


def _has_cold_run(parameters: Parameters, setting: Setting) -> bool:
    """Whether there is a cold run. Sessions that share no beginning find an empty cache in the warm run too:
    one run is enough."""
    return not isinstance(setting.workload, OfSessions) or populating(parameters, setting) is not None


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
    more = {"workload": prefixes, "phase": Phase.WARMUP, "ignore_eos": False, "variant": parameters.enabled}
    return part.plan(setting, "populate", ClosedLoop(1), known, **more)


def _part(parameters: Parameters, setting: Setting) -> LoadPart:
    """The part of the requests; every state of the cache gets the same ones."""
    load = parameters.load
    trace = load.is_trace and not load.of_sessions
    if isinstance(setting.workload, OfSessions):
        amount = {"sessions": session_count(parameters, setting)}
    else:
        amount = {"requests": request_count(parameters, setting)}
    asked = {
        "load": "trace" if trace else load.terms(),
        **amount,
        "variants": [parameters.disabled, parameters.enabled],
    }
    return part_of(setting, setting.workload, "prefix cache", **asked)


def _plan(parameters: Parameters, setting: Setting, state: str, variant: str) -> LoadPlan:
    count, part = request_count(parameters, setting), _part(parameters, setting)
    return part.plan(setting, f"cache {state}", parameters.load, count, variant=variant)


def session_count(parameters: Parameters, setting: Setting) -> int:
    return SESSIONS.count(setting.scale, parameters.total_sessions)


def request_count(parameters: Parameters, setting: Setting) -> int:
    """Number of requests in each run; for sessions that of all their turns."""
    workload, load, asked = setting.workload, parameters.load, parameters.requests
    if isinstance(workload, OfSessions):
        return turns_of(workload, session_count(parameters, setting), _part(parameters, setting).seed)
    if load.is_trace:
        most = asked or len(load.offsets_ns)
        return min(most, REQUESTS.count("quick")) if setting.scale == "quick" else most
    return REQUESTS.count(setting.scale, asked)


def _result(runs: _Runs) -> TestResult:
    parameters, setting, populated = runs.parameters, runs.setting, runs.populated
    levels = [*runs.disturbed, *runs.by_state.values()]
    metrics = _metrics(runs)
    tables = [cache_table(runs.by_state), effect_table(metrics, COLD in runs.by_state)]
    notes = [*runs.notes, Note.of("cache_filled", prefixes=populated)]
    of_sessions = isinstance(setting.workload, OfSessions)
    off, on = runs.by_state[DISABLED], runs.by_state[WARM]
    if of_sessions:
        tables.append(cache_by_turn_table(off, on, setting.seed))
        notes.append(Note.of("prefix_cache_of_sessions"))
    report = Report(
        levels=levels,
        metrics=metrics,
        tables=tables,
        plots=cache_by_turn_plots(off, on) if of_sessions else (),
        notes=notes,
        load={LoadFact.MODEL: parameters.load.model},
        facts=variant_facts(setting, parameters.enabled, prefixes_populated=populated > 0),
        findings=(*state_findings(runs.by_state), *same_system(unexplained(runs.by_state))),
    )
    warmup = joined(runs.warmups, "before each state of the cache")
    return result_of(HEADING, parameters, setting, warmup, report)


def _metrics(runs: _Runs) -> dict[str, Estimate]:
    baseline, warm = runs.by_state[DISABLED], runs.by_state[WARM]
    metrics = dict(warm.level.metrics)
    for state, seen in runs.by_state.items():
        metrics |= qualified(seen.level.metrics, state)
    metrics |= _effect(runs, baseline, warm, runs.parameters.classes)
    if COLD in runs.by_state:
        metrics |= qualified(_effect(runs, baseline, runs.by_state[COLD], ()), COLD)
    if isinstance(runs.setting.workload, OfSessions):
        metrics |= figures_by_turn(warm, runs.parameters.classes, runs.setting.seed)
    return metrics


def _effect(runs: _Runs, baseline: Seen, cached: Seen, classes: Sequence[TurnClass]) -> dict[str, Estimate]:
    """The effect of the cache in one run: reduction per percentile, hit rates and throughput gain against the
    baseline."""
    rate, seed = "output_token_throughput", runs.setting.seed
    if cached.observation.plan.load.in_flight is not None:
        gain = change(baseline.level.metrics[rate], cached.level.metrics[rate], "relative_change")
    else:
        method = "an open loop below saturation offers the same to both"
        gain = Estimate.undefined(unit="ratio", method=method, reason=Reason.NOT_MEASURABLE)
    found = {"throughput_improvement": gain}
    if isinstance(runs.setting.workload, OfSessions):
        return found | effect_on_sessions(baseline, cached, classes, seed)
    arms = pairs("ttft", [baseline.inside], [cached.inside])
    told = [with_zeros(cached.records)]
    return (
        found
        | paired_changes("ttft_reduction", arms, "reduction", statistics=PERCENTILES)
        | {
            "cache_hit_rate": cache_hit_rate(told, seed=seed),
            "cached_input_share": cached_input_share(told, seed=seed),
        }
    )


def plans(parameters: Parameters, setting: Setting) -> tuple[LoadPlan, ...]:
    states = ((DISABLED, parameters.disabled), (COLD, parameters.enabled), (WARM, parameters.enabled))
    return tuple(_plan(parameters, setting, state, variant) for state, variant in states)


def needs(parameters: Parameters, setting: Setting) -> list[str]:
    found = missing_variants(
        setting, {parameters.disabled: "the prefix cache off", parameters.enabled: "the prefix cache on"}
    )
    if isinstance(setting.workload, OfSessions):
        sent = plans(parameters, setting)[:1]
        return found + too_long(setting, sent) + no_history(sent)
    fraction: Any = setting.workload.specification().get("prefix_sharing", {}).get("fraction")
    if fraction == 0:
        found.append(
            f"workload {setting.workload.name!r} shares no prefixes, so there is nothing to cache: "
            "use code-completion, conversation or a SharedPrefix workload"
        )
    return found


def warmups(parameters: Parameters, setting: Setting) -> tuple[Workload, ...]:
    """The workload of each warm-up, one for each state; there is no cold state if the cache cannot be
    emptied."""
    info = setting.variants.get(parameters.enabled)
    cold = info is not None and info.can_be_fresh and _has_cold_run(parameters, setting)
    return (SYNTHETIC_UNIFORM,) * (3 if cold else 2)


def state_findings(by_state: Mapping[str, Seen]) -> tuple[Finding, ...]:
    """A finding for each run. A server that reports nothing about its cache gives a warning and does not void
    the run."""
    checks = {"disabled": _off, "cold": _empty, "warm": _filled}
    return tuple(checks[state](seen) for state, seen in by_state.items())


def unexplained(by_state: Mapping[str, Seen]) -> list[Unexplained | None]:
    """Differences of the runs with the cache from that without, that no cache explains."""
    off = by_state[DISABLED].records
    return [
        differ(f"the {state} cache", off, seen.records)
        for state, seen in by_state.items()
        if state != DISABLED
        for differ in (unlike_machines, unlike_prefill)
    ]


def _off(seen: Seen) -> Finding:
    share = _cached_share(seen)
    if share is None:
        return Finding.of("cache_disabled.untold", ok=True)
    return Finding.of("cache_disabled", share <= MOST_WHEN_OFF, share, MOST_WHEN_OFF)


def _empty(seen: Seen) -> Finding:
    """The finding on the empty cache: the first request with each prefix must not find it there."""
    records = with_zeros(seen.records)
    if not tells_cached(records):
        return Finding.of("cache_cold.untold", ok=True)
    first = _first_of_each_prefix(records)
    hits = int((records.cached_tokens[first] * 2 > records.shared_prefix_tokens[first]).sum())
    share = hits / len(first) if len(first) else 0.0
    ok, prefixes = share <= MOST_FIRST_HITS, len(first)
    return Finding.of("cache_cold", ok, share, MOST_FIRST_HITS, hits=hits, prefixes=prefixes)


def _filled(seen: Seen) -> Finding:
    share = _cached_share(seen)
    if share is None:
        return Finding.of("cache_warm.untold", ok=True)
    return Finding.of("cache_warm", share > 0, share)


def _cached_share(seen: Seen) -> float | None:
    """The share of the input that was cached; None where nothing tells."""
    found = cached_input([seen.observation])
    return None if found is None else found.share


def _first_of_each_prefix(records: Records) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    order = np.argsort(records.submitted_ns, kind="stable")
    usable = order[(records.ok & (records.cached_tokens != MISSING) & (records.prefix_id != MISSING))[order]]
    _, places = np.unique(records.prefix_id[usable], return_index=True)
    first: np.ndarray[tuple[int], np.dtype[np.int64]] = usable[places]
    return first


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


procedure = framed(HEADING, measure, warm=False)


TEST = TestDefinition(
    HEADING.test, HEADING.section, HEADING.title, Parameters, procedure, plans, needs, warmups
)
