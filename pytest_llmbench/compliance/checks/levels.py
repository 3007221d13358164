"""Rules for load levels that several tests share: saturation, steady state, the window (section 5.2.3).

Each rule is worked out once more from the records of every level; a level that says otherwise is found out.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_llmbench.compliance.checks.registry import Checks, Predicate
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView
from pytest_llmbench.compliance.tested_levels import FAMILIES, Tested, close, names_of, percentile, tested
from pytest_llmbench.metrics.latency import ttft_ms
from pytest_llmbench.metrics.steadiness import steadiness
from pytest_llmbench.metrics.throughput import RAMP_UP_SHARE
from pytest_llmbench.model.plan import OpenLoop

check = Checks()

TAIL_FACTOR = 10.0
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
    """Five equal segments, strictly rising, by max(2, 20 %) in all (AMB-14)."""
    known = [one for one in tested(view) if one.queue_grows is not None]
    view.note("queue_means", {one.label: _rounded(one.queue_means) for one in known})
    wrong = [
        one
        for one in known
        if one.level.queue_growing != one.queue_grows or (one.queue_grows and not one.level.saturated)
    ]
    return view.answer(
        not wrong and bool(known),
        f"the queue of {len(known)} levels, judged as its five segments say",
        f"judged otherwise than the five segments say: {names_of(wrong)}" if wrong else "no queue was seen",
    )


def overloaded(one: Tested) -> bool:
    """Whether a level is called overloaded, or its own records say so.

    They do where the queue grows, or where completions fall short of the arrivals.
    """
    if one.level.overloaded is not False or one.queue_grows:
        return True
    return isinstance(one.run.plan.load, OpenLoop) and _falls_short(one)


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


@check("P-5.2.3.1-saturation-completion-90")
def completion_below_90(view: EvidenceView) -> Answer:
    """A level is called saturated where its completions stay below 90 % of the arrivals.

    Completions are held against the arrivals one unloaded latency earlier, since a request completes so much
    later.
    """
    levels = [one for one in tested(view) if isinstance(one.run.plan.load, OpenLoop)]
    shares = {one.label: one.balance.share for one in levels if one.balance is not None}
    view.note("completions_over_arrivals", shares)
    wrong = [one for one in levels if _falls_short(one) and not one.level.saturated]
    return view.answer(
        not wrong,
        "every level with completions below 90 % of the arrivals is called saturated",
        f"completions below 90 % of the arrivals, yet not called saturated: {names_of(wrong)}",
    )


def _falls_short(one: Tested) -> bool:
    """Whether completions fall short of the arrivals; a level so short that nothing was due in its window
    does only where nothing was completed."""
    return not one.records.ok.any() if one.balance is None else one.balance.short


@check("P-5.2.3.1-saturation-p99-10x")
def tail_above_ten_fold(view: EvidenceView) -> Answer:
    """TTFT P99 against TTFT P50 of the lowest tested level, of each group of levels on its own."""
    wrong: list[Tested] = []
    for group in _groups(tested(view)):
        lowest = min(group, key=lambda one: one.value)
        p50, p99 = (percentile(ttft_ms(lowest.inside), name) for name in ("p50", "p99"))
        view.note(f"ttft_p50_ms of {lowest.label}", p50)
        if p99 > TAIL_FACTOR * p50:
            if not any("ten-fold" in note for note in view.result.notes):
                return view.unmet(f"the rule is off at {lowest.label}, and no note says so (AMB-14)")
            continue
        wrong += [one for one in group if _tail_ms(one) > TAIL_FACTOR * p50 and not one.level.saturated]
    return view.answer(
        not wrong,
        "every level with TTFT P99 above ten times the low-load P50 is called saturated",
        f"TTFT P99 above ten times the low-load P50, yet not called saturated: {names_of(wrong)}",
    )


def _groups(levels: Sequence[Tested]) -> list[list[Tested]]:
    """The levels of the sweep and those of the search: each is measured against the lowest of its group."""
    sweep = [one for one in levels if one.level.role == SWEEP]
    search = [one for one in levels if one.level.role != SWEEP]
    return [group for group in (sweep, search) if group]


def _tail_ms(one: Tested) -> float:
    values = ttft_ms(one.inside)
    return percentile(values, "p99") if len(values) else 0.0


@check("P-5.2.3.2-steady-queue")
def steady_queue(view: EvidenceView) -> Answer:
    """The queue does not grow at any reported level.

    In a closed loop without the server's gauge the number in flight, which is given, stands for the queue.
    """
    levels = tested(view, REPORTED)
    means = {one.label: _rounded(one.queue_means or one.in_flight_means) for one in levels}
    view.note("queue_means", means)
    growing = [one for one in levels if one.queue_grows or one.level.queue_growing]
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
    """The window of every level is its last 90 %, and no sample was submitted before it."""
    for one in tested(view):
        stated = (one.level.duration_s, one.level.window_s)
        expected = (one.duration_s, (1 - RAMP_UP_SHARE) * one.duration_s)
        if not all(close(a, b, relative=1e-3, absolute=0.01) for a, b in zip(stated, expected, strict=True)):
            return view.unmet(
                f"{one.label}: a window of {stated[1]:.2f} s out of {stated[0]:.2f} s, the run gives "
                f"{expected[1]:.2f} s out of {expected[0]:.2f} s"
            )
        estimate = one.level.metrics.get("ttft.p50")
        samples = len(ttft_ms(one.inside))
        if estimate is None or estimate.n != samples:
            counted = "no" if estimate is None else estimate.n
            return view.unmet(f"{one.label}: {counted} TTFT samples, {samples} were submitted in the window")
    return view.met("windows begin after the first tenth, and so do all samples")


def percentiles_agree(
    view: EvidenceView, one: Tested, families: Sequence[str], statistics: Sequence[str]
) -> str | None:
    """What the level's latencies lack or have wrong, against its records; None for nothing."""
    for family in families:
        values = FAMILIES[family](one.inside)
        for statistic in statistics:
            stated, again = one.point(f"{family}.{statistic}"), percentile(values, statistic)
            if not close(stated, again):
                return f"{family}.{statistic} of {one.label} is {stated:g} ms, its records give {again:g} ms"
    view.note(f"samples of {one.label}", len(one.inside))
    return None
