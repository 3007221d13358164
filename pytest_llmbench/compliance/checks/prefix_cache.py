"""The prefix cache test (section 5.7): states of the cache, identical workload, effect."""

from __future__ import annotations

import numpy as np

from pytest_llmbench.compliance.checks.levels import Tested, of_sessions, tested
from pytest_llmbench.compliance.checks.registry import Checks, figures
from pytest_llmbench.compliance.checks.workload import advised
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.compliance.workload_evidence import bodies_differ
from pytest_llmbench.metrics.differences import unlike_machines, unlike_prefill
from pytest_llmbench.model.draft import MOST_FIRST_HITS, MOST_WHEN_OFF
from pytest_llmbench.model.facts import SUTFact, WarmupFact, WorkloadFact
from pytest_llmbench.model.numbers import percentage, signed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING, Records

check = Checks()

DISABLED, COLD, WARM = "disabled", "cold", "warm"
_STATISTICS = ("p50", "p95", "p99")
_SCHEDULE_TOLERANCE_NS = 1_000

check("S-5.7.2-workload")(advised("code-completion"))


@check("P-5.7.2-prefix-parameters")
def prefix_parameters(view: EvidenceView) -> Answer:
    """How many prefixes, how long, for which share; the planned requests carry them so."""
    if of_sessions(view, WARM):
        return view.unmet("the requests are turns of sessions, whose prefix is their own history and grows")
    fraction, _, contexts = view.need_fields(WorkloadFact.PREFIX_SHARING, "fraction", "length", "contexts")
    records = _state(view, WARM).records
    if not len(records):
        raise NoEvidenceError("requests of the warm run")
    shared = float(np.mean(records.shared_prefix_tokens > 0))
    view.note("realised_fraction", shared)
    longest = int(records.shared_prefix_tokens.max())
    return view.answer(
        fraction > 0 and abs(shared - fraction) <= 0.02 and longest <= max(contexts),
        f"{percentage(fraction)} of the requests share one of {len(contexts)} prefixes",
        f"{percentage(fraction)} are to share a prefix of at most {max(contexts)} tokens; "
        f"{percentage(shared)} share up to {longest}",
    )


def _state(view: EvidenceView, state: str) -> Tested:
    return tested(view, state)[0]


def _states(view: EvidenceView) -> dict[str, Tested]:
    return {one.level.role: one for one in tested(view, DISABLED, COLD, WARM)}


@check("M-5.7.2-two-configurations")
def two_configurations(view: EvidenceView) -> Answer:
    """Off and on, both complete, the switch proven: two variants, and nothing cached in the baseline."""
    states = _states(view)
    if DISABLED not in states or not {COLD, WARM} & states.keys():
        return view.unmet(f"only these states of the cache were run: {', '.join(states)}")
    for state, one in states.items():
        if one.run.interrupted is not None or len(one.records) < one.run.plan.requests:
            return view.unmet(f"cache {state}: {len(one.records)} of {one.run.plan.requests} requests")
    off, on = states[DISABLED], states.get(WARM) or states[COLD]
    for differ in (unlike_machines, unlike_prefill):
        told = differ("the cache", off.records, on.records)
        if told is not None and not told.ok:
            return view.unmet(f"not one system with its cache off and on: {told}")
    view.note("variants", [off.run.plan.variant, on.run.plan.variant])
    if off.run.plan.variant == on.run.plan.variant:
        return view.unmet("both ran on the same variant of the SUT: nothing was switched")
    told_ = off.records.ok & has(off.records.cached_tokens)
    total = int(off.records.input_tokens[off.records.ok & (off.records.input_tokens > 0)].sum())
    cached = float(off.records.cached_tokens[told_].sum()) / total if told_.any() and total else None
    view.note("cached_share_of_the_baseline", cached)
    switched = off.run.facts.value(SUTFact.PREFIX_CACHING) == DISABLED if cached is None else True
    return view.answer(
        (cached or 0.0) <= MOST_WHEN_OFF and switched,
        "baseline with the cache off, then with the cache on",
        f"the baseline took {percentage(cached)} of its input from a cache"
        if cached
        else "no evidence that the cache was off: neither cached tokens nor the variant says so",
    )


@check("P-5.7.3-identical-workload")
def identical_workload(view: EvidenceView) -> Answer:
    """Equal digest of the requests, equal load, equal arrivals."""
    runs = {state: one.run for state, one in _states(view).items()}
    first = next(iter(runs.values()))
    view.note("sequence_sha256", {state: run.sequence_sha256 for state, run in runs.items()})
    if of_sessions(view, WARM):
        return view.unmet(
            "the requests are turns of sessions: the same ones, but each is due when the one before has ended"
        )
    for state, run in runs.items():
        complaint = unlike(view, first, run)
        if complaint is not None:
            return view.unmet(f"cache {state}: {complaint}")
    return view.met("equal requests at equal load")


