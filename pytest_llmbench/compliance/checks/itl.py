"""The inter-token latency test (sections 5.4 and 4.6.3): set-up, method, formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytest_llmbench.compliance.checks.generator import clock_resolves
from pytest_llmbench.compliance.checks.levels import SWEEP, Tested, names_of, tested
from pytest_llmbench.compliance.checks.registry import Checks, at_least, figures, one_of
from pytest_llmbench.compliance.checks.throughput import shares_of_capacity
from pytest_llmbench.compliance.evidence import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.metrics.chunking import single_token_share
from pytest_llmbench.metrics.itl import ASKED, choose_option, server_clock_holds, server_clock_misfit
from pytest_llmbench.model.draft import (
    FEWEST_TOKENS,
    ITL_PERCENTS,
    ITL_REQUESTS,
    ITL_SAMPLES,
    MOST_EXCLUDED,
    SINGLE_TOKEN_SHARE,
)
from pytest_llmbench.model.facts import ResultFact, StreamingFact, WorkloadFact
from pytest_llmbench.model.numbers import percentage
from pytest_llmbench.stats.shape import FEWEST_EXCESSES

check = Checks()

FINE_CLOCK_NS = 1_000
LEVEL_TOLERANCE = 2.0
OPTIONS = ("direct", "A", "B", "C")
_STATISTICS = ("p50", "p90", "p95", "p99", "p99_9", "mean", "std")
_TAILS = ("p50", "p95", "p99")

check("S-5.4.2-workload")(one_of(WorkloadFact.NAME, "synthetic-uniform", "conversation"))
check("S-4.2.1-timer-resolution-1us-itl")(clock_resolves(FINE_CLOCK_NS))


@check("M-4.6.3-itl-option-declared")
def option_declared(view: EvidenceView) -> Answer:
    """``direct`` needs more than 90 % single-token chunks (AMB-13)."""
    option = view.need(StreamingFact.ITL_OPTION)
    if option != "direct":
        return view.answer(option in OPTIONS, f"option {option}", f"option {option!r} is not A, B or C")
    share = single_token_share(view.records)
    view.note("single_token_share", share)
    return view.answer(
        share is not None and share > SINGLE_TOKEN_SHARE,
        "direct timing; chunks of several tokens are few",
        f"direct timing of chunks of which {percentage(share or 0)} hold one token",
    )


check("S-4.6.3-option-c-when-available")(one_of(StreamingFact.ITL_OPTION, "C"))


@check("P-4.6.3-option-a-label")
def option_a(view: EvidenceView) -> Answer:
    """Figures of option A are called Time Between Chunks; the sizes of the chunks are shown with them."""
    view.need(StreamingFact.CHUNK_SIZES)
    view.table("itl_results")
    view.table("chunk_sizes")
    return view.met("labelled Time Between Chunks, with the chunk sizes")


@check("P-4.6.3-option-b-rule")
def option_b(view: EvidenceView) -> Answer:
    """The gaps of no length, between tokens of a chunk, are counted."""
    return view.met(f"gaps of no length: {_counts(view, 'zero_gaps')}")


@check("P-B.2.1-itl-approach")
def approach(view: EvidenceView) -> Answer:
    """The order of AMB-13, from the streams of the levels."""
    records, option = view.records, view.need(StreamingFact.ITL_OPTION)
    if option not in OPTIONS:
        raise NoEvidenceError(f"streaming.itl_option among {', '.join(OPTIONS)} (it is {option!r})")
    share = single_token_share(records)
    several = share is None or share < 1.0
    server = len(records.server_token_ns) > 0 and server_clock_holds(records)
    misfit = server_clock_misfit(records) or 0.0
    if option == "C" and not server:
        return view.unmet(f"option C by instants that {percentage(misfit)} of the replies contradict")
    first = "C" if server and several else "direct" if share and share > SINGLE_TOKEN_SHARE else "A"
    view.note("single_token_share", share)
    return view.answer(
        option == first, f"option {option}", f"option {option}, the order of AMB-13 leads to {first}"
    )


@check("M-5.4.2-min-50-output-tokens")
def fifty_tokens(view: EvidenceView) -> Answer:
    """Requests for fewer tokens, and replies that ended earlier, are left out, counted, and 5 % at most."""
    for one in tested(view, SWEEP):
        planned = one.records.requested_max_tokens
        asked_short = float(np.mean(planned < FEWEST_TOKENS)) if len(planned) else 1.0
        view.note(f"asked_for_fewer of {one.label}", asked_short)
        if asked_short > MOST_EXCLUDED:
            return view.unmet(
                f"{one.label}: {percentage(asked_short)} of the requests are for fewer than {FEWEST_TOKENS} "
                "tokens"
            )
        share = _of_level(view, one).get("excluded_share") or 0.0
        view.note(f"excluded_share of {one.label}", share)
        if share > MOST_EXCLUDED:
            return view.unmet(
                f"{one.label}: {percentage(share)} of the replies are shorter than {FEWEST_TOKENS} tokens"
            )
    return view.met("at least 50 output tokens each, early ends left out and counted")


check("P-5.4.2-min-100-requests")(
    at_least(ITL_REQUESTS, "eligible requests of a level", lambda view: _counts(view, "eligible"))
)
check("P-5.4.2-min-5000-samples")(
    at_least(ITL_SAMPLES, "samples of a level", lambda view: _counts(view, "samples"))
)
check("P-5.4.2-load-as-percentage")(shares_of_capacity())


@check("S-5.4.2-load-levels")
def load_levels(view: EvidenceView) -> Answer:
    percents = [one.level.percent_of_capacity for one in tested(view, SWEEP)]
    lacking = [
        wanted
        for wanted in ITL_PERCENTS
        if not any(percent is not None and abs(percent - wanted) <= LEVEL_TOLERANCE for percent in percents)
    ]
    return view.answer(not lacking, "25, 50, 75 and 90 %", f"levels lacking: {lacking} % of saturation")


@check("P-5.4.2-method-specified")
def method_specified(view: EvidenceView) -> Answer:
    """The method is the author's, or the one that the streams of a level before the sweep call for."""
    option, source = view.need_all(StreamingFact.ITL_OPTION, StreamingFact.ITL_OPTION_FROM)
    if source == ASKED:
        return view.met(f"method {option}, chosen by the author")
    runs = view.result.observations
    shown = next(
        (
            runs[level.observation]
            for level in view.result.levels
            if level.label == source and level.observation is not None
        ),
        None,
    )
    first_ns = min(one.run.started_ns for one in tested(view, SWEEP))
    if shown is None or shown.started_ns >= first_ns:
        return view.unmet(f"no run before the levels from which method {option} was chosen: {source!r}")
    wanted = choose_option(shown.records)
    return view.answer(
        option == wanted,
        f"method {option}, by the streams of {source}",
        f"method {option}, and the streams of {source} call for {wanted}",
    )


