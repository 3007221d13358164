"""Checks whether two results are of the same thing: fields that have to agree, fields that are shown, and
waivers.

What a comparison is about is the software: its name and version may differ. Everything that would make the
figures differ by itself has to agree: the model, the machine under it, what is asked of it, and who asks.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.estimate import COUNTED_BY, ITL_METHOD
from pytest_llmbench.model.facts import EndpointFact, GuardrailFact, RequestFact, SUTFact, WireFact

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
        waiver = _read(text)
        wrong = [waiver] if isinstance(waiver, str) else _wrong(waiver, today)
        mistakes += [f"{option} {text!r} {what}" for what in wrong]
        if isinstance(waiver, Waiver) and not wrong:
            found.append(waiver)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes)
    return tuple(found)


def _read(text: str) -> Waiver | str:
    head, _, day = text.rpartition("@")
    field, _, reason = head.partition("=")
    if not field.strip() or not reason.strip():
        return f"needs a field, a reason and the last day: {_EXAMPLE}"
    try:
        return Waiver(field.strip(), reason.strip(), date.fromisoformat(day.strip()))
    except ValueError:
        return f"has {day!r} for its last day: write @YYYY-MM-DD"


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
