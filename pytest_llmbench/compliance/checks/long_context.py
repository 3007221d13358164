"""The long-context scaling test (section 5.9)."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from pytest_llmbench.compliance.checks.levels import Tested, names_of, tested
from pytest_llmbench.compliance.checks.registry import Checks, Predicate, at_least, figures
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.metrics.latency import e2e_ms, ttft_ms
from pytest_llmbench.model.draft import (
    CONTEXT_LENGTHS,
    CONTEXT_OUTPUT_TOKENS,
    FEWEST_LENGTHS,
    MOST_IN_FLIGHT,
    REQUESTS_PER_LENGTH,
)
from pytest_llmbench.model.facts import ManifestFact, ResultFact, SUTFact, WarmupFact, WorkloadFact
from pytest_llmbench.model.numbers import PLAIN, quantity

check = Checks()

LENGTH = "length"
NAMES = ("long-context", "long-context-uniform")
SHORT_CONTEXT, LONG_CONTEXT, LEAST_SPAN = 1024, 8192, 8


@check("M-4.3.2.5-long-context-for-scaling")
@check("M-5.9.2-workload-long-context")
def long_context(view: EvidenceView) -> Answer:
    """The workload has the name and the structure of Long Context.

    The structure is a document, a question of about 100 tokens, and 256 output tokens.
    """
    name = view.need(WorkloadFact.NAME)
    (question,) = view.need_fields(WorkloadFact.CONTENT, "question_tokens")
    limits = np.unique(view.records.requested_max_tokens)
    view.note("requested_max_tokens", limits.tolist())
    return view.answer(
        name in NAMES and 90 <= question <= 110 and limits.tolist() == [CONTEXT_OUTPUT_TOKENS],
        f"{name}: document and question of {question} tokens, {CONTEXT_OUTPUT_TOKENS} output tokens",
        f"{name} with a question of {question} tokens and output limits {limits.tolist()}",
    )


def _lengths(view: EvidenceView) -> list[tuple[int, Tested]]:
    """Levels with successes, each with the one length that was asked for."""
    refused = view.fact(ResultFact.LONG_CONTEXT_REFUSED, [])
    found = []
    for one in tested(view, LENGTH):
        asked = np.unique(one.records.requested_input_tokens)
        if len(asked) != 1:
            raise NoEvidenceError(f"one length at level {one.label}")
        if int(asked[0]) not in refused:
            found.append((int(asked[0]), one))
    if not found:
        raise NoEvidenceError("a measured length")
    return found


@check("P-5.9.2-length-sequence")
def length_sequence(view: EvidenceView) -> Answer:
    """Three lengths or more within the model's context, short to long. Where they are the draft's, those that
    do not fit are listed; of the author's own there is nothing to list."""
    # A smaller context that is declared than the engine states makes short prompts no long ones.
    limit = view.need(SUTFact.CONTEXT_LIMIT_TOKENS)
    observed = view.fact(ManifestFact.CONTRADICTED, {}).get(SUTFact.CONTEXT_LIMIT_TOKENS, {}).get("observed")
    limit = max(limit, observed) if isinstance(observed, int) else limit
    lengths = [length for length, _ in _lengths(view)]
    view.note("lengths", lengths)
    omitted = view.fact(ResultFact.LONG_CONTEXT_OMITTED, [])
    beyond = [length for length in lengths if length + CONTEXT_OUTPUT_TOKENS > limit]
    unlisted = [
        length
        for length in CONTEXT_LENGTHS
        if length + CONTEXT_OUTPUT_TOKENS > limit and length <= max(CONTEXT_LENGTHS) and length not in omitted
    ]
    if not set(lengths) <= set(CONTEXT_LENGTHS):
        unlisted = []
    # Far enough to show scaling: 8K, and eight times the shortest; or half of the context.
    longest, half = max(lengths), limit / 2
    if longest < min(LONG_CONTEXT, half) or longest < min(LEAST_SPAN * min(lengths), half):
        return view.unmet(f"lengths {lengths} in a context of {limit}: not both a long and a short one")
    return view.answer(
        len(set(lengths)) >= FEWEST_LENGTHS and not beyond and not unlisted,
        f"{len(lengths)} lengths up to {max(lengths)} tokens",
        f"lengths {lengths}; beyond the context of {limit}: {beyond}; left out without a word: {unlisted}",
    )


