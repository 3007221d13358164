"""Validity, the first of the three judgements: did the run measure the SUT, or our own shortcomings?

Each check gives one Finding. A voiding one that is not ok makes the run invalid: its numbers are not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.methodology.error_budget import (
    Budget,
    error_budget,
    given_up,
    kinds_of_failure,
    of_sessions,
    raised_budget,
    sessions_cut_off,
)
from pytest_llmbench.methodology.measuring.offered import SCHEDULE_CHECKS, begun_late, set_aside, shortest_run
from pytest_llmbench.methodology.measuring.replies import (
    answers_unscored,
    contradicted_counts,
    counted_differently,
    ended_early,
    gathered,
    other_models,
    unknown_finish,
)
from pytest_llmbench.methodology.measuring.warmup import (
    beyond_context,
    model_loaded,
    others_served,
    prefix_cache_hits,
    taken_late,
)
from pytest_llmbench.methodology.uncertainty import FULL_CORE_SHARE, empty_slots, late_reads
from pytest_llmbench.metrics.chunking import Runs, buffering, early_pause
from pytest_llmbench.metrics.server_side import (
    BY_SERVER,
    LEAST_READ_SHARE,
    MOST_CUT_SHORT,
    MOST_UNSHOWN_SHARE,
    contradicted_by_ns,
    cut_short,
    unshown_share,
)
from pytest_llmbench.model.facts import ClockFact, GuardrailFact, ManifestFact, TokenizerFact
from pytest_llmbench.model.judgement import Finding, Validity
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.observation import BUDGET_SPENT, TIME_IS_UP, Observation
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.record import LENGTH_FINISH, Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES, Records
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.latencies import streamed_tokens
from pytest_llmbench.workloads.stream import streamed

LOOP_LAG_WARNING_MS = 10.0
WAITED_SHARE = 0.1
"""Share of the time without a core from which on this machine may have made chunks arrive together."""
_BY_FILE = TOKEN_SOURCES.index(TokenSource.TOKENIZER_FILE)
_OUR_COUNT = [
    TOKEN_SOURCES.index(each) for each in (TokenSource.REFERENCE_TOKENIZER, TokenSource.CHUNK_COUNT)
]
"""Codes of the sources of replies whose usage tells nothing: input tokens are then our count as well."""
DRIFT_WARNING_SHARE = 0.10
"""The share by which the server's count of input tokens may differ from the requested ones without a warning.
Random ids that are sent as text are some 5 % more tokens to the very tokenizer that made it."""
SENT_AHEAD_SHARE = 0.9
"""The least share of replies pausing after the same one of their first pieces that means text sent ahead."""
FEWEST_TOKENS_APART, AGREEMENT_SHARE = 2, 0.01
"""The largest difference between two prompts, in tokens and as a share of their length, that counts as
agreement: a template may remove the space that a prompt begins with."""

BEYOND_OURS_NS, BEYOND_OURS_SHARE = 5_000_000, 0.01
"""Nanoseconds by which a time that the server reports may exceed the one measured here, and the share of
requests in which it may by more: server and client round, and stamp with clocks of their own."""


def validity(
    seen: Sequence[Observation],
    budget: Budget,
    budgeted: Sequence[int] | None = None,
    set_aside: Collection[int] = (),
) -> Validity:
    """All findings on the measured runs. ``budgeted``: the runs to which the error budget applies.

    ``set_aside``: those that the test itself left out because the generator fell behind in them.
    """
    findings = [
        check(run)
        for index, run in enumerate(seen)
        for check in (_PER_RUN if index not in set_aside else _OF_WHAT_CAME)
    ]
    if len(seen) > 1:
        findings = [*_worst_of_each(finding for finding in findings if finding is not None)]
    kept_in = [run for index, run in enumerate(seen) if index not in set_aside]
    offered = [run.records for run in kept_in]
    records = _together(offered)
    counted = [run for index, run in enumerate(seen) if budgeted is None or index in budgeted]
    loosened = tuple(dict.fromkeys(limit for run in seen for limit in run.host_limits.loosened))
    findings += [
        # Runs pass under looser limits than usual that would be void.
        Finding.of("host_limits", limits=loosened) if loosened else None,
        _not_offered(seen, set_aside),
    ]
    if counted:
        kept = _together([run.records for run in counted])
        findings += [error_budget(kept, budget), raised_budget(kept, budget), given_up(kept)]
    findings += [
        sessions_cut_off(counted, budget),
        shortest_run([run for run in counted if not any(run is seen[index] for index in set_aside)]),
        *(check(kept) for check in (_planned_cuts, beyond_context) if counted),
        _held_back(kept_in, min(run.host_limits.buffered_share for run in seen)) if seen else None,
        gathered(offered),
        *(check(seen) for check in (_length_drift, _answers_in_history, _tokenizer_agreement)),
        *(check(seen) for check in (_clock_stepped, _output_limits, ended_early, other_models, _sent_ahead)),
        *(check(records) for check in (_unshown_tokens, counted_differently, _sent_again)),
        *(check(records) for check in (contradicted_counts, unknown_finish, answers_unscored)),
        *(check(records) for check in (model_loaded, taken_late)),
        *(check(kept_in) for check in (prefix_cache_hits, others_served)),
        _server_times(records),
        _client_cpu(seen),
    ]
    return Validity(tuple(finding for finding in findings if finding is not None))


def _together(runs: Sequence[Records]) -> Records:
    """The requests of several runs without their chunks: joining these takes long, and a file."""
    return runs[0] if len(runs) == 1 else Records.concatenate([run.without_streams() for run in runs])


def validity_of(result: TestResult, budget: Budget) -> Validity:
    """The validity of a result: the findings that every run gets, and those of the test itself."""
    found = validity(result.observations, budget, result.budgeted, set_aside(result.levels))
    further = [each for each in (measured(result), _declared_otherwise(result)) if each is not None]
    own = {finding.check for finding in result.findings}
    # A test about the prefix cache says itself what it should and did find in there, and that of the times
    # between chunks how many shared a read at each level.
    said = {"prefix_cache_hits"} if any(check.startswith("cache_") for check in own) else set()
    said |= {"gathered_chunks"} if "coalesced_chunks" in own else set()
    general = [finding for finding in found.findings if finding.check not in said]
    if result.overload is not None:
        general = _of_overload(general, result)
    return Validity((*general, *result.findings, *further))


def _declared_otherwise(result: TestResult) -> Finding | None:
    """The finding on declarations that what was observed contradicts."""
    contradicted = result.facts.value(ManifestFact.CONTRADICTED)
    if not contradicted:
        return None
    told = tuple(
        Note.of(
            "contradicted",
            fact=key,
            declared=repr(each["declared"]),
            observed=None if each["observed"] is None else repr(each["observed"]),
        )
        for key, each in contradicted.items()
    )
    return Finding.of("declared_otherwise", value=len(told), limit=0, declarations=told)


def _of_overload(findings: Sequence[Finding], result: TestResult) -> list[Finding]:
    """The findings on an overloaded system. Requests that failed, that we gave up on, that were not sent as
    too many had failed, or that it was slow to take void nothing: they are data. What would tell it from a
    busy system is not said of it."""
    runs = result.observations
    void_none = {"error_budget", *(("achieved_rate",) if not any(map(begun_late, runs)) else ())}
    cuts = (BUDGET_SPENT, TIME_IS_UP)
    if all(run.interrupted is None or any(cut in run.interrupted for cut in cuts) for run in runs):
        void_none |= {"complete", "all_requests_recorded"}
    return [
        replace(finding, voids=False) if finding.check in void_none else finding
        for finding in findings
        if finding.check != "run_length"
    ]


def _worst_of_each(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One finding per check for a test with many levels: the first not ok, else that of the highest value."""
    by_check: dict[str, list[Finding]] = {}
    for finding in findings:
        by_check.setdefault(finding.check, []).append(finding)
    for same in by_check.values():
        bad = [finding for finding in same if not finding.ok]
        yield bad[0] if bad else max(same, key=lambda f: float("-inf") if f.value is None else f.value)


