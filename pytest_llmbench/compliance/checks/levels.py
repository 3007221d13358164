"""Rules for load levels that several tests share: saturation, steady state, the window (section 5.2.3)."""

from __future__ import annotations

from pytest_llmbench.compliance.checks.registry import Checks, Predicate
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView
from pytest_llmbench.compliance.tested_levels import Tested, names_of, tested
from pytest_llmbench.metrics.balance import steadiness
from pytest_llmbench.metrics.throughput import RAMP_UP_SHARE
from pytest_llmbench.model.draft import TAIL_FACTOR
from pytest_llmbench.model.result import PROBE

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
            f"every level was held for {seconds:g} s or longer",
            f"held for less than {seconds:g} s: "
            + ", ".join(f"{one.label} ({one.lasted_s:.1f} s)" for one in short),
        )

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


@check("P-5.2.3.1-saturation-completion-90")
def saturation_judged(view: EvidenceView) -> Answer:
    """Every level is judged by the three rules, and one that gets more work than it completes is
    saturated."""
    levels = tested(view)
    wrong = [one for one in levels if one.level.saturated is None]
    wrong += [one for one in levels if one.level.overloaded and not one.level.saturated]
    return view.answer(
        not wrong, "every level is judged", f"not judged, or overloaded and not saturated: {names_of(wrong)}"
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


@check("P-5.2.3.2-steady-queue")
def steady_queue(view: EvidenceView) -> Answer:
    growing = [one for one in tested(view, REPORTED) if one.level.queue_growing]
    return view.answer(not growing, "the queue does not grow", f"the queue grows: {names_of(growing)}")


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
        f"throughput changes by {worst.change:.1%} over the window"
        + (", no more than chance" if worst.by_chance else ""),
        f"throughput changes by {worst.change:.1%} over the window, 10 % is the limit, and it is a trend",
    )


@check("P-5.2.3.2-rampup-excluded")
def ramp_up_excluded(view: EvidenceView) -> Answer:
    """The window of every level is its last 90 %."""
    wrong = [
        one
        for one in tested(view)
        if abs(one.level.window_s - (1 - RAMP_UP_SHARE) * one.level.duration_s) > 0.01 * one.level.duration_s
    ]
    return view.answer(not wrong, "windows begin after the first tenth", f"another window: {names_of(wrong)}")
