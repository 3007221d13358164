"""The fairness test (section 5.6): classes, baselines, indices."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pytest_llmbench.compliance.checks.levels import Tested, at_least_s, of_sessions, tested, was_measured
from pytest_llmbench.compliance.checks.registry import Checks, at_least, figures, tables
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError, has
from pytest_llmbench.model.draft import CLASS_REQUESTS, MIX_S
from pytest_llmbench.model.facts import LoadFact, ResultFact, WorkloadFact
from pytest_llmbench.model.numbers import PLAIN, percentage, quantity, trimmed
from pytest_llmbench.model.records import Records
from pytest_llmbench.workloads.mixture import LONG, SHORT

check = Checks()

MIX, ALONE = "mix", "baseline"
DRAFT_CLASSES = {each.name: (each.input, each.output) for each in (SHORT, LONG)}
SHARE_TOLERANCE = 0.03
LOWEST_PERCENT, HIGHEST_PERCENT = 70.0, 90.0
_RATE_TOLERANCE = 0.01
_LOAD_TOLERANCE = 0.10
"""Tolerance of the load: rates follow from expected lengths, and those of some hundred requests vary around
them."""

check("P-5.6.3-min-duration-300s")(at_least_s(MIX_S, MIX))


@check("M-5.6.2-workload-synthetic-skewed")
def synthetic_skewed(view: EvidenceView) -> Answer:
    """The workload is synthetic-skewed: its log-normals, conditional on the classes (AMB-07), which is
    declared."""
    _mix(view)
    name, classes = view.need_all(WorkloadFact.NAME, WorkloadFact.CLASSES)
    return view.answer(
        name == "synthetic-skewed" and len(classes) >= 2,
        f"synthetic-skewed, conditional on {len(classes)} classes",
        f"the workload is {name}, section 5.6.2 requires synthetic-skewed",
    )


def _mix(view: EvidenceView) -> Tested:
    found = tested(view, MIX)
    if len(found) > 1:
        raise NoEvidenceError(f"one mixed run (there are {len(found)})")
    if not len(found[0].records):
        raise NoEvidenceError("requests of the mixed run")
    if of_sessions(view, MIX):
        raise NoEvidenceError("requests that are not turns of sessions")
    return found[0]


def _labels(records: Records) -> npt.NDArray[np.object_]:
    return np.array(records.class_label, dtype=object)


def _classes(view: EvidenceView) -> tuple[str, ...]:
    _mix(view)
    return tuple(str(each["name"]) for each in view.need(WorkloadFact.CLASSES))


@check("P-5.6.2-classes")
def classes(view: EvidenceView) -> Answer:
    """Short and long with the draft's ranges, and every planned request inside the range of its class."""
    _mix(view)
    ranges = {
        each["name"]: (tuple(each["input"]), tuple(each["output"]))
        for each in view.need(WorkloadFact.CLASSES)
    }
    other = [name for name, bounds in DRAFT_CLASSES.items() if ranges.get(name) != bounds]
    if len(ranges) < 2 or other:
        return view.unmet(f"classes {ranges}; not as the draft has them: {', '.join(other)}")
    records = view.records
    names = _labels(records)
    outside = int((~np.isin(names, list(ranges))).sum())
    for name, (inputs, outputs) in ranges.items():
        own = names == name
        for column, (low, high) in (
            (records.requested_input_tokens, inputs),
            (records.requested_max_tokens, outputs),
        ):
            outside += int((own & ((column < low) | (column > high))).sum())
    view.note("requests_outside_their_class", outside)
    return view.answer(
        outside == 0, f"{len(ranges)} classes", f"{outside} requests lie outside the range of their class"
    )


@check("P-5.6.2-class-mix")
def class_mix(view: EvidenceView) -> Answer:
    """Shares sum to 1, and those of the mixed run are within three points."""
    names, shares = _labels(_mix(view).records), view.need(WorkloadFact.CLASS_MIX)
    realised = {name: float(np.mean(names == name)) for name in shares}
    view.note("realised_shares", realised)
    off = [name for name, share in shares.items() if abs(realised[name] - share) > SHARE_TOLERANCE]
    return view.answer(
        abs(sum(shares.values()) - 1) < 1e-9 and not off,
        f"the mix is {shares}",
        f"the mix is to be {shares}, the requests are {realised}",
    )