def _interrupted(run: Observation) -> Finding | None:
    if run.interrupted is None:
        return None
    return Finding.of(
        "complete",
        cause=run.interrupted,
        recorded=len(run.records),
        planned=run.plan.requests,
        may_be_more=_may_be_more(run),
    )


def _may_be_more(run: Observation) -> bool:
    """Whether more requests than planned may be sent: in a closed loop with a duration."""
    return run.plan.most_requests > run.plan.requests


def _complete(run: Observation) -> Finding:
    unsent = 0
    if run.plan.load.of_sessions:
        from pytest_llmbench.metrics.session_figures import unsent_turns  # few loads are of sessions

        unsent = unsent_turns(run.records)
    # A load that its own rule ended early is a result (memory pressure); a closed loop may send more.
    missing = 0 if run.stopped is not None else max(run.plan.requests - len(run.records) - unsent, 0)
    open_ended = _may_be_more(run)
    return Finding.of(
        "all_requests_recorded",
        missing == 0,
        len(run.records),
        run.plan.requests,
        may_be_more=open_ended,
        unsent=None if open_ended else unsent or None,
    )


def _promises_lengths(run: Observation) -> bool:
    return run.plan.workload.specification().get("input_length", {}).get("exact") is True


def _prompt_lengths(run: Observation) -> Finding | None:
    """The finding on prompt lengths, if the workload promises exact ones by the server's count; else None."""
    if not _promises_lengths(run):
        return None
    records = run.records
    counted = records.ok & (records.input_tokens != MISSING)
    off = (records.input_tokens - records.requested_input_tokens)[counted]
    wrong, most = int((off != 0).sum()), int(abs(off).max()) if len(off) else 0
    return Finding.of("prompt_lengths", wrong == 0, wrong, 0, prompts=len(off), most=most)


