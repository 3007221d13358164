"""Checks whether results may be compared: whether they are of the same thing, and whether arms are comparable
at all, before any of their figures is looked at.

What a comparison is about is the software: its name and version may differ. Everything that would make the
figures differ by itself has to agree: the model, the machine under it, what is asked of it, and who asks.
There are fields that have to agree, fields that are shown, and waivers.

Two builds that answer with other lengths do other work: their times per request and their throughput
differ without either being slower. Two systems are comparable when they were asked the same, in the same
way, behind the same boundary, on the same hardware (section 6.1 of the draft).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.estimate import COUNTED_BY, ITL_METHOD
from pytest_llmbench.model.facts import (
    ComparisonFact,
    EndpointFact,
    Facts,
    GuardrailFact,
    LoadFact,
    RequestFact,
    SUTFact,
    TokenizerFact,
    WireFact,
    WorkloadFact,
)
from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.runs import FloatArray

Identity = Mapping[str, Any]

REQUIRED = (
    "test", "model", "api", WireFact.HTTP_VERSION, RequestFact.EXTRA_BODY, "scale", "seed",
    "workload", "workload.sha256", "load", "criteria",
    SUTFact.BOUNDARY, SUTFact.MODEL_NAME, SUTFact.MODEL_VERSION, SUTFact.MODEL_QUANTIZATION,
    SUTFact.ACCELERATOR_TYPE, SUTFact.ACCELERATOR_COUNT, SUTFact.ACCELERATOR_MEMORY_GIB,
    SUTFact.PREFIX_CACHING, GuardrailFact.INPUT_FILTER, GuardrailFact.OUTPUT_FILTER,
    "host.machine", "host.cpu", "host.cpus",
)  # fmt: skip
"""Fields that have to be equal. One that a side does not know counts as different; ``wire.http_version`` is
known for HTTP/2 alone."""
IF_KNOWN = (EndpointFact.ANSWERED_BY, "warmup", "figures")
"""Fields that have to be equal where both sides know them."""
GOODPUT_LIMITS = "goodput.limits"
OF_METRICS = (ITL_METHOD, COUNTED_BY, GOODPUT_LIMITS)
"""Fields that say how some metrics were made (:func:`fields_of`). They have to be equal, where both sides
know them, for these metrics to be compared; the others are compared all the same."""
_OF_GAPS = (
    "itl", "output_itl", "itl_tail_ratio", "itl_modes", "itl_tail_variation", "jitter", "longest_pause",
)  # fmt: skip
_OF_TIMES = (
    "ttft", "ttft_scheduled", "ttft_any", "ttft_first_event", "ttft_queue_wait", "ttft_prefill",
    "ttft_outside", "ttft_reasoning", "ttft_reduction", "ttft_inflation", "ttot", "ttfo", "e2e",
    "e2e_scheduled", "latency", "latency_scheduled", "turn_ttft", "turn_ttft_reduction", "job_time",
    "job_llm_time", "job_pause_time", "job_generator_wait", "job_slowdown", "job_llm_slowdown", "makespan",
    "request_throughput", "max_request_throughput", "completion_rate", "fail_rate",
    "session_completion_rate", "cut_share", "cut_begun_share", "input_filter_overhead", "guardrail_overhead",
    "recovery_time", "preemption_rate", "preemption_recovery_rate", "preemptions_per_request",
    "starvation_rate",
)  # fmt: skip
"""Metrics of times and requests alone, whoever counts tokens."""
_UNDER_LIMITS = (
    "goodput", "goodput_share", "output_token_goodput", "session_goodput", "jobs_per_hour",
    "constrained_output_token_throughput", "operating_point_rate", "operating_point_throughput",
    "max_concurrency", "max_sessions",
)  # fmt: skip
SHOWN = (
    "endpoint", EndpointFact.MODELS, SUTFact.SOFTWARE_ENGINE, SUTFact.SOFTWARE_VERSION,
    SUTFact.CONTEXT_LIMIT_TOKENS, "generator.version", "host.python", "host.platform",
)  # fmt: skip
"""Fields that are shown where they differ: the software is what one compares."""
DEFINITIONS = "definitions"
"""The field of how metrics are defined: it has to agree where the figures of another load generator are to
decide."""
_EXAMPLE = "--llm-waive 'host.cpu=new runners, old baseline@2026-03-31'"


@dataclass(frozen=True, slots=True)
class Waiver:
    """A mismatch that somebody takes responsibility for, until a day."""

    field: str
    reason: str
    expires: date
    """The last day on which it holds."""

    def __str__(self) -> str:
        return f"{self.field} is waived until {self.expires.isoformat()}: {self.reason}"


def waivers_of_option(given: Sequence[str], today: date, option: str = "--llm-waive") -> tuple[Waiver, ...]:
    """Parse waivers of the form ``FIELD=REASON@YYYY-MM-DD``. SuiteError with every mistake; an expired one is
    a mistake."""
    found: list[Waiver] = []
    mistakes: list[str] = []
    for text in given:
        head, _, day = text.rpartition("@")
        field, _, reason = map(str.strip, head.partition("="))
        try:
            waiver = Waiver(field, reason, date.fromisoformat(day.strip()))
            wrong = _wrong(waiver, today)
            found.append(waiver)
        except ValueError:
            wrong = [f"has {day!r} for its last day: write @YYYY-MM-DD"]
        if not field or not reason:
            wrong = [f"needs a field, a reason and the last day: {_EXAMPLE}"]
        mistakes += [f"{option} {text!r} {what}" for what in wrong]
    if mistakes:
        raise SuiteError.from_mistakes(mistakes)
    return tuple(found)


def _wrong(waiver: Waiver, today: date) -> list[str]:
    found = []
    known = (*REQUIRED, *IF_KNOWN, *OF_METRICS, DEFINITIONS)
    if waiver.field not in known:
        close = difflib.get_close_matches(waiver.field, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"those that can be waived: {', '.join(known)}"
        found.append(f"names no field that has to agree; {hint}")
    if waiver.expires < today:
        found.append(
            f"expired on {waiver.expires.isoformat()}: save a new baseline, or decide anew until when"
        )
    return found


@dataclass(frozen=True, slots=True)
class Match:
    """The comparison of two identities, in words."""

    mismatches: tuple[str, ...]
    """Mismatches without a waiver: if there are any, nothing is compared."""
    waived: tuple[str, ...]
    shown: tuple[str, ...]


def matched(
    baseline: Identity,
    candidate: Identity,
    waivers: Sequence[Waiver] = (),
    *,
    required: Sequence[str] = (*REQUIRED, *IF_KNOWN),
    told: Sequence[str] = SHOWN,
) -> Match:
    """Every difference, named with both values; ``required``: the fields that have to agree, ``told``:
    those that are told where they differ."""
    by_field = {waiver.field: waiver for waiver in waivers}
    mismatches, waived = [], []
    for name in required:
        sides = baseline.get(name), candidate.get(name)
        if sides[0] == sides[1] or (name in (*IF_KNOWN, *OF_METRICS) and None in sides):
            continue
        said = _difference(name, baseline, candidate)
        if name in by_field:
            waived.append(f"{said}; {by_field[name]}")
        else:
            mismatches.append(said)
    shown = [
        _difference(name, baseline, candidate) for name in told if baseline.get(name) != candidate.get(name)
    ]
    return Match(tuple(mismatches), tuple(waived), tuple(shown))


def fields_of(metric: str) -> tuple[str, ...]:
    """The fields of :data:`OF_METRICS` that say how a metric was made. Requests that meet limits may have
    been chosen by any of their figures."""
    family = metric.partition(".")[0].partition("[")[0]
    if family in _UNDER_LIMITS:
        return OF_METRICS
    of_lengths = "[" in metric and family == "ttft"  # buckets of input tokens
    if family in _OF_TIMES and not of_lengths:
        return ()
    return (ITL_METHOD, COUNTED_BY) if family in _OF_GAPS else (COUNTED_BY,)


def made_alike(metric: str, baseline: Identity, candidate: Identity, waivers: Sequence[Waiver] = ()) -> Match:
    """Every difference in how a metric was made."""
    return matched(baseline, candidate, waivers, required=fields_of(metric), told=())


def made_otherwise(
    metric: str, baseline: Identity, candidate: Identity, waivers: Sequence[Waiver] = ()
) -> str | None:
    """Why the values of a metric are not those of one definition, with both; None where they are."""
    return "; ".join(made_alike(metric, baseline, candidate, waivers).mismatches) or None


def _difference(name: str, baseline: Identity, candidate: Identity) -> str:
    return f"{name} was {_shown(baseline.get(name))}, now it is {_shown(candidate.get(name))}"


def _shown(value: Any) -> str:
    return "not known" if value is None else str(value)


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
