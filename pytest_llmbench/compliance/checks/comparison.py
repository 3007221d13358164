"""Comparing several systems in one report (section 6).

What is compared are the results of the same test on other systems, where the report holds them; else the
facts ``comparison.*``, mappings from the name of a system to what it was measured with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pytest_llmbench.compliance.checks.registry import Checks, stated
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.facts import (
    ComparisonFact,
    Key,
    LoadFact,
    SUTFact,
    TokenizerFact,
    WorkloadFact,
)
from pytest_llmbench.model.result import TestResult

check = Checks()

CHECKLIST = (
    "workload",
    "duration",
    "warmup",
    "success_criteria",
    "same_time",
    "production_configuration",
    "differences",
)
"""The items of section 6.4."""
LOAD = (
    LoadFact.MODEL,
    LoadFact.ARRIVAL,
    LoadFact.RATE_RPS,
    LoadFact.CONCURRENCY,
    LoadFact.LEVELS_PERCENT,
    LoadFact.DURATION_S,
)
_RELATIVE_LOAD = (LoadFact.RATE_RPS, LoadFact.CONCURRENCY)
"""Facts that may differ in a test that takes percentages of each system's own capacity."""

check("P-6.2-method-stated")(stated(ComparisonFact.NORMALISATION))


def others(view: EvidenceView) -> tuple[TestResult, ...]:
    """Results of this test on other systems."""
    own = view.result.disclosure
    return tuple(
        sibling
        for sibling in view.evidence.siblings
        if sibling.test == view.evidence.test and sibling.disclosure != own
    )


def _across(view: EvidenceView, key: Key[dict[str, Any]], *facts: Key[Any]) -> list[dict[str, Any]]:
    """The wanted facts of every system: from their results, or as ``comparison.key`` states them."""
    found = others(view)
    if found:
        for fact in facts:
            view.fact(fact)
        return [{fact: result.facts.value(fact) for fact in facts} for result in (view.result, *found)]
    return [dict(entry) for entry in _per_system(view, key).values()]


def _equal(entries: list[dict[str, Any]], *ignored: str) -> bool:
    kept = [{k: v for k, v in entry.items() if k not in ignored} for entry in entries]
    return all(entry == kept[0] for entry in kept) and any(v is not None for v in kept[0].values())


@check("M-6.1-identical-workload")
def identical_workload(view: EvidenceView) -> Answer:
    """Digest of the requests, seed, and digest of the arrivals where they are open."""
    entries = _across(view, ComparisonFact.SEQUENCES, WorkloadFact.SEQUENCE_SHA256, WorkloadFact.SEED)
    missing = [name for entry in entries for name, value in entry.items() if value is None]
    view.note("sequences", entries)
    return view.answer(
        _equal(entries) and not missing,
        "the same requests in the same order",
        f"other requests or seeds, or unknown ones ({', '.join(missing)})",
    )


@check("M-6.1-equivalent-boundary")
def equivalent_boundary(view: EvidenceView) -> Answer:
    entries = _across(view, ComparisonFact.BOUNDARIES, SUTFact.BOUNDARY, SUTFact.COMPONENTS)
    boundaries = [entry.get(SUTFact.BOUNDARY, entry.get("boundary")) for entry in entries]
    components = [sorted(entry.get(SUTFact.COMPONENTS, entry.get("components")) or []) for entry in entries]
    view.note("boundaries", boundaries)
    same = all(each == boundaries[0] for each in boundaries) and boundaries[0] is not None
    return view.answer(
        same and all(each == components[0] for each in components),
        f"{boundaries[0]} for all",
        f"boundaries {boundaries} with components {components}",
    )


def hardware_differs(view: EvidenceView) -> bool:
    """Whether type, count or memory differ (AMB-48); unknown counts as different."""
    try:
        entries = _across(view, ComparisonFact.HARDWARE, *SUTFact.ACCELERATORS)
    except NoEvidenceError:
        return True
    known = all(value is not None for entry in entries for value in entry.values())
    return not (known and _equal(entries))


@check("M-6.1-comparable-hardware")
def comparable_hardware(view: EvidenceView) -> Answer:
    if not hardware_differs(view):
        return view.met("equal accelerators in type, number and memory")
    return view.met(f"normalised: {view.need(ComparisonFact.NORMALISATION)}")