def unlike(view: EvidenceView, one: Observation, other: Observation, *, words: bool = True) -> str | None:
    """What differs between the loads of two runs; None for nothing. ``words``: they send the very same
    prompts."""
    if not one.sequence_sha256 or not other.sequence_sha256:
        raise NoEvidenceError("sequence_sha256 of the run")
    if words and one.sequence_sha256 != other.sequence_sha256:
        return "another sequence of requests"
    differing = bodies_differ(view, one, other)
    if differing is not None:
        return differing
    if one.plan.load != other.plan.load:
        return f"{other.plan.load.describe()}, not {one.plan.load.describe()}"
    if one.plan.load.requests_in_flight is not None:
        return None
    first, second = (np.sort(run.records.scheduled_ns) - run.started_ns for run in (one, other))
    alike = len(first) == len(second) and bool(np.all(np.abs(first - second) <= _SCHEDULE_TOLERANCE_NS))
    return None if alike else "another schedule of arrivals"


@check("P-5.7.3-baseline-warmup")
def baseline_warmup(view: EvidenceView) -> Answer:
    """No measured prefix was in the cache before the runs with the cache disabled or cold.

    This is judged by the warm-up requests where they are kept, else by what the first request of a prefix
    found.
    """
    states = {state: one for state, one in _states(view).items() if state != WARM}
    if not states:
        raise NoEvidenceError(f"levels of role {DISABLED} or {COLD}")
    for state, one in states.items():
        kept = [
            run.records
            for run in view.result.observations
            if run.plan.phase is not Phase.MEASURE
            and run.plan.variant == one.run.plan.variant
            and run.started_ns < one.run.started_ns
        ]
        sent = set().union(*(_pool(records) for records in kept))
        view.note(f"prefixes in the warm-up of cache {state}", len(sent))
        if sent & _pool(one.records):
            return view.unmet(f"cache {state}: its warm-up sent {len(sent)} of the measured prefixes")
        told = bool(has(one.records.cached_tokens).any())
        if not kept and not told and one.run.facts.value(SUTFact.PREFIX_CACHING) != DISABLED:
            raise NoEvidenceError(f"warm-up records of cache {state}", "record.cached_tokens")
        if told and _first_hits(one.records) > MOST_FIRST_HITS:
            return view.unmet(f"cache {state}: prefixes were in the cache before their first request")
    return view.met("no measured prefix was in the cache ahead of these runs")


def _pool(records: Records) -> set[int]:
    return {int(prefix) for prefix in np.unique(records.prefix_id) if prefix != MISSING}


def _first_hits(records: Records) -> float:
    """Share of the prefixes whose first request was answered from the cache for more than half of it."""
    order = np.argsort(records.submitted_ns, kind="stable")
    order = order[(records.prefix_id[order] != MISSING) & records.ok[order]]
    _, places = np.unique(records.prefix_id[order], return_index=True)
    first = np.asarray(order[places])
    hits = records.cached_tokens[first] * 2 > records.shared_prefix_tokens[first]
    return float(np.mean(hits)) if len(first) else 0.0


@check("M-4.5.1-prefixes-populated")
def prefixes_populated(view: EvidenceView) -> Answer:
    """All of the pool, by the number that was sent; or the first request of each finds its prefix."""
    populated, records = view.need(WarmupFact.PREFIXES_POPULATED), _state(view, WARM).records
    pool = _pool(records)
    if populated is False:
        return view.unmet("the prefixes were not sent before measuring")
    if populated is not True and populated < len(pool):
        return view.unmet(f"{populated} of {len(pool)} prefixes were sent before measuring")
    if not has(records.cached_tokens).any():
        return view.answer(
            populated is not True,
            f"{populated} prefixes were sent before measuring",
            "no evidence: how many prefixes were sent, or record.cached_tokens",
        )
    found = _first_hits(records)
    view.note("first_requests_that_hit", found)
    return view.answer(
        found >= 1 - MOST_FIRST_HITS,
        f"{len(pool)} prefixes, found in the cache by {percentage(found)} of their first requests",
        f"only {percentage(found)} of the prefixes were in the cache at their first request",
    )


@check("P-5.7.3-prepopulate-optional")
def prepopulated(view: EvidenceView) -> Answer:
    populated = view.need(WarmupFact.PREFIXES_POPULATED)
    return view.met("the cache was filled ahead of the warm run" if populated else "not filled")


check("P-5.7.4-ttft-both")(figures(*(f"ttft[{{}}].{name}" for name in _STATISTICS), of_every=_states))
check("P-5.7.4-reduction")(figures(*(f"ttft_reduction.{name}" for name in _STATISTICS)))
check("P-5.7.4-hit-rate")(figures("cache_hit_rate", "cached_input_share"))


@check("P-5.7.4-throughput-gain")
def throughput_gain(view: EvidenceView) -> Answer:
    """The gain at equal concurrency; in an open loop it is not measurable."""
    gain = view.measured("throughput_improvement")
    if of_sessions(view, WARM):
        return view.unmet("the requests are turns of sessions, which pause: no equal number was in flight")
    closed = _state(view, WARM).run.plan.load.in_flight is not None
    told = "not measurable" if gain is None else f"{signed(gain)} at equal concurrency"
    return view.answer(closed == (gain is not None), told, f"{told}, which its load does not give")


@check("P-5.7.5-table")
def table(view: EvidenceView) -> Answer:
    """The cold row may be missing (AMB-18)."""
    view.table("prefix_cache")
    lacking = {DISABLED, WARM} - _states(view).keys()
    return view.answer(not lacking, "with and without the cache", f"lacking: {', '.join(lacking)}")