@check("S-5.6.2-load-70-90")
def load_70_to_90(view: EvidenceView) -> Answer:
    """The load is 70 to 90 % of a measured capacity of the mix itself, and the offered rate is that share."""
    mix, rate = _mix(view), view.need(LoadFact.CAPACITY_RPS)
    percent = mix.level.percent_of_capacity
    if percent is None:
        raise NoEvidenceError("level.percent_of_capacity")
    view.note("percent_of_capacity", percent)
    if not was_measured(view, rate):
        return view.unmet(f"{trimmed(rate)} req/s is stated as the capacity, and nothing measured it")
    agrees = abs(mix.value - rate * percent / 100) <= _RATE_TOLERANCE * mix.value
    share = f"{percentage(percent / 100)} of {trimmed(rate)} req/s"
    return view.answer(
        LOWEST_PERCENT <= percent <= HIGHEST_PERCENT and agrees,
        share,
        f"{trimmed(mix.value)} req/s, called {share}, is not 70 to 90 % of it",
    )


def _requests_of_classes(view: EvidenceView) -> dict[str, int]:
    """The requests of every class in the mix and in its isolated runs, which have the same floor."""
    mix, counted = _labels(_mix(view).records), {}
    for name in _classes(view):
        counted[f"{name} in the mix"] = int((mix == name).sum())
        alone = [one for one in tested(view, ALONE) if one.level.class_label == name]
        counted |= {f"{name} in {one.label}": len(one.records) for one in alone}
    view.note("requests", counted)
    return counted


check("P-5.6.2-500-per-class")(at_least(CLASS_REQUESTS, "requests of a class", _requests_of_classes))


@check("P-5.6.3-isolated-baseline")
def isolated_baseline(view: EvidenceView) -> Answer:
    """Each class alone, before the mix, under the stated rule for an equal load (AMB-08)."""
    mix, rule = _mix(view), view.need(ResultFact.FAIRNESS_EQUAL_LOAD)
    alone = {one.level.class_label: one for one in tested(view, ALONE)}
    missing = [name for name in _classes(view) if name not in alone]
    if missing:
        return view.unmet(f"not measured alone: {', '.join(missing)}")
    wanted = mix.value if rule == "requests" else mix.value * _mean_tokens(mix.run.records)
    for name, one in alone.items():
        foreign = set(one.records.class_label) - {name}
        if foreign or one.run.started_ns >= mix.run.started_ns:
            return view.unmet(f"{name} was not measured alone before the mix")
        offered = one.value if rule == "requests" else one.value * _mean_tokens(one.run.records)
        view.note(f"{rule} per second, {name} alone", offered)
        if abs(offered - wanted) > _LOAD_TOLERANCE * wanted:
            return view.unmet(
                f"{name} alone: {trimmed(offered)} {rule} per second, the mix has {trimmed(wanted)}"
            )
    return view.met(f"each class alone at equal {rule} per second")


def _mean_tokens(records: Records) -> float:
    return float(np.mean(records.requested_input_tokens + records.requested_max_tokens))


@check("P-5.6.3-per-request-record")
def per_request_record(view: EvidenceView) -> Answer:
    _mix(view)
    records = view.records
    lacking = {
        "class": int(np.sum(_labels(records) == "")),
        "submission": int((records.ok & ~has(records.submitted_ns)).sum()),
        "first token": int((records.ok & ~has(records.first_content_ns)).sum()),
        "completion": int((records.ok & ~has(records.last_content_ns)).sum()),
    }
    view.note("lacking", lacking)
    return view.answer(
        not any(lacking.values()),
        "class, submission, first token and completion of every request",
        f"requests without: {', '.join(f'{what} {count}' for what, count in lacking.items() if count)}",
    )


check("P-5.6.4-per-class-latency")(
    figures("ttft[{}].p50", "ttft[{}].p95", "ttft[{}].p99", "tpot[{}].p50", "tpot[{}].p99", of_every=_classes)
)
check("P-5.6.4-inflation")(
    figures("ttft_inflation[{}].p50", "ttft_inflation[{}].p95", "ttft_inflation[{}].p99", of_every=_classes)
)


@check("P-5.6.4-jain")
def jain(view: EvidenceView) -> Answer:
    """J over end-to-end latency per output token (AMB-09)."""
    _mix(view)
    normalisation, count = view.need_all(ResultFact.FAIRNESS_JAIN_NORMALISATION, ResultFact.FAIRNESS_JAIN_N)
    index = view.metric("jain_index").point
    return view.met(f"J = {quantity(index, PLAIN)} over {count} requests, {normalisation}")


@check("P-5.6.4-starvation")
def starvation(view: EvidenceView) -> Answer:
    """Share of requests that waited longer than five times the median wait of their class (AMB-10)."""
    view.need(ResultFact.FAIRNESS_WAIT_SOURCE)
    return figures("starvation_rate[{}]", of_every=_classes)(view)


@check("P-5.6.5-tables")
def classes_and_indices(view: EvidenceView) -> Answer:
    _mix(view)
    return tables("fairness_classes", "fairness_metrics")(view)