@check("M-6.1-same-load")
def same_load(view: EvidenceView) -> Answer:
    """Equal in absolute terms; or equal percentages of capacities that were found in the same way."""
    entries = _across(view, ComparisonFact.LOADS, *LOAD, LoadFact.CAPACITY_FOUND)
    relative = all(entry.get(LoadFact.LEVELS_PERCENT) for entry in entries)
    ignored = _RELATIVE_LOAD if relative else (LoadFact.CAPACITY_FOUND,)
    view.note("loads", entries)
    return view.answer(
        _equal(entries, *ignored), "equal load model and parameters", f"loads differ: {entries}"
    )


@check("S-4.4.2-option-b-cl100k")
def option_b(view: EvidenceView) -> Answer:
    keys = (TokenizerFact.COUNTING_OPTION, TokenizerFact.REFERENCE)
    entries = _across(view, ComparisonFact.TOKENIZERS, *keys)
    wrong = [entry for entry in entries if (entry.get(keys[0]), entry.get(keys[1])) != ("B", "cl100k_base")]
    return view.answer(not wrong, "all counted with cl100k_base", f"not counted with cl100k_base: {wrong}")


def tokenizers_differ(view: EvidenceView) -> bool:
    try:
        entries = _across(view, ComparisonFact.TOKENIZERS, TokenizerFact.NAME, TokenizerFact.COUNTING_OPTION)
    except NoEvidenceError:
        return True
    names = [entry.get(TokenizerFact.NAME) for entry in entries]
    return names[0] is None or any(name != names[0] for name in names)


def _per_system(view: EvidenceView, key: Key[dict[str, Any]]) -> Mapping[str, Any]:
    values = view.need(key)
    if len(values) < 2:
        raise NoEvidenceError(f"{key} of two systems")
    return values


@check("P-6.2-tokens-per-gpu-second")
def tokens_per_gpu_second(view: EvidenceView) -> Answer:
    values = _per_system(view, ComparisonFact.TOKENS_PER_GPU_SECOND)
    wrong = [name for name, value in values.items() if not isinstance(value, int | float) or value <= 0]
    return view.answer(
        not wrong,
        ", ".join(f"{name} {value:g}" for name, value in values.items() if name not in wrong),
        f"no tokens per GPU-second for {', '.join(wrong)}",
    )


@check("P-6.2-cost-normalised")
def cost_normalised(view: EvidenceView) -> Answer:
    """The throughput per dollar-hour of every system comes with the price and the date it was taken at."""
    values = _per_system(view, ComparisonFact.TOKENS_PER_DOLLAR_HOUR)
    lacking = [
        name
        for name, entry in values.items()
        if not isinstance(entry, Mapping) or not {"value", "dollars_per_hour", "date"} <= entry.keys()
    ]
    return view.answer(
        not lacking, "throughput per dollar-hour", f"value, price or date lack for {', '.join(lacking)}"
    )


@check("P-6.3-confidence-intervals")
def confidence_intervals(view: EvidenceView) -> Answer:
    """A closed 95 % interval of every compared metric, for every system."""
    names = view.need(ComparisonFact.METRICS)
    results = (view.result, *others(view))
    lacking = []
    for name in names:
        for result in results:
            estimate = result.metrics.get(name)
            if estimate is None or not estimate.closed or estimate.level < 0.95:
                lacking.append(name)
    view.note("metrics", list(names))
    return view.answer(
        not lacking and bool(names),
        f"intervals of {', '.join(names)}",
        f"no closed 95 % interval of {', '.join(dict.fromkeys(lacking)) or 'anything'}",
    )


@check("P-6.3-three-runs")
def three_runs(view: EvidenceView) -> Answer:
    """Complete runs with a warm-up of their own, per system."""
    runs = _per_system(view, ComparisonFact.RUNS)
    few = {name: count for name, count in runs.items() if count < FEWEST_RUNS}
    return view.answer(not few, f"runs per system: {dict(runs)}", f"fewer than three independent runs: {few}")


@check("P-6.3-statistical-test")
def statistical_test(view: EvidenceView) -> Answer:
    """Name and statistic with a p-value, or an interval of the difference, for every compared metric."""
    tests = view.need(ComparisonFact.TESTS)
    covered = {
        entry.get("metric")
        for entry in tests
        if entry.get("name") and (entry.get("p_value") is not None or entry.get("interval"))
    }
    lacking = [name for name in view.need(ComparisonFact.METRICS) if name not in covered]
    return view.answer(
        not lacking, f"{len(tests)} tests", f"no test and no interval for {', '.join(lacking)}"
    )


@check("P-6.4-checklist")
def checklist(view: EvidenceView) -> Answer:
    answers = view.need(ComparisonFact.CHECKLIST)
    open_items = [item for item in CHECKLIST if not str(answers.get(item, "")).strip()]
    return view.answer(not open_items, "seven items answered", f"not answered: {', '.join(open_items)}")