def _length_drift(seen: Sequence[Observation]) -> Finding | None:
    """The finding on the server's count of input tokens, where the workload promises no exact lengths. None
    where it counts none, and no tokenizer of its own is known; and where images or sounds have tokens too."""
    counted = asked = n = 0
    by_file = True
    for run in seen:
        stated, records = run.plan.workload.specification(), run.records
        has_media = any("media" in part for part in (stated, *stated.get("parts", ())))
        if has_media or _promises_lengths(run):
            continue
        known = records.ok & (records.input_tokens != MISSING) & (records.requested_input_tokens > 0)
        known &= ~np.isin(records.token_source, _OUR_COUNT)
        by_file &= bool((records.token_source[known] == _BY_FILE).all())
        counted += int(records.input_tokens[known].sum())
        asked += int(records.requested_input_tokens[known].sum())
        n += int(known.sum())
    if not n:
        return None
    ratio = counted / asked
    return Finding.of(
        "prompt_length_drift",
        abs(ratio - 1.0) <= DRIFT_WARNING_SHARE,
        ratio,
        1.0 + DRIFT_WARNING_SHARE,
        by_file=by_file,
        counted=counted / n,
        asked=asked / n,
        cut=ratio < LEAST_READ_SHARE,
    )


def _answers_in_history(seen: Sequence[Observation]) -> Finding | None:
    """The finding on answers in the history, by the server's count of how much prompts grow from turn to
    turn: less where answers are left out of what the model reads. None where it counts no prompts of
    sessions."""
    live = any(streamed(run.plan.workload).answers != "recorded" for run in seen)
    loads = of_sessions(seen)
    if not loads:
        return None
    from pytest_llmbench.metrics.session_figures import growth

    grown = [growth(records) for records in loads]
    turns, asked = sum(each.turns for each in grown), sum(each.asked for each in grown)
    if not turns:
        return None
    ratio = sum(each.counted for each in grown) / asked
    return Finding.of(
        "live_answers" if live else "recorded_answers",
        abs(ratio - 1.0) <= DRIFT_WARNING_SHARE,
        ratio,
        1.0 + DRIFT_WARNING_SHARE,
        counted=ratio * asked / turns,
        asked=asked / turns,
    )


def _tokenizer_agreement(seen: Sequence[Observation]) -> Finding | None:
    """The finding that compares the server's counts of prompts with those of the tokenizer said to be its
    own. The template and special tokens that it adds are as many for every prompt."""
    told = [found for run in seen if (found := run.facts.value(TokenizerFact.AGREEMENT)) is not None]
    if not told:
        return None
    prompts = sum(each["prompts"] for each in told)
    tokens = sum(each["tokens"] * each["prompts"] for each in told) / prompts
    least, most = min(each["least"] for each in told), max(each["most"] for each in told)
    limit = max(FEWEST_TOKENS_APART, AGREEMENT_SHARE * tokens)
    return Finding.of(
        "tokenizer_agreement",
        most - least <= limit,
        most - least,
        limit,
        least=least,
        most=most,
        tokens=tokens,
        prompts=prompts,
    )