def _of_level(view: EvidenceView, one: Tested) -> Mapping[str, Any]:
    """What ``itl.levels`` states of the level."""
    found = [entry for entry in view.need(ResultFact.ITL_LEVELS) if entry.get("level") == one.label]
    if not found:
        raise NoEvidenceError(f"itl.levels of {one.label}")
    entry: Mapping[str, Any] = found[0]
    return entry


def _counts(view: EvidenceView, name: str) -> dict[str, Any]:
    """What ``itl.levels`` counts at every level."""
    counted = {one.label: _of_level(view, one).get(name) for one in tested(view, SWEEP)}
    missing = [label for label, count in counted.items() if count is None]
    if missing:
        raise NoEvidenceError(*(f"{name} of {label}" for label in missing))
    view.note(name, counted)
    return counted


def _levels(view: EvidenceView) -> list[str]:
    return [one.label for one in tested(view, SWEEP)]


check("P-5.4.3-itl-formula")(figures("itl[{}].p50", "itl[{}].mean", of_every=_levels, proved="itl.gaps"))
check("P-5.4.3-jitter")(figures("jitter[{}].p50", of_every=_levels, proved="itl.per_request"))
check("P-5.4.3-max-pause")(figures("longest_pause[{}].p50", of_every=_levels, proved="itl.per_request"))
check("M-5.4.3-exclude-ttft")(figures("itl[{}].p50", of_every=_levels, proved="itl.without_ttft"))
check("P-5.4.4.1-aggregate")(figures(*(f"itl[{{}}].{name}" for name in _STATISTICS), of_every=_levels))
check("P-5.4.4.2-per-request")(
    figures(
        *(f"{family}[{{}}].{name}" for family in ("jitter", "longest_pause") for name in _TAILS),
        of_every=_levels,
    )
)


@check("P-5.4.4.3-modality")
def modes(view: EvidenceView) -> Answer:
    return view.met(f"by peaks of a kernel density of log ITL: {_counts(view, 'modality')}")


@check("P-5.4.4.3-tail")
def tail(view: EvidenceView) -> Answer:
    """Class of the tail and P99 over P50. Of many gaps of which hardly any is longer than P90 there is no
    tail to be called anything: the engine is even."""
    _counts(view, "p99_over_p50")
    few = [
        one
        for one in tested(view, SWEEP)
        if _of_level(view, one).get("tail_class") is None
        and _of_level(view, one).get("samples", 0) < 10 * FEWEST_EXCESSES
    ]
    return view.answer(
        not few, "tail and P99/P50 of every level", f"too few gaps to know their tail: {names_of(few)}"
    )


@check("P-5.4.5-table")
def results_table(view: EvidenceView) -> Answer:
    made, levels = view.table("itl_results"), tested(view, SWEEP)
    return view.answer(made >= len(levels), "a table per level", f"{made} tables for {len(levels)} levels")
