"""Checks whether the arms of a comparison are comparable at all, before any of their figures is looked at.

Two builds that answer with other lengths do other work: their times per request and their throughput differ
without either being slower. Two systems are comparable when they were asked the same, in the same way, behind
the same boundary, on the same hardware (section 6.1 of the draft).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_llmbench.model.facts import ComparisonFact, Facts, LoadFact, SUTFact, TokenizerFact, WorkloadFact
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.runs import FloatArray

_SIGNIFICANT = 0.01
_LARGEST_DELTA = 0.05
_LARGEST_CHANGE = 0.02
MOST_CACHED_APART = 0.05


def output_lengths(baseline: FloatArray, candidate: FloatArray) -> Finding | None:
    """Output tokens per request of two arms, as a warning; None where one of them has none.

    Effect sizes: the change of the mean, and Cliff's delta P(candidate > baseline) - P(candidate < baseline)
    (Cliff 1993, Psychological Bulletin 114). Not ok when one of them is of note and chance does not explain
    it (Mann-Whitney, p < 0.01).
    """
    if not len(baseline) or not len(candidate):
        return None
    statistic, p_value = mann_whitney(baseline, candidate)
    delta = 2.0 * statistic / (len(baseline) * len(candidate)) - 1.0
    means = float(baseline.mean()), float(candidate.mean())
    change = means[1] / means[0] - 1.0 if means[0] > 0 else 0.0
    of_note = abs(delta) >= _LARGEST_DELTA or abs(change) >= _LARGEST_CHANGE
    ok = not (of_note and p_value < _SIGNIFICANT)
    return Finding.of(
        "output_lengths",
        ok,
        delta,
        _LARGEST_DELTA,
        candidate=means[1],
        baseline=means[0],
        change=Amount(change, "ratio"),
        p=p_value,
    )


def mann_whitney(first: FloatArray, second: FloatArray) -> tuple[float, float]:
    """U of ``second`` over ``first`` (ties count half) and its two-sided p-value, normal approximation with
    the correction for ties (Mann & Whitney 1947, Annals of Mathematical Statistics 18)."""
    sizes = len(first), len(second)
    total, product = sum(sizes), sizes[0] * sizes[1]
    _, which, tied = np.unique(np.concatenate([first, second]), return_inverse=True, return_counts=True)
    ranks = np.cumsum(tied) - (tied - 1) / 2.0
    statistic = float(ranks[which[sizes[0] :]].sum()) - sizes[1] * (sizes[1] + 1) / 2.0
    ties = float((tied.astype(np.float64) ** 3 - tied).sum()) / (total * (total - 1))
    variance = product / 12.0 * (total + 1 - ties)
    if variance <= 0.0:  # every value is the same
        return statistic, 1.0
    distance = max(abs(statistic - product / 2.0) - 0.5, 0.0)
    return statistic, math.erfc(distance / math.sqrt(2.0 * variance))


def cache_apart(baseline: float | None, candidate: float | None) -> Finding | None:
    """Finding that compares the shares of two arms' inputs that came from a prefix cache. Where one of them
    is not known, it is taken for none; None where neither is, or the one that is known is small.

    Arms on one server, or behind one cache, would find what the other left there.
    """
    apart = abs((candidate or 0.0) - (baseline or 0.0))
    ok = apart <= MOST_CACHED_APART
    about: dict[str, Any] = {}
    if baseline is None or candidate is None:
        if ok:
            return None
        case, about["of_baseline"] = "cache_of_arms.one_known", candidate is None
    else:
        case = "cache_of_arms"
        about = {"candidate": Amount(candidate, "ratio"), "baseline": Amount(baseline, "ratio")}
    return Finding.of(case, ok, apart, MOST_CACHED_APART, **about)


_LOAD = (
    LoadFact.MODEL,
    LoadFact.ARRIVAL,
    LoadFact.BURSTINESS,
    LoadFact.RATE_RPS,
    LoadFact.CONCURRENCY,
    LoadFact.LEVELS_PERCENT,
    LoadFact.DURATION_S,
    LoadFact.CAPACITY_FOUND,
)
_BY_CAPACITY = (LoadFact.RATE_RPS, LoadFact.CONCURRENCY, LoadFact.DURATION_S)
"""Facts that may differ in a test that takes percentages of each system's own capacity."""

Evidence = Mapping[str, Mapping[str, Any]]
"""What each system was measured with, by system and key; None for what is not known."""


def evidence(facts: Mapping[str, Facts], schedules: Mapping[str, str | None]) -> dict[str, Evidence]:
    """The facts ``comparison.*`` about what was equal, from the manifest of each system.

    ``schedules``: digest of the arrivals of each system; None for a closed loop.
    """
    return {
        ComparisonFact.SEQUENCES: {
            name: {
                "sequence_sha256": own.value(WorkloadFact.SEQUENCE_SHA256),
                "seed": own.value(WorkloadFact.SEED),
            }
            | ({} if schedules[name] is None else {"schedule_sha256": schedules[name]})
            for name, own in facts.items()
        },
        ComparisonFact.BOUNDARIES: {
            name: {"boundary": own.value(SUTFact.BOUNDARY), "components": own.value(SUTFact.COMPONENTS)}
            for name, own in facts.items()
        },
        ComparisonFact.HARDWARE: {
            name: {key.rpartition(".")[2]: own.value(key) for key in SUTFact.ACCELERATORS}
            for name, own in facts.items()
        },
        ComparisonFact.LOADS: {
            name: {key: own.value(key) for key in _LOAD if own.value(key) is not None}
            for name, own in facts.items()
        },
        ComparisonFact.TOKENIZERS: {
            name: {key: fact.value for key, fact in own.under("tokenizer").items()}
            for name, own in facts.items()
        },
    }


def rules(found: Mapping[str, Evidence]) -> list[Finding]:
    """The rules of section 6.1 as warnings: what is not equal, or not known to be."""
    loads = found[ComparisonFact.LOADS]
    if all(load.get(LoadFact.LEVELS_PERCENT) for load in loads.values()):
        loads = {
            name: {key: value for key, value in load.items() if key not in _BY_CAPACITY}
            for name, load in loads.items()
        }
    tokenizers = {
        name: {"name": own.get(TokenizerFact.NAME)} for name, own in found[ComparisonFact.TOKENIZERS].items()
    }
    boundaries = {
        name: {"boundary": own["boundary"], "components": sorted(own["components"] or [])}
        for name, own in found[ComparisonFact.BOUNDARIES].items()
    }
    return [
        _rule("same_requests", found[ComparisonFact.SEQUENCES]),
        _rule("same_load", loads),
        _rule("same_boundary", boundaries),
        _rule("same_hardware", found[ComparisonFact.HARDWARE]),
        _rule("same_tokenizer", tokenizers),
    ]


def hardware_is_equal(found: Mapping[str, Evidence]) -> bool:
    return _rule("same_hardware", found[ComparisonFact.HARDWARE]).ok


def _rule(check: str, entries: Evidence) -> Finding:
    keys = dict.fromkeys(key for entry in entries.values() for key in entry)
    unknown = [key for key in keys if any(entry.get(key) is None for entry in entries.values())]
    differing = [
        key
        for key in keys
        if key not in unknown and len({repr(entry.get(key)) for entry in entries.values()}) > 1
    ]
    other = tuple(
        Note.of(
            "differing",
            fact=key,
            values=tuple(f"{entry.get(key)} on {name}" for name, entry in entries.items()),
        )
        for key in differing
    )
    same = not differing and not unknown
    both = bool(differing and unknown)
    return Finding.of(check, same, same=same, both=both, differing=other, unknown=tuple(unknown))
