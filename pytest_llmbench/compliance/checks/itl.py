"""The inter-token latency test (sections 5.4 and 4.6.3): set-up, method, formulas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from pytest_llmbench.compliance.capacity_evidence import measurement_behind
from pytest_llmbench.compliance.checks.levels import SWEEP
from pytest_llmbench.compliance.checks.registry import Checks, one_of, tables_called
from pytest_llmbench.compliance.checks.tradeoff import SOURCES, shares_wrong
from pytest_llmbench.compliance.evidence_view import Answer, EvidenceView, NoEvidenceError
from pytest_llmbench.compliance.stored import chunk_counts, chunk_sizes
from pytest_llmbench.compliance.tested_levels import Tested, close, names_of, percentile, tested
from pytest_llmbench.metrics.gaps import Option
from pytest_llmbench.metrics.itl import (
    FEWEST_TOKENS,
    SINGLE_TOKEN_SHARE,
    TBC,
    ItlSamples,
    itl_point,
    itl_samples,
    jitter_ms,
    longest_pause_ms,
    server_clock_holds,
    server_clock_misfit,
)
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.shape import FEWEST_EXCESSES, modality, tail_class, tail_variation

check = Checks()

FINE_CLOCK_NS = 1_000
FEWEST_REQUESTS, FEWEST_SAMPLES = 100, 5_000
MOST_EXCLUDED = 0.05
LEVELS, LEVEL_TOLERANCE = (25.0, 50.0, 75.0, 90.0), 2.0
OPTIONS = ("direct", "A", "B", "C")
_STATISTICS = ("p50", "p90", "p95", "p99", "p99_9", "mean", "std")
_PER_REQUEST = ("Jitter", "Longest Pause")
_TITLES = ("Samples", "P50", "P90", "P95", "P99", "P99.9", "Mean", "Std Dev", "P99/P50 Ratio")

check("S-5.4.2-workload")(one_of("workload.name", "synthetic-uniform", "conversation"))


@check("S-4.2.1-timer-resolution-1us-itl")
def fine_clock(view: EvidenceView) -> Answer:
    resolution_ns = view.need("timing.clock_resolution_ns")
    for run in view.evidence.runs:
        resolution_ns = max(resolution_ns, run.selfcheck.clock_resolution_ns or 0)
    view.note("clock_resolution_ns", resolution_ns)
    return view.answer(
        0 < resolution_ns <= FINE_CLOCK_NS,
        f"the clock resolves {resolution_ns} ns",
        f"a clock resolution of {resolution_ns} ns is not within 1 µs",
    )


def _option(view: EvidenceView) -> Option:
    option = view.need("streaming.itl_option")
    if option not in OPTIONS:
        raise NoEvidenceError(f"streaming.itl_option among {', '.join(OPTIONS)} (it is {option!r})")
    return cast(Option, option)


@check("M-4.6.3-itl-option-declared")
def option_declared(view: EvidenceView) -> Answer:
    """``direct`` needs more than 90 % single-token chunks, and a word on the others (AMB-13)."""
    option = view.need("streaming.itl_option")
    if option != "direct":
        return view.answer(option in OPTIONS, f"option {option}", f"option {option!r} is none of A, B, C")
    share = chunk_sizes(view.records).single_share
    view.note("single_token_share", share)
    disclosed = share == 1.0 or any("several tokens" in note for note in view.result.notes)
    return view.answer(
        share is not None and share > SINGLE_TOKEN_SHARE and disclosed,
        "direct timing; chunks of several tokens are few, and disclosed",
        f"direct timing of chunks of which {share or 0:.1%} hold one token, or nothing is said of the rest",
    )


check("S-4.6.3-option-c-when-available")(one_of("streaming.itl_option", "C"))


@check("P-4.6.3-option-a-label")
def option_a_label(view: EvidenceView) -> Answer:
    """Every title and row says Time Between Chunks, and the sizes of the chunks are shown."""
    results = tables_called(view, "itl_results")
    named = [table.title for table in results]
    named += [
        row[0]
        for table in results
        for row in table.rows
        if row[0].endswith(_TITLES[:-1]) and not row[0].startswith(_PER_REQUEST)
    ]
    wrong = [title for title in named if not title.startswith(TBC)]
    view.need("streaming.chunk_sizes")
    view.table("chunk_sizes")
    return view.answer(
        not wrong and bool(results),
        "labelled Time Between Chunks, with the chunk sizes",
        f"not labelled Time Between Chunks: {', '.join(wrong) or 'no results table'}",
    )


@check("P-4.6.3-option-b-rule")
def option_b_rule(view: EvidenceView) -> Answer:
    """N-1 zero gaps for a chunk of N tokens, and the warning that the variance comes out too small."""
    for one in tested(view, SWEEP):
        zeros = _gaps(view, one).counts.zeros
        expected = _zeros_of_chunks(one.inside)
        stated = _of_level(view, one).get("zero_gaps")
        view.note(f"zero_gaps of {one.label}", zeros)
        if stated != zeros or zeros < expected:
            return view.unmet(f"{one.label}: {stated} gaps of zero, the chunks give {zeros}")
    said = (view.fact("streaming.chunk_handling", ""), *view.result.notes)
    return view.answer(
        any("variance" in text and "too small" in text for text in said),
        "all tokens of a chunk at its arrival, with the warning",
        "no warning that the variance of ITL comes out too small",
    )


@check("P-B.2.1-itl-approach")
def approach(view: EvidenceView) -> Answer:
    """The order of AMB-13, from the streams of the levels."""
    records, option = view.records, _option(view)
    share = chunk_sizes(records).single_share
    several = share is None or share < 1.0
    server = len(records.server_token_ns) > 0 and server_clock_holds(records)
    misfit = server_clock_misfit(records) or 0.0
    if option == "C" and not server:
        return view.unmet(f"option C by instants that {misfit:.1%} of the replies contradict")
    first = "C" if server and several else "direct" if share and share > SINGLE_TOKEN_SHARE else "A"
    view.note("single_token_share", share)
    return view.answer(
        option == first, f"option {option}", f"option {option}, the order of AMB-13 leads to {first}"
    )


@check("M-5.4.2-min-50-output-tokens")
def fifty_tokens(view: EvidenceView) -> Answer:
    """Requests for fewer tokens, and replies that ended earlier, are left out, counted, and 5 % at most."""
    for one in tested(view, SWEEP):
        planned, gaps = one.records.requested_max_tokens, _gaps(view, one).counts
        asked_short = float(np.mean(planned < FEWEST_TOKENS)) if len(planned) else 1.0
        view.note(f"asked_for_fewer of {one.label}", asked_short)
        if asked_short > MOST_EXCLUDED:
            return view.unmet(
                f"{one.label}: {asked_short:.1%} of the requests are for fewer than {FEWEST_TOKENS} tokens"
            )
        share = gaps.excluded_share or 0.0
        view.note(f"excluded_share of {one.label}", share)
        if share > MOST_EXCLUDED:
            return view.unmet(f"{one.label}: {share:.1%} of the replies are shorter than 50 tokens")
        stated = _of_level(view, one).get("excluded")
        if stated != gaps.excluded:
            return view.unmet(f"{one.label}: {stated} replies left out, the records say {gaps.excluded}")
    return view.met("at least 50 output tokens each, early ends left out and counted")


@check("P-5.4.2-min-100-requests")
def hundred_requests(view: EvidenceView) -> Answer:
    eligible = {one.label: _gaps(view, one).counts.eligible for one in tested(view, SWEEP)}
    view.note("eligible_requests", eligible)
    return view.answer(
        min(eligible.values()) >= FEWEST_REQUESTS,
        "100 requests or more at every level",
        f"eligible requests per level: {eligible}",
    )


@check("P-5.4.2-min-5000-samples")
def five_thousand_samples(view: EvidenceView) -> Answer:
    samples = {one.label: _gaps(view, one).counts.gaps for one in tested(view, SWEEP)}
    view.note("samples", samples)
    return view.answer(
        min(samples.values()) >= FEWEST_SAMPLES,
        "5000 samples or more at every level",
        f"samples per level: {samples}",
    )


@check("S-5.4.2-load-levels")
def load_levels(view: EvidenceView) -> Answer:
    percents = [one.level.percent_of_capacity for one in tested(view, SWEEP)]
    lacking = [
        wanted
        for wanted in LEVELS
        if not any(percent is not None and abs(percent - wanted) <= LEVEL_TOLERANCE for percent in percents)
    ]
    return view.answer(not lacking, "25, 50, 75 and 90 %", f"levels lacking: {lacking} % of saturation")


@check("P-5.4.2-load-as-percentage")
def load_as_percentage(view: EvidenceView) -> Answer:
    rate, source = view.need_all("load.capacity_rps", "load.capacity_source")
    if not any(word in source for word in SOURCES):
        return view.unmet(f"the maximum comes from {source!r}, no test and no figure")
    wrong, measured = shares_wrong(tested(view, SWEEP), rate), measurement_behind(view, rate)
    if not wrong and measured is None:
        return view.unmet(f"{rate:g} req/s, {source}: no search and no throughput test here measured it")
    return view.answer(
        not wrong,
        f"percentages of {rate:g} req/s, {source}",
        f"not the share of {rate:g} req/s that they name: {names_of(wrong)}",
    )


@check("P-5.4.2-method-specified")
def method_specified(view: EvidenceView) -> Answer:
    """The method was asked for by the marker, or chosen from a run that came before the first level."""
    option, reason = _option(view), view.need("streaming.itl_option_reason")
    before = [level.label for level in view.result.levels if level.role != SWEEP]
    chosen_early = "asked" in reason or any(label in reason for label in before)
    return view.answer(
        chosen_early, f"method {option}: {reason}", f"method {option} was not fixed beforehand: {reason}"
    )


def _zeros_of_chunks(records: Records) -> int:
    """Gaps of zero that tokens sharing a chunk cause, among eligible requests: N - 1 for a chunk of N."""
    zeros = 0
    for block in records.blocks():
        eligible = block.ok & (block.output_tokens >= FEWEST_TOKENS)
        tokens = block.chunk_tokens[np.repeat(eligible, chunk_counts(block))]
        zeros += int(np.maximum(tokens - 1, 0).sum())
    return zeros


def _gaps(view: EvidenceView, one: Tested) -> ItlSamples:
    """The gaps of the level, of requests submitted in its window, counted once."""
    known: dict[Any, ItlSamples] = view.evidence.counted.setdefault("gaps", {})
    key = (one.level.observation, _option(view))
    if key not in known:
        known[key] = itl_samples(one.inside, _option(view))
    return known[key]


def _of_level(view: EvidenceView, one: Tested) -> Mapping[str, Any]:
    """What ``itl.levels`` states of the level."""
    found = [entry for entry in view.need("itl.levels") if entry.get("level") == one.label]
    if not found:
        raise NoEvidenceError(f"itl.levels of {one.label}")
    entry: Mapping[str, Any] = found[0]
    return entry


def _disagreement(view: EvidenceView, family: str, statistics: tuple[str, ...]) -> str | None:
    """A statistic of some level that its gaps do not give; None where all agree."""
    for one in tested(view, SWEEP):
        gaps = _gaps(view, one)
        for statistic in statistics:
            name = f"{family}[{one.label}].{statistic}"
            stated, (again, n) = view.metric(name), _once_more(gaps, family, statistic)
            view.note(f"{name}.from_records", again)
            if not close(stated.point, again) or stated.n != n:
                return (
                    f"{name} is {stated.point} over {stated.n}, the tokens' instants give {again:g} over {n}"
                )
    return None


def _once_more(gaps: ItlSamples, family: str, statistic: str) -> tuple[float, int]:
    """The statistic worked out once more from the gaps, and its number of samples."""
    if family == "itl":
        return _of_gaps(gaps, statistic), gaps.counts.gaps
    values = jitter_ms(gaps) if family == "jitter" else longest_pause_ms(gaps)
    return percentile(values, statistic), len(values)


def _of_gaps(gaps: ItlSamples, statistic: str) -> float:
    value = itl_point(gaps, statistic)
    if value is None:
        raise NoEvidenceError("samples")
    return value


@check("P-5.4.3-itl-formula")
def itl_formula(view: EvidenceView) -> Answer:
    view.capability("itl.gaps")
    wrong = _disagreement(view, "itl", ("p50", "mean"))
    return view.answer(wrong is None, "arrivals of consecutive tokens, pooled over all requests", wrong or "")


@check("P-5.4.3-jitter")
def jitter(view: EvidenceView) -> Answer:
    view.capability("itl.per_request")
    wrong = _disagreement(view, "jitter", ("p50",))
    return view.answer(wrong is None, "sample standard deviation of the gaps of each request", wrong or "")


@check("P-5.4.3-max-pause")
def longest_pause(view: EvidenceView) -> Answer:
    view.capability("itl.per_request")
    wrong = _disagreement(view, "longest_pause", ("p50",))
    return view.answer(wrong is None, "the longest gap of each request", wrong or "")


@check("M-5.4.3-exclude-ttft")
def ttft_excluded(view: EvidenceView) -> Answer:
    """Every request has one gap fewer than arrivals: none of them begins at its submission."""
    view.capability("itl.without_ttft")
    for one in tested(view, SWEEP):
        gaps, stated = _gaps(view, one).counts.gaps, view.metric(f"itl[{one.label}].p50").n
        view.note(f"gaps of {one.label}", stated)
        if stated != gaps:
            return view.unmet(f"{one.label}: {stated} gaps, the tokens after the first are {gaps}")
    return view.met("the first gap of a request begins at its first token")


@check("P-5.4.4.1-aggregate")
def aggregate(view: EvidenceView) -> Answer:
    wrong = _disagreement(view, "itl", _STATISTICS)
    return view.answer(wrong is None, "percentiles, mean and standard deviation of every level", wrong or "")


@check("P-5.4.4.2-per-request")
def per_request(view: EvidenceView) -> Answer:
    tails = ("p50", "p95", "p99")
    wrong = _disagreement(view, "jitter", tails)
    wrong = wrong or _disagreement(view, "longest_pause", tails)
    return view.answer(wrong is None, "jitter and longest pause of every level", wrong or "")


@check("P-5.4.4.3-modality")
def modes(view: EvidenceView) -> Answer:
    """Peaks of a kernel density of log ITL, once more."""
    for one in tested(view, SWEEP):
        found = modality(_gaps(view, one).clusters)
        word = "multimodal" if found.multimodal else "unimodal"
        stated = _of_level(view, one).get("modality")
        view.note(f"modes_ms of {one.label}", list(found.modes))
        if stated != word:
            return view.unmet(f"{one.label} is called {stated}, its gaps are {word}")
    return view.met("the number of modes of every level, by peaks of a kernel density of log ITL")


@check("P-5.4.4.3-tail")
def tail(view: EvidenceView) -> Answer:
    """Class of the tail by the variation of the excesses over P90, and P99 over P50. Of many gaps of which
    hardly any is longer than P90 there is no tail to be called anything: the engine is even."""
    for one in tested(view, SWEEP):
        gaps, stated = _gaps(view, one), _of_level(view, one)
        middle = _of_gaps(gaps, "p50")
        if middle <= 0:
            return view.unmet(f"half of the gaps of {one.label} are zero: there is no P99/P50")
        ratio = _of_gaps(gaps, "p99") / middle
        variation = tail_variation(gaps.clusters)
        expected = None if variation is None else tail_class(variation)
        view.note(f"p99_over_p50 of {one.label}", ratio)
        if expected is None and gaps.counts.gaps < 10 * FEWEST_EXCESSES:
            return view.unmet(f"{one.label} has {gaps.counts.gaps} gaps: too few to tell their tail")
        if stated.get("tail_class") != expected:
            return view.unmet(
                f"the tail of {one.label} is called {stated.get('tail_class')}, it is {expected}"
            )
        if not close(stated.get("p99_over_p50"), ratio):
            return view.unmet(f"P99/P50 of {one.label} is {stated.get('p99_over_p50')}, not {ratio:g}")
    return view.met("tail and P99/P50 of every level")


@check("P-5.4.5-table")
def results_table(view: EvidenceView) -> Answer:
    """One per level, each with all rows of the draft."""
    results, levels = tables_called(view, "itl_results"), tested(view, SWEEP)
    lacking = [
        f"{title} in {table.title!r}"
        for table in results
        for title in _TITLES
        if not any(row[0].endswith(title) and len(row) > 1 and row[1].strip() for row in table.rows)
    ]
    if len(results) < len(levels):
        lacking.append(f"tables of {len(levels) - len(results)} levels")
    return view.answer(not lacking, "a table per level", f"lacking: {', '.join(lacking)}")