def _output_limits(seen: Sequence[Observation]) -> Finding | None:
    """The finding on replies that ended before their limit though ``ignore_eos`` was asked for, at another
    limit, or beyond it, by the server's count: it ignores the field. None where there are none, or few at
    another limit."""
    counted = short = long = limited = 0
    for run in seen:
        records = run.records
        asked, got = records.requested_max_tokens, records.output_tokens
        known = records.ok & np.isin(records.token_source, BY_SERVER) & (asked > 0) & (got != MISSING)
        counted += int(known.sum())
        # Some servers let no hidden reasoning count against the limit.
        long += int((known & (streamed_tokens(records) > asked)).sum())
        limited += int(cut_short(records).sum())
        if run.plan.ignore_eos:
            # At the end of its context an engine says length.
            early = np.flatnonzero(known & (got < asked))
            short += sum(records.finish_reason[int(i)] not in LENGTH_FINISH for i in early)
    limited = limited if limited > MOST_CUT_SHORT * counted else 0
    count = short + limited + long
    if not count:
        return None
    kinds = {"output_short": short, "output_limited": limited, "output_beyond": long}
    told = tuple(Note.of(kind, count=found, replies=counted) for kind, found in kinds.items() if found)
    return Finding.of("output_limits", value=count, limit=0, told=told, miscounts=long > 0)


def _unshown_tokens(records: Records) -> Finding | None:
    """The finding on output tokens that certainly nobody received; None where they are few."""
    share = unshown_share(records)
    if share <= MOST_UNSHOWN_SHARE:
        return None
    return Finding.of("unshown_tokens", value=share, limit=MOST_UNSHOWN_SHARE)


def _sent_ahead(seen: Sequence[Observation]) -> Finding | None:
    """The finding on text sent ahead of the rest of the reply; None where few replies begin so. Loads whose
    prompts come all at once are left out: whoever has begun waits for the prompts of the others."""
    spaced = []
    for run in seen:
        load = run.plan.load
        if isinstance(load, OpenLoop) and load.request_rate is not None:
            spaced += [run.records] if load.arrival in ("poisson", "uniform") else []
    found = early_pause(spaced)
    if found.share < SENT_AHEAD_SHARE:
        return None
    return Finding.of(
        "sent_ahead",
        value=found.share,
        limit=SENT_AHEAD_SHARE,
        piece=found.after,
        pause=Amount(found.pause_ns / 1e6, "ms"),
        pace=Amount(found.pace_ns / 1e6, "ms"),
    )


def _loop_lag(run: Observation) -> Finding | None:
    lag = run.selfcheck.loop_lag_p99_ns
    if lag is None:
        return None
    return Finding.of("loop_lag", lag / 1e6 <= LOOP_LAG_WARNING_MS, lag / 1e6, LOOP_LAG_WARNING_MS)


def _drained(run: Observation) -> Finding:
    return Finding.of("drained", run.in_flight_at_end == 0, run.in_flight_at_end, 0)


_PER_RUN: tuple[Callable[[Observation], Finding | None], ...] = (
    _prompt_lengths,
    _interrupted,
    _complete,
    *SCHEDULE_CHECKS,
    empty_slots,
    late_reads,
    _loop_lag,
    _drained,
)

_OF_WHAT_CAME = (_prompt_lengths, _loop_lag, _drained)
"""The checks of a load that was set aside: not whether it was offered whole, nor how well it was measured."""


def measured(result: TestResult) -> Finding | None:
    """The finding that the search found no load that holds, so that no limit has a figure, with what the
    server said of the requests that failed; else None."""
    if any(estimate.point is not None for estimate in result.metrics.values()):
        return None
    records = [run.records for run in result.observations]
    failed, sent = (sum(int(getattr(own, what).sum()) for own in records) for what in ("failed", "judged"))
    if not failed:
        return Finding.of("measured")
    return Finding.of("measured.failed", failed=failed, sent=sent, **kinds_of_failure(records))


def _not_offered(seen: Sequence[Observation], set_aside: Collection[int]) -> Finding | None:
    """The finding on levels that were not offered: a warning while others were, void where none was."""
    if not set_aside:
        return None
    kinds = [(run.plan.load.model, run.plan.load.of_sessions) for run in seen]
    lost = {kinds[index] for index in set_aside}
    alike = [index for index, kind in enumerate(kinds) if kind in lost]
    labels = tuple(dict.fromkeys(seen[index].plan.label for index in set_aside))
    return Finding.of(
        "not_offered",
        value=len(set_aside),
        limit=0,
        voids=all(index in set_aside for index in alike),
        alike=len(alike),
        on_schedule=lost == {("open", False)},
        levels=labels,
    )


