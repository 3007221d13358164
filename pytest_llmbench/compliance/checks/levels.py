"""The load levels of a result, and the rules of a load that several tests share: warm-up and cold start
(section 4.5), saturation, steady state, the window (section 5.2.3), and the capacity that levels are
percentages of: a figure by itself is no measurement."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from pytest_llmbench.compliance.checks.registry import Checks, Predicate
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.metrics.balance import steadiness
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors
from pytest_llmbench.metrics.server_side import cold_starts
from pytest_llmbench.metrics.throughput import RAMP_UP_SHARE, Window, level_window, submitted_inside
from pytest_llmbench.model.draft import STEADY_PROBES, TAIL_FACTOR, WARMUP_OUTPUT_TOKENS, WARMUP_REQUESTS
from pytest_llmbench.model.facts import COLD_START, WarmupFact, WorkloadFact
from pytest_llmbench.model.numbers import percentage, quantity, trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import BURST, CHARACTERISATION, NOT_OFFERED, PROBE, Level

check = Checks()

_DURATION_TOLERANCE_S = 1e-3
SWEEP, REPORTED = "level", "reported"


def at_least_s(seconds: float, *roles: str) -> Predicate:
    """A predicate that is met when every level of these roles was held for so long, by its plan and by its
    records."""

    def predicate(view: EvidenceView) -> Answer:
        levels = tested(view, *roles)
        lasted = {one.label: round(one.lasted_s, 3) for one in levels}
        view.note("lasted_s", lasted)
        short = [one for one in levels if one.lasted_s < seconds - _DURATION_TOLERANCE_S]
        return view.answer(
            not short,
            f"every level was held for {trimmed(seconds)} s or longer",
            f"held for less than {trimmed(seconds)} s: "
            + ", ".join(f"{one.label} ({quantity(one.lasted_s, 's')})" for one in short),
        )

    return predicate


def every_level(holds: Callable[[Tested], bool], yes: str, no: str, *roles: str) -> Predicate:
    """A predicate that is met when every level of these roles, or of all, is so."""

    def predicate(view: EvidenceView) -> Answer:
        wrong = [one for one in tested(view, *roles) if not holds(one)]
        return view.answer(not wrong, yes, f"{no}: {names_of(wrong)}")

    return predicate


@check("P-5.2.3.1-saturation-queue-growth")
def queue_growth(view: EvidenceView) -> Answer:
    known = [one for one in tested(view) if one.level.queue_growing is not None]
    wrong = [one for one in known if one.level.queue_growing and not one.level.saturated]
    return view.answer(
        not wrong and bool(known),
        f"the queue of {len(known)} levels is judged",
        f"the queue grows, yet not called saturated: {names_of(wrong)}" if wrong else "no queue was seen",
    )


def overloaded(one: Tested) -> bool:
    """Whether the queue of a level grows or its completions fall short; one of which nothing is said may
    be."""
    return one.level.overloaded is not False


check("P-5.2.3.1-saturation-completion-90")(
    every_level(
        lambda one: one.level.saturated is not None and (one.level.saturated or not one.level.overloaded),
        "every level is judged",
        "not judged, or it gets more work than it completes and is not called saturated",
    )
)


@check("P-5.2.3.1-saturation-p99-10x")
def tails_judged(view: EvidenceView) -> Answer:
    """Every level is judged, and one whose TTFT P99 is more than ten times the P50 of the lowest one of its
    search or sweep is saturated; not where the lowest breaks that rule itself (AMB-14)."""
    levels = tested(view)
    wrong = [one for one in levels if one.level.saturated is None]
    for role in (PROBE, SWEEP):
        own = [one for one in levels if one.level.role == role]
        lowest = [one for one in own if one.value == min(other.value for other in own)]
        known = [(one.known("ttft.p50"), one.known("ttft.p99")) for one in lowest]
        references = [p50 for p50, p99 in known if p50 is not None and p99 is not None]
        if not references or any(p50 and p99 and p99 > TAIL_FACTOR * p50 for p50, p99 in known):
            continue
        most = TAIL_FACTOR * max(references)
        wrong += [one for one in own if not one.level.saturated and (one.known("ttft.p99") or 0.0) > most]
    return view.answer(
        not wrong, "every level is judged by its tail", f"not judged, or a longer tail: {names_of(wrong)}"
    )


check("P-5.2.3.2-steady-queue")(
    every_level(
        lambda one: not one.level.queue_growing, "the queue does not grow", "the queue grows", REPORTED
    )
)


@check("P-5.2.3.2-steady-throughput")
def steady_throughput(view: EvidenceView) -> Answer:
    """Least-squares slope over five slices, times the window, against the mean; beyond it only by chance."""
    found = {one.label: steadiness(one.window) for one in tested(view, REPORTED)}
    silent = [label for label, seen in found.items() if seen is None]
    if silent:
        return view.unmet(f"no output in the window of {', '.join(silent)}")
    known = [seen for seen in found.values() if seen is not None]
    view.note("change_over_window", {label: seen.change for label, seen in found.items() if seen})
    worst = max(known, key=lambda seen: (not seen.level, abs(seen.change)))
    return view.answer(
        worst.level,
        f"throughput changes by {percentage(worst.change)} over the window"
        + (", no more than chance" if worst.by_chance else ""),
        f"throughput changes by {percentage(worst.change)} over the window, 10 % is the limit, and it is a "
        "trend",
    )


check("P-5.2.3.2-rampup-excluded")(
    every_level(
        lambda one: (
            abs(one.level.window_s - (1 - RAMP_UP_SHARE) * one.level.duration_s)
            <= 0.01 * one.level.duration_s
        ),
        "windows begin after the first tenth",
        "another window than the last 90 %",
    )
)


TOLERANCE = 0.10
SLOW_PROBE = 10.0
"""A probe slower than this many times the median probe speaks against a loaded model."""


@check("M-4.5.1-model-loaded")
def model_loaded(view: EvidenceView) -> Answer:
    loaded, requests_ok = view.need_all(WarmupFact.MODEL_LOADED, WarmupFact.REQUESTS_OK)
    cold = int(cold_starts(view.evidence.records).sum())
    if cold:
        view.note("cold_starts", cold)
        return view.unmet(f"the server says that {cold} measured requests waited for the model to be loaded")
    probes = [probe for probe in view.fact(WarmupFact.PROBES_AFTER_MS, []) if probe is not None]
    if probes and max(probes) > SLOW_PROBE * statistics.median(probes):
        return view.unmet(
            f"a probe took {quantity(max(probes), 'ms')}, ten times the median: the model was still loading"
        )
    return view.answer(
        loaded is True and requests_ok > 0,
        f"declared loaded, and {requests_ok} warm-up requests succeeded",
        "the model was not loaded" if loaded is not True else "no warm-up request succeeded",
    )


@check("M-4.5.1-warmup-volume")
def volume(view: EvidenceView) -> Answer:
    requests_ok, output_tokens = view.need_all(WarmupFact.REQUESTS_OK, WarmupFact.OUTPUT_TOKENS)
    done = f"{requests_ok} requests and {output_tokens} output tokens"
    return view.answer(
        requests_ok >= WARMUP_REQUESTS and output_tokens >= WARMUP_OUTPUT_TOKENS,
        done,
        f"{done}; both {WARMUP_REQUESTS} and {WARMUP_OUTPUT_TOKENS} must be reached (AMB-02)",
    )


@check("M-4.5.1-queue-drained")
def queue_drained(view: EvidenceView) -> Answer:
    if view.need(WarmupFact.DRAINED) is not True:
        return view.unmet("warm-up requests were cut off, not drained")
    open_at_start = view.runs[0].in_flight_at_start
    view.note("in_flight_at_start", open_at_start)
    if open_at_start:
        return view.unmet(f"{open_at_start} requests were in flight when measuring began")
    return view.answer(
        warmup_precedes(view),
        "every warm-up request had ended before the first measured one",
        "warm-up was still running when measuring began",
    )


def warmup_precedes(view: EvidenceView) -> bool:
    """The last warm-up or probe response ended before the first measured submission.

    A shared run was measured by another test on this SUT, after the warm-up of that one.
    """
    own = _first_submitted_ns([run for run in view.runs if run.shared_from is None])
    shared = _first_submitted_ns([run for run in view.runs if run.shared_from is not None])
    stored = view.evidence.unmeasured.finished_ns
    ends = [view.result.warmup.last_finished_ns, int(stored.max()) if len(stored) else None]
    known = [end for end in ends if end is not None]
    if not known or (own is None and shared is None):
        raise NoEvidenceError("the end of the warm-up" if not known else "record.submitted_ns")
    view.note("warmup_last_finished_ns", max(known))
    view.note("first_submitted_ns", own)
    if shared is not None:
        view.note("first_submitted_of_shared_runs_ns", shared)
        owners = [sibling.warmup.last_finished_ns for sibling in view.evidence.same_system]
        if not any(end is not None and end < shared for end in owners):
            return False
    return own is None or max(known) < own


def _first_submitted_ns(runs: list[Observation]) -> int | None:
    columns = [run.records.submitted_ns[has(run.records.submitted_ns)] for run in runs]
    return min((int(column.min()) for column in columns if len(column)), default=None)


@check("S-4.5.2-probe-before-after")
def probe_before_and_after(view: EvidenceView) -> Answer:
    before, after = view.need_all(WarmupFact.PROBE_BEFORE_MS, WarmupFact.PROBES_AFTER_MS)
    timed = [probe for probe in after if probe is not None]
    if not timed:
        return view.unmet("no probe after")
    return view.met(f"probes took {quantity(before, 'ms')} before and {quantity(timed[-1], 'ms')} after")


@check("S-4.5.2-stabilised")
def stabilised(view: EvidenceView) -> Answer:
    last = view.need(WarmupFact.PROBES_AFTER_MS)[-STEADY_PROBES:]
    if len(last) < STEADY_PROBES or any(probe is None for probe in last):
        return view.unmet(f"fewer than {STEADY_PROBES} successful probes at the end")
    steps = [abs(b - a) / a for a, b in pairwise(last)]
    view.note("steps", steps)
    told = f"the last {STEADY_PROBES} probes vary by {percentage(max(steps))}"
    return view.answer(max(steps) < TOLERANCE, f"{told} at most", told)


@check("M-4.5.3-cold-start-no-warmup")
def cold_start_without_warmup(view: EvidenceView) -> Answer:
    performed, sent = view.need(WarmupFact.PERFORMED), len(view.evidence.unmeasured)
    view.note("warmup_records", sent)
    return view.answer(performed is False and sent == 0, "no warm-up", "a cold start must not be warmed up")


@check("M-4.5.3-cold-start-indicated")
def cold_start_indicated(view: EvidenceView) -> Answer:
    """A run in which measured requests waited for the model to be loaded is a cold start, whatever it is
    called."""
    cold = int(cold_starts(view.evidence.records).sum())
    view.note("cold_starts", cold)
    return view.answer(
        view.fact(COLD_START) is True,
        "the results are marked as a cold start",
        f"{cold} measured requests waited for the model to be loaded, and nothing marks a cold start",
    )


NINE_LATENCIES = tuple(
    f"{family}.{statistic}" for family in ("ttft", "tpot", "e2e") for statistic in ("p50", "p95", "p99")
)


@dataclass(frozen=True)
class Tested:
    """One level with the run that it came from."""

    level: Level
    run: Observation

    @property
    def label(self) -> str:
        return self.level.label

    @property
    def records(self) -> Records:
        return self.run.records

    @property
    def value(self) -> float:
        """The requested load: requests per second, or requests in flight."""
        offered = self.level.offered_rps
        return float(self.level.concurrency or 0) if offered is None else offered

    @cached_property
    def window(self) -> Window:
        return level_window(self.run, self.level.role)

    @cached_property
    def inside(self) -> Records:
        return submitted_inside(self.window)

    @property
    def lasted_s(self) -> float:
        """Seconds for which the load was kept up: an open loop to its end, a closed one until an end was not
        replaced."""
        slots, end_ns = self.run.plan.load.requests_in_flight, self.window.end_ns
        if slots is not None:
            ends = np.sort(self.records.finished_ns[has(self.records.finished_ns)])
            unreplaced = len(self.records) - slots
            if 0 <= unreplaced < len(ends):
                end_ns = int(ends[unreplaced])
        return (end_ns - self.run.started_ns) / 1e9

    def known(self, metric: str) -> float | None:
        estimate = self.level.metrics.get(metric)
        return None if estimate is None else estimate.point

    def point(self, metric: str) -> float:
        point = self.known(metric)
        if point is None:
            raise NoEvidenceError(f"{metric} of level {self.label}")
        return point

    @property
    def out_of_memory(self) -> int:
        """Failed requests whose error speaks of memory that ran out."""
        return out_of_memory_errors(self.records)

    @property
    def restarted(self) -> bool:
        """Whether a counter of the engine fell during the run."""
        engine = self.run.engine
        return engine is not None and any(
            engine.totals_after.get(name, before) < before for name, before in engine.totals_before.items()
        )

    def refused_share(self) -> float:
        return int(self.records.has_outcome(Outcome.REFUSED).sum()) / max(len(self.records), 1)


def tested(view: EvidenceView, *roles: str) -> tuple[Tested, ...]:
    """The levels of these roles, or all but bursts, at least one of them. Levels that were given up stand
    under their own role, ``reported (given up)``."""
    found = {}
    for place, level in enumerate(view.result.levels):
        other = level.role in (BURST, CHARACTERISATION) or level.role.endswith(NOT_OFFERED)
        if level.role in roles or not (roles or other):
            found[place] = level
    if not found:
        raise NoEvidenceError(f"levels of role {' or '.join(roles)}" if roles else "levels")
    view.note("levels", [level.label for level in found.values()])
    runs = view.result.observations
    known: dict[int, Tested] = view.evidence.counted.setdefault("levels", {})
    for place, level in found.items():
        if level.observation is None or not 0 <= level.observation < len(runs):
            raise NoEvidenceError(f"the run of level {level.label}")
        known.setdefault(place, Tested(level, runs[level.observation]))
    return tuple(known[place] for place in found)


def of_sessions(view: EvidenceView, *roles: str) -> bool:
    """Whether the requests are turns of sessions, which the draft does not know."""
    return any(one.run.plan.load.of_sessions for one in tested(view, *roles))


def need_points(levels: Sequence[Tested], names: Iterable[str]) -> None:
    """Raise NoEvidenceError unless every level has these metrics."""
    names = tuple(names)
    for one in levels:
        for name in names:
            one.point(name)


def names_of(levels: Sequence[Tested]) -> str:
    return ", ".join(one.label for one in levels)


_SAME_RATE = 0.01
"""Largest relative difference of equal rates: rates of plans have three digits."""
MOST_BESIDE = 0.10
"""Largest relative difference of a stated capacity from the one that a throughput test of the report
found."""
WIDEST_BRACKET = 0.10
"""Largest distance between a load that holds and the next one that does not, as a share of the latter: the
draft's levels lie as far apart (sections 5.3.3 and 5.2.3.1). Of a maximum in a wider bracket nobody knows
where it is."""
SATURATES_FROM, SATURATES_TO = 80.0, 130.0
"""Percentages of a capacity between which a sweep beyond it begins to saturate, if it is one."""


def is_narrow(holds: float, fails: float, load_model: str = "open") -> bool:
    """Whether a maximum between these loads is found; of requests in flight neighbours are close enough."""
    widest = (WIDEST_BRACKET + _SAME_RATE) * fails
    return fails - holds <= (max(widest, 1.0) if load_model == "closed" else widest)


def was_measured(view: EvidenceView, rate: float) -> bool:
    """Whether a measurement shows ``rate`` to be the capacity.

    A search of this test, with a saturated level close above; or a throughput test of the report on the same
    system with the same workload, with such a one.
    """
    if _found_by_search(view, rate):
        return True
    name, rates = view.need(WorkloadFact.NAME), []
    for sibling in view.evidence.others("throughput"):
        found = sibling.metrics.get("sustainable_rate")
        if sibling.facts.value(WorkloadFact.NAME) != name or found is None:
            continue
        if found.point is not None and found.upper is not None and is_narrow(found.point, found.upper):
            rates.append(found.point)
    view.note("throughput_tests_rps", rates)
    return any(abs(found - rate) <= MOST_BESIDE * found for found in rates)


def _found_by_search(view: EvidenceView, rate: float) -> bool:
    """Whether a tested level at that rate held, and one above it, on the same variant, did not."""
    if not any(level.role == PROBE for level in view.result.levels):
        return False
    probes = tested(view, PROBE)
    held = [
        one for one in probes if one.level.saturated is False and abs(one.value - rate) <= _SAME_RATE * rate
    ]
    return any(
        other.level.saturated is True
        and other.value > one.value
        and is_narrow(one.value, other.value, one.level.load_model)
        for one in held
        for other in probes
        if other.run.plan.variant == one.run.plan.variant
    )


def confirmed_by_sweep(levels: Sequence[Tested]) -> bool:
    """Whether levels up to and beyond the capacity saturate near it, not far below it and not far above."""
    saturated = [one.level.percent_of_capacity for one in levels if one.level.saturated]
    first = min((percent for percent in saturated if percent is not None), default=None)
    return first is not None and SATURATES_FROM <= first <= SATURATES_TO