@check("P-5.9.2-output-256")
def output_256(view: EvidenceView) -> Answer:
    limits = np.unique(view.records.requested_max_tokens)
    view.note("requested_max_tokens", limits.tolist())
    return view.answer(
        limits.tolist() == [CONTEXT_OUTPUT_TOKENS],
        "256 tokens each",
        f"output limits {limits.tolist()}, not 256",
    )


@check("P-5.9.2-closed-loop-1-4")
def closed_loop_1_to_4(view: EvidenceView) -> Answer:
    loads = {one.run.plan.load for one in tested(view, LENGTH)}
    view.note("loads", [load.describe() for load in loads])
    (load, *others) = loads
    good = not others and 1 <= (load.requests_in_flight or 0) <= MOST_IN_FLIGHT
    return view.answer(
        good,
        f"{load.describe()} at every length",
        "not one closed loop of 1 to 4 requests: " + "; ".join(each.describe() for each in loads),
    )


def _requests_ok(view: EvidenceView) -> dict[int, int]:
    counted = {length: int(one.records.ok.sum()) for length, one in _lengths(view)}
    view.note("requests_ok", counted)
    return counted


check("P-5.9.2-20-per-length")(at_least(REQUESTS_PER_LENGTH, "requests of a length", _requests_ok))
check("P-5.9.4-per-length")(
    figures(
        "ttft[{}].mean",
        "ttft[{}].p50",
        "ttft[{}].p95",
        of_every=lambda view: [length for length, _ in _lengths(view)],
    )
)


@check("P-5.9.3-short-warmup")
def short_warmup(view: EvidenceView) -> Answer:
    """The warm-up used short prompts, by the warm-up requests where they are kept, else by what is stated of
    them."""
    shortest = max(min(length for length, _ in _lengths(view)), SHORT_CONTEXT)
    kept = view.evidence.unmeasured.requested_input_tokens
    longest = int(kept.max()) if len(kept) else view.need(WarmupFact.LONGEST_INPUT_TOKENS)
    view.note("longest_warmup_input", longest)
    return view.answer(
        0 < longest <= shortest,
        f"prompts of {longest} tokens and less",
        f"warmed up with {longest} tokens, the shortest length is {shortest}",
    )


@check("P-5.9.3-ascending")
def ascending(view: EvidenceView) -> Answer:
    """Lengths in the order in which they ran; both latencies stored for every success."""
    levels = _lengths(view)
    by_time = [length for length, one in sorted(levels, key=lambda pair: pair[1].run.started_ns)]
    lacking = [
        one
        for _, one in levels
        if min(len(ttft_ms(one.records)), len(e2e_ms(one.records))) < int(one.records.ok.sum())
    ]
    view.note("lengths_in_time", by_time)
    rising = all(later > earlier for earlier, later in pairwise(by_time))
    return view.answer(
        rising and not lacking,
        "ascending lengths, TTFT and total latency of every request",
        f"lengths in the order {by_time}; latencies lacking at {names_of(lacking)}",
    )


def _of_every_length(*fields: str) -> Predicate:
    """A predicate that is met when ``long_context.lengths`` has the fields of every length."""

    def predicate(view: EvidenceView) -> Answer:
        entries = {entry.get("length"): entry for entry in view.need(ResultFact.LONG_CONTEXT_LENGTHS)}
        lacking = [
            f"{name} of {length}"
            for length, _ in _lengths(view)
            for name in fields
            if entries.get(length, {}).get(name) is None
        ]
        if lacking:
            raise NoEvidenceError(*lacking)
        return view.met(f"{' and '.join(fields)} of every length")

    return predicate


check("P-5.9.4-prefill-scaling")(_of_every_length("ms_per_1k_tokens"))
check("P-5.9.4-throughput-at-length")(_of_every_length("output_tok_s", "input_tok_s", "concurrency"))


@check("P-5.9.4-scaling-exponent")
def scaling_exponent(view: EvidenceView) -> Answer:
    """k of the power law, and the straight line beside it."""
    view.need_fields(
        ResultFact.LONG_CONTEXT_FIT, "power.k", "power.r2", "linear.slope_us_per_token", "linear.r2"
    )
    return view.met(f"k = {quantity(view.metric('prefill_exponent').point, PLAIN)}")


@check("P-5.9.5-table")
def table(view: EvidenceView) -> Answer:
    view.table("long_context")
    return view.met(f"{len(_lengths(view))} lengths; {view.need(ResultFact.LONG_CONTEXT_BEST_FIT)}")