def _planned_cuts(records: Records) -> Finding | None:
    """The finding on requests that their users were to cut. That some failed before is a warning: they are in
    no other figure."""
    cut = records.select(~records.judged)
    if not len(cut):
        return None
    ends = Counter(end for end in cut.end_before_cut if end is not None)
    complete = ends.pop(Outcome.OK, 0)
    left = len(cut) - complete - ends.total()
    silent = sum(
        end is None and begun == MISSING
        for end, begun in zip(cut.end_before_cut, cut.first_content_ns, strict=True)
    )
    kinds = tuple(Note.of("outcome", count=count, name=str(name)) for name, count in ends.items())
    return Finding.of(
        "planned_cuts",
        not ends,
        len(cut) / len(records),
        cut=len(cut),
        requests=len(records),
        left=left,
        silent=silent,
        complete=complete,
        failed=ends.total() or None,
        kinds=kinds,
    )


def filters_output(run: Observation) -> bool:
    """Whether an output filter was on: it has to read before it lets pass, so holding back is what the system
    does, and TTFT tells it."""
    return bool(run.facts.value(GuardrailFact.OUTPUT_FILTER) == "enabled")


def _held_back(runs: Sequence[Observation], limit: float) -> Finding | None:
    """The finding on buffered replies, of runs without an output filter; of those with one, where there are
    no others, it voids nothing."""
    bare = [run for run in runs if not filters_output(run)]
    own = bare or runs
    late = any(map(read_late, own))
    return stream_fidelity([run.records for run in own], limit, late=late, filtered=not bare)


def read_late(run: Observation) -> bool:
    """Whether this machine read so late that chunks which came apart may have waited for one read."""
    lag, waited = run.selfcheck.loop_lag_p99_ns, run.selfcheck.waited_for_core_share
    late = (lag is not None and lag / 1e6 > LOOP_LAG_WARNING_MS) or (waited or 0.0) > WAITED_SHARE
    return run.interrupted is None and late


def stream_fidelity(
    records: Runs, limit: float, *, late: bool = False, filtered: bool = False
) -> Finding | None:
    """The finding on buffered replies: a proxy that holds chunks back makes TTFT the end-to-end latency.

    ``limit``: the share of the replies that may arrive all at once. ``late``: they were read late, which
    alone can have made them so. ``filtered``: all went through an output filter, which holds them back.
    """
    found = buffering(records)
    if not found.replies:
        return None
    ok = found.share <= limit
    case = "stream_fidelity.late" if late else "stream_fidelity"
    case = "stream_fidelity.filtered" if filtered else case
    return Finding.of(case, ok, found.share, limit, voids=ok or not filtered)


def _server_times(records: Records) -> Finding | None:
    """The finding that compares the server's own times of requests with ours; None where it reports none."""
    beyond_ns = contradicted_by_ns(records)
    if not len(beyond_ns):
        return None
    wrong = int((beyond_ns > BEYOND_OURS_NS).sum())
    share = wrong / len(beyond_ns)
    return Finding.of(
        "server_times",
        share <= BEYOND_OURS_SHARE,
        share,
        BEYOND_OURS_SHARE,
        wrong=wrong,
        requests=len(beyond_ns),
        most=Amount(int(beyond_ns.max()) / 1e6, "ms") if wrong else None,
    )


def _clock_stepped(seen: Sequence[Observation]) -> Finding | None:
    """The finding on a wall clock that was set during a load; None where it was not."""
    stepped_ms = [found for run in seen if (found := run.facts.value(ClockFact.STEPPED_MS)) is not None]
    worst_ms = max(stepped_ms, key=abs, default=None)
    return None if worst_ms is None else Finding.of("clock_stepped", value=worst_ms, limit=0)


def _sent_again(records: Records) -> Finding | None:
    """The finding on requests that were sent again on a new connection; None where there were none.

    The kept connection had ended before a byte of them got there.
    """
    count = int(records.stale_retries.clip(0).sum())
    return Finding.of("sent_again", value=count, limit=0, requests=len(records)) if count else None


def _client_cpu(seen: Sequence[Observation]) -> Finding | None:
    shares = [run.selfcheck.cpu_share for run in seen if run.selfcheck.cpu_share is not None]
    if not shares:
        return None
    worst = max(shares)
    return Finding.of("client_cpu", worst <= FULL_CORE_SHARE, worst, FULL_CORE_SHARE)
