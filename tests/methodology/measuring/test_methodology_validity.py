"""Valid? Each check, once kept and once broken."""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_runs import answer
from replayed_sut import ReplayedSUT

from pytest_llmbench.methodology.catalogue import TESTS
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity, validity_of
from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Finding, Validity, ValidityVerdict
from pytest_llmbench.model.observation import HostLimits, Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop, SessionSlots
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import MISSING, OUTCOMES, TOKEN_SOURCES, Records
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.synthetic import SyntheticWorkload


def plan(rate: float | None = 20.0, requests: int = 100) -> LoadPlan:
    load = OpenLoop(rate) if rate is not None else ClosedLoop(4)
    return LoadPlan("measure", workload("synthetic-uniform"), load, requests, seed=42)


def finding(judged: Validity, check: str) -> Finding:
    return next(found for found in judged.findings if found.check == check)


def test_a_clean_run_is_valid() -> None:
    judged = validity([answer(plan())], Budget())
    assert judged.verdict is ValidityVerdict.VALID
    assert judged.reasons == ()


@pytest.mark.parametrize(
    ("lag_ms", "rate", "ok"), [(9.9, 20, True), (10.1, 20, False), (99, 1, True), (101, 1, False)]
)
def test_send_lag_limit_follows_the_rate(lag_ms: float, rate: float, ok: bool) -> None:
    seen = answer(plan(rate), selfcheck=SelfCheck(send_lag_p99_ns=round(lag_ms * 1e6)))
    judged = validity([seen], Budget())
    assert finding(judged, "send_lag").ok is ok
    assert (judged.verdict is ValidityVerdict.VALID) is ok


def test_looser_limits_of_the_host_are_told_and_stricter_ones_are_not() -> None:
    own = HostLimits(send_lag_ns=10**18, rate_share=0.99, latency_ms=1.0)
    judged = validity([answer(plan()), replace(answer(plan()), host_limits=own)], Budget())
    assert judged.verdict is ValidityVerdict.VALID
    told = finding(judged, "host_limits")
    assert not told.ok
    assert "(send_lag_ns 1e+18, usually 1e+07)" in told.message
    stricter = replace(answer(plan()), host_limits=HostLimits(rate_share=0.99, latency_ms=1.0))
    assert not [found for found in validity([stricter], Budget()).findings if found.check == "host_limits"]


def test_a_growing_lag_voids() -> None:
    check = SelfCheck(send_lag_first_tenth_p50_ns=100_000, send_lag_last_tenth_p50_ns=2_800_000)
    assert validity([answer(plan(), selfcheck=check)], Budget()).verdict is ValidityVerdict.INVALID


def test_a_lag_that_grew_over_a_few_requests_is_told_but_voids_nothing() -> None:
    """One disturbance near the end makes the median of the last two or three."""
    check = SelfCheck(send_lag_first_tenth_p50_ns=100_000, send_lag_last_tenth_p50_ns=2_800_000)
    judged = validity([answer(plan(requests=99), selfcheck=check)], Budget())
    assert not finding(judged, "send_lag_growth").ok
    assert judged.verdict is not ValidityVerdict.INVALID


def test_closed_loop_has_no_schedule_to_keep() -> None:
    judged = validity([answer(plan(None), selfcheck=SelfCheck(send_lag_p99_ns=10**9))], Budget())
    assert judged.verdict is ValidityVerdict.VALID


@pytest.mark.parametrize(
    ("failures", "budget", "ok"),
    [(1, 0.01, True), (2, 0.01, False), (2, 0.02, True), (99, 1.0, True), (100, 1.0, False)],
)
def test_error_budget(failures: int, budget: float, ok: bool) -> None:
    judged = validity([answer(plan(), failures=failures)], Budget(budget))
    assert (judged.verdict is ValidityVerdict.VALID) is ok
    assert "canned failure" in finding(judged, "error_budget").message


def test_nothing_sent_is_not_within_budget() -> None:
    seen = replace(answer(plan()), records=Records.from_rows(()))
    assert not finding(validity([seen], Budget(1.0)), "error_budget").ok


def test_interrupted_run_is_void_and_says_why() -> None:
    judged = validity([answer(plan(), interrupted="Ctrl-C")], Budget())
    assert judged.verdict is ValidityVerdict.INVALID
    assert "Ctrl-C" in judged.reasons[0]


def test_missing_records_void() -> None:
    seen = answer(plan(requests=100))
    short = replace(seen, plan=plan(requests=101))
    assert not finding(validity([short], Budget()), "all_requests_recorded").ok


def buffered(seen: Observation) -> Observation:
    """The same stream as a proxy would deliver it: every chunk with the last one."""
    records = seen.records
    ends = records.last_content_ns
    counts = records.chunk_offsets[1:] - records.chunk_offsets[:-1]
    return replace(
        seen,
        records=replace(records, first_content_ns=ends.copy(), chunk_ns=ends.repeat(counts)),
    )


def test_a_buffered_stream_voids() -> None:
    judged = validity([buffered(answer(plan()))], Budget())
    assert judged.verdict is ValidityVerdict.INVALID
    assert "buffers the stream" in finding(judged, "stream_fidelity").message


@pytest.mark.parametrize("beside_others", [False, True])
def test_an_output_filter_that_holds_whole_replies_back_voids_nothing(beside_others: bool) -> None:
    """It has to read before it lets pass. What is held back without one is still told."""
    filtered = Facts.of(Origin.DECLARED, {"guardrails.output_filter": "enabled"})
    held = replace(buffered(answer(plan())), facts=filtered)
    others = [answer(plan())] * beside_others
    judged = validity([held, *others], Budget())
    assert not [one for one in judged.findings if one.check == "stream_fidelity" and one.voids and not one.ok]
    if not others:
        assert "an output filter is on" in finding(judged, "stream_fidelity").message
    mixed = validity([held, buffered(answer(plan()))], Budget())
    assert "buffers the stream" in finding(mixed, "stream_fidelity").message


def test_an_answer_that_is_short_beside_its_prompt_is_no_buffered_stream() -> None:
    """A minute to the first token: all that follows lies within 2 % of the latency, a chunk at a time."""
    seen = answer(plan())
    submitted_ns = seen.records.submitted_ns - 60_000_000_000
    early = replace(seen, records=replace(seen.records, submitted_ns=submitted_ns))
    assert finding(validity([early], Budget()), "stream_fidelity").ok
    assert not finding(validity([buffered(early)], Budget()), "stream_fidelity").ok


def test_late_sends_void() -> None:
    seen = answer(plan())
    stretched = replace(
        seen.records, submitted_ns=seen.records.submitted_ns * 2 - seen.records.submitted_ns[0]
    )
    judged = validity([replace(seen, records=stretched)], Budget())
    assert not finding(judged, "achieved_rate").ok


def test_a_wall_clock_that_was_set_is_a_warning_with_the_largest_step() -> None:
    calm = answer(plan())
    steps = [
        replace(calm, facts=calm.facts | Facts.of(Origin.GENERATOR, {"clock.stepped_ms": moved_ms}))
        for moved_ms in (20.0, -3600.0)
    ]
    found = finding(validity([calm, *steps], Budget()), "clock_stepped")
    assert (found.ok, found.voids, found.value) == (False, False, -3600.0)
    assert "jumped by -3600 ms while a load ran" in found.message
    assert not [each for each in validity([calm], Budget()).findings if each.check == "clock_stepped"]


def test_requests_that_were_sent_again_are_a_warning_with_their_number() -> None:
    seen = answer(plan())
    again = np.where(np.arange(len(seen.records)) < 3, 1, 0)
    judged = validity([replace(seen, records=replace(seen.records, stale_retries=again))], Budget())
    found = finding(judged, "sent_again")
    assert (found.ok, found.voids, found.value) == (False, False, 3)
    assert found.message.startswith("3 of 100 requests were sent again")
    assert not [found for found in validity([seen], Budget()).findings if found.check == "sent_again"]


def test_requests_that_waited_for_the_model_to_be_loaded_are_a_warning_with_their_number() -> None:
    """A model that is there is found within milliseconds; one that was thrown out is loaded anew."""
    seen = answer(plan())
    assert not [found for found in validity([seen], Budget()).findings if found.check == "model_loaded"]
    waits_ns = np.where(np.arange(len(seen.records)) < 10, MISSING, 5_000_000)

    def found(waits: Any) -> Finding:
        told = replace(seen, records=replace(seen.records, model_load_ns=waits))
        judged = validity([told], Budget())
        assert judged.verdict is ValidityVerdict.VALID
        return finding(judged, "model_loaded")

    warm = found(waits_ns)
    assert (warm.ok, warm.value) == (True, 0)
    assert warm.message == "0 of 90 requests waited for the server to load the model, 5 ms at most"
    slow_ns = waits_ns.copy()
    slow_ns[[20, 21]] = 250_000_001, 8_400_000_000
    cold = found(slow_ns)
    assert (cold.ok, cold.voids, cold.value) == (False, False, 2)
    assert cold.message.startswith(
        "2 of 90 requests waited for the server to load the model, 8400 ms at most"
    )
    assert "keep_alive" in cold.message


@pytest.mark.parametrize(("cached", "ok"), [(0, True), (1, True), (2, False), (100, False)])
def test_a_server_that_tells_longer_times_than_passed_here_is_not_believed(cached: int, ok: bool) -> None:
    """A cache of replies before the engine sends the times of another request with them."""
    seen = answer(plan())
    assert not [found for found in validity([seen], Budget()).findings if found.check == "server_times"]
    records = seen.records
    passed_ns = records.first_nonempty_ns - records.submitted_ns
    again = np.arange(len(records)) < cached
    told_ns = np.where(again, passed_ns + 30_000_000, passed_ns) - 1_000_000
    told = replace(records, prefill_ns=told_ns, queue_wait_ns=np.full(len(records), 1_000_000))
    judged = validity([replace(seen, records=told)], Budget())
    assert judged.verdict is ValidityVerdict.VALID
    found = finding(judged, "server_times")
    assert (found.ok, found.value) == (ok, cached / 100)
    by = ", by up to 30 ms" if cached else ""
    assert found.message.startswith(
        f"by the server's own times, {cached} of 100 requests took longer inside it than until their first "
        f"output arrived{by}"
    )
    assert ("reply cache" in found.message) is not ok


def test_cache_hits_on_random_prompts_are_a_warning() -> None:
    seen = answer(plan())
    hits = replace(seen.records, cached_tokens=seen.records.input_tokens // 2)
    judged = validity([replace(seen, records=hits)], Budget())
    assert not finding(judged, "prefix_cache_hits").ok
    assert judged.verdict is ValidityVerdict.VALID


@pytest.mark.parametrize(("times", "ok"), [(1.0, True), (1.04, True), (1.79, False), (0.85, False)])
def test_lengths_that_drift_are_a_warning_with_its_size(times: float, ok: bool) -> None:
    seen = answer(plan())
    asked = np.full(len(seen.records), 200)
    counted = np.round(asked * times).astype(np.int64)
    told = replace(seen.records, input_tokens=counted, requested_input_tokens=asked)
    judged = validity([replace(seen, records=told)], Budget())
    drift = finding(judged, "prompt_length_drift")
    assert drift.ok is ok
    assert drift.value == pytest.approx(times, abs=0.005)
    assert f"{200 * times:.0f} input tokens per prompt, 200 were requested" in drift.message
    assert judged.verdict is ValidityVerdict.VALID


@pytest.mark.parametrize(("times", "cut"), [(0.6, False), (0.4, True)])
def test_a_server_that_counts_too_little_may_read_a_part(times: float, cut: bool) -> None:
    seen = answer(plan())
    asked = np.full(len(seen.records), 200)
    counted = np.round(asked * times).astype(np.int64)
    told = replace(seen.records, input_tokens=counted, requested_input_tokens=asked)
    drift = finding(validity([replace(seen, records=told)], Budget()), "prompt_length_drift")
    assert ("reads only a part of the prompts" in drift.message) is cut


@pytest.mark.parametrize(("unshown", "told"), [(0, False), (5, False), (6, True), (90, True)])
def test_tokens_that_nobody_received_are_a_warning_with_their_share(unshown: int, told: bool) -> None:
    seen = answer(plan())
    count = np.full(len(seen.records), 100)
    changed = replace(seen.records, output_tokens=count, unshown_tokens=count * 0 + unshown)
    judged = validity([replace(seen, records=changed)], Budget())
    found = [each for each in judged.findings if each.check == "unshown_tokens"]
    assert [each.value for each in found] == ([unshown / 100] if told else [])
    assert judged.verdict is ValidityVerdict.VALID


def sent_ahead(seen: Observation, share: float = 1.0) -> Observation:
    """The first token of so many replies comes with the status line, a second before the others."""
    records = seen.records
    ahead = np.arange(len(records)) < share * len(records)
    firsts = records.chunk_offsets[:-1]
    chunk_ns = records.chunk_ns.copy()
    chunk_ns[firsts[ahead]] -= 1_000_000_000
    begun = {
        name: np.where(ahead, chunk_ns[firsts], getattr(records, name))
        for name in ("first_content_ns", "first_nonempty_ns", "first_event_ns")
    }
    submitted_ns = records.submitted_ns - 2_000_000_000
    return replace(seen, records=replace(records, chunk_ns=chunk_ns, submitted_ns=submitted_ns, **begun))


@pytest.mark.parametrize(
    ("share", "rate", "told"), [(1.0, 20.0, True), (0.85, 20.0, False), (1.0, None, False)]
)
def test_a_first_token_ahead_of_the_others_is_a_warning(share: float, rate: float | None, told: bool) -> None:
    """In a closed loop all prompts come at once at first, and whoever has begun waits for the others'."""
    judged = validity([sent_ahead(answer(plan(rate)), share)], Budget())
    found = [each for each in judged.findings if each.check == "sent_ahead"]
    assert bool(found) is told
    assert not any(each.check == "sent_ahead" for each in validity([answer(plan(rate))], Budget()).findings)
    if told:
        assert "so TTFT does not show when a user can begin to read" in found[0].message


def test_a_drift_says_who_counted() -> None:
    seen = answer(plan())
    seen = replace(seen, records=replace(seen.records, requested_input_tokens=np.full(100, 200)))
    by_file = np.full(len(seen.records), TOKEN_SOURCES.index(TokenSource.TOKENIZER_FILE), dtype=np.int8)
    told = replace(seen, records=replace(seen.records, token_source=by_file))
    assert finding(validity([seen], Budget()), "prompt_length_drift").message.startswith("the server counts ")
    drift = finding(validity([told], Budget()), "prompt_length_drift")
    assert drift.message.startswith("the tokenizer file counts ")


@pytest.mark.parametrize("source", [TokenSource.REFERENCE_TOKENIZER, TokenSource.CHUNK_COUNT])
def test_a_count_of_ours_is_no_drift_of_the_server(source: TokenSource) -> None:
    seen = answer(plan())
    ours = np.full(len(seen.records), TOKEN_SOURCES.index(source), dtype=np.int8)
    asked = np.full(len(seen.records), 200)
    told = replace(seen, records=replace(seen.records, token_source=ours, requested_input_tokens=asked))
    assert "prompt_length_drift" not in {each.check for each in validity([told], Budget()).findings}


@pytest.mark.parametrize("check", [{"loop_lag_p99_ns": 50_000_000}, {"waited_for_core_share": 0.5}])
def test_replies_that_this_machine_read_late_blame_nothing_between(check: dict[str, float]) -> None:
    seen = buffered(answer(plan()))
    late = replace(seen, selfcheck=replace(seen.selfcheck, **check))
    for runs in ([late], [late, seen]):
        said = finding(validity(runs, Budget()), "stream_fidelity").message
        assert "this machine read them late" in said
        assert "something between" not in said


def test_where_the_server_counts_nothing_no_drift_is_known() -> None:
    seen = answer(plan())
    silent = replace(seen.records, input_tokens=np.full(len(seen.records), MISSING))
    judged = validity([replace(seen, records=silent)], Budget())
    assert not [found for found in judged.findings if found.check == "prompt_length_drift"]


def of_five_turns(records: Records, adds: float, *, offset: int = 0) -> Records:
    """As turns of sessions, each of which was to add 200 tokens and adds so many."""
    number = np.arange(100)
    return replace(
        records,
        session=number // 5,
        turn=number % 5 + 1,
        requested_input_tokens=50 + 200 * (number % 5),
        input_tokens=offset + 50 + np.round(adds * (number % 5)).astype(np.int64),
    )


LIVE = SessionWorkload("chats", Fixed(5), Fixed(50), Fixed(150), answers="live")


@pytest.mark.parametrize(
    ("sessions", "offset", "times", "ok", "words"),
    [
        *(
            ({}, offset, times, ok, f"a turn adds {200 * times:.0f} tokens by the server's count")
            for offset, times, ok in (
                (0, 1.0, True), (70, 1.0, True), (0, 1.09, True), (0, 0.6, False), (5, 1.2, False)
            )
        ),
        ({"workload": LIVE}, 0, 0.7, False, "with the live answer before it, a turn adds 140 tokens"),
    ],
)  # fmt: skip
def test_what_turns_add_is_held_against_the_server(
    sessions: dict[str, Any], offset: int, times: float, ok: bool, words: str
) -> None:
    """``offset``: what a template puts before every prompt is no disagreement about answers."""
    seen = answer(plan())
    told = of_five_turns(seen.records, 200 * times, offset=offset)
    of_sessions = replace(seen, plan=seen.plan.with_(load=SessionSlots(2), **sessions), records=told)
    answers = {"recorded_answers", "live_answers"}
    (found,) = (each for each in validity([of_sessions], Budget()).findings if each.check in answers)
    assert found.check == ("live_answers" if sessions else "recorded_answers")
    assert (found.ok, found.voids, found.value) == (ok, False, pytest.approx(times))
    assert words in found.message
    assert not answers & {each.check for each in validity([seen], Budget()).findings}


def agreed(prompts: int, tokens: float, least: int, most: int) -> Observation:
    told = {"prompts": prompts, "tokens": tokens, "least": least, "most": most}
    return replace(answer(plan()), facts=Facts.of(Origin.MEASURED, {"tokenizer.agreement": told}))


@pytest.mark.parametrize(
    ("runs", "value", "limit", "ok"),
    [
        ([agreed(32, 100.0, 11, 11)], 0, 2, True),
        ([agreed(32, 100.0, 0, 2)], 2, 2, True),
        ([agreed(32, 100.0, -1, 2)], 3, 2, False),
        ([agreed(32, 1000.0, -5, 5)], 10, 10, True),
        ([agreed(32, 100.0, 11, 11), agreed(32, 100.0, 30, 30)], 19, 2, False),
        ([answer(plan()), agreed(10, 400.0, 3, 3), agreed(30, 800.0, 10, 10)], 7, 7, True),
    ],
)
def test_a_tokenizer_that_is_not_the_server_s_is_a_warning_with_its_size(
    runs: list[Observation], value: int, limit: float, ok: bool
) -> None:
    judged = validity(runs, Budget())
    found = finding(judged, "tokenizer_agreement")
    assert (found.value, found.limit, found.ok, found.voids) == (value, limit, ok, False)
    assert ("its vocabulary differs" in found.message) is not ok


def test_without_the_tokenizer_of_a_file_nothing_is_said_of_it() -> None:
    judged = validity([answer(plan())], Budget())
    assert not [found for found in judged.findings if found.check == "tokenizer_agreement"]


@pytest.mark.parametrize(
    ("ignore_eos", "off", "finish", "said"),
    [
        (True, -1, "stop", "1 of 100 replies ended before max_tokens, although ignore_eos was set"),
        (True, -1, "length", None),
        (False, -1, "stop", None),
        (False, 1, "length", "1 of 100 replies are longer than max_tokens"),
        (True, 0, "stop", None),
    ],
)
@pytest.mark.parametrize("source", [TokenSource.SERVER_USAGE, TokenSource.REFERENCE_TOKENIZER])
def test_a_server_that_ignores_how_long_replies_are_to_be(
    ignore_eos: bool, off: int, finish: str, said: str | None, source: TokenSource
) -> None:
    seen = answer(replace(plan(), ignore_eos=ignore_eos))
    tokens = seen.records.requested_max_tokens.copy()
    tokens[3] += off
    told = replace(
        seen.records,
        output_tokens=tokens,
        token_source=np.full(100, TOKEN_SOURCES.index(source), dtype=np.int8),
        finish_reason=[finish] * 100,
    )
    judged = validity([replace(seen, records=told)], Budget())
    found = [found for found in judged.findings if found.check == "output_limits"]
    if said is None or source is TokenSource.REFERENCE_TOKENIZER:  # what we count proves nothing
        assert found == []
        return
    assert (found[0].ok, found[0].voids, found[0].value) == (False, False, 1)
    assert found[0].message.startswith(said)


@pytest.mark.parametrize(("limited", "told"), [(0, 0), (1, 0), (2, 2), (100, 100)])
def test_replies_that_end_at_a_limit_of_the_servers_own(limited: int, told: int) -> None:
    """One in a hundred may: at the end of a context, say."""
    seen = answer(plan())
    tokens = seen.records.requested_max_tokens.copy()
    tokens[:limited] //= 2
    changed = replace(seen.records, output_tokens=tokens, finish_reason=["length"] * 100)
    judged = validity([replace(seen, records=changed)], Budget())
    found = [each for each in judged.findings if each.check == "output_limits"]
    assert [each.value for each in found] == ([told] if told else [])
    assert all(each.message.startswith(f"{told} of 100 replies ended at a limit below") for each in found)


class _Exact(SyntheticWorkload):
    def specification(self) -> Mapping[str, Any]:
        stated = dict(SyntheticWorkload.specification(self))
        return stated | {"input_length": {**stated["input_length"], "exact": True}}


@pytest.mark.parametrize("off", [0, 3])
def test_exact_lengths_are_verified_in_every_record(off: int) -> None:
    exact = LoadPlan("measure", _Exact("exact-64", Fixed(64), Fixed(8)), ClosedLoop(1), 20, 42)
    seen = answer(exact)
    tokens = seen.records.input_tokens.copy()
    tokens[7] += off
    requested = np.full(20, 64)
    records = replace(seen.records, input_tokens=tokens, requested_input_tokens=requested)
    judged = validity([replace(seen, records=records)], Budget())
    assert finding(judged, "prompt_lengths").ok is (off == 0)
    assert bool(judged.reasons) is (off != 0)


def cut_run(ends: list[str | None], *, failures: int = 0) -> Observation:
    """A run of 100 requests, of which the last are to be cut, and end so."""
    seen = answer(plan(), failures=failures)
    outcome, cut_after = seen.records.outcome.copy(), seen.records.cut_after_ns.copy()
    told: list[str | None] = [None] * len(seen.records)
    outcome[-len(ends) :], cut_after[-len(ends) :] = OUTCOMES.index(Outcome.CUT_BY_USER), 50_000_000
    told[-len(ends) :] = ends
    records = replace(seen.records, outcome=outcome, cut_after_ns=cut_after, end_before_cut=told)
    return replace(seen, records=records)


def test_what_users_cut_is_told_and_is_in_no_error_budget() -> None:
    judged = validity([cut_run([None] * 25 + ["ok"] * 5)], Budget(max_error_share=0.0))
    assert judged.verdict is ValidityVerdict.VALID
    told = finding(judged, "planned_cuts")
    assert (told.ok, told.voids, told.value) == (True, False, 0.3)
    assert "the plan cuts 30 of 100 requests" in told.message
    assert "25 were cut, 0 of them before their first token, and 5 replies were complete" in told.message
    assert finding(judged, "error_budget").message.startswith("0 of 70 requests failed")
    assert "planned_cuts" not in {found.check for found in validity([answer(plan())], Budget()).findings}


def test_what_failed_before_the_cut_is_a_warning() -> None:
    judged = validity([cut_run([None] * 25 + ["http_error"] * 4 + ["timeout"])], Budget(max_error_share=0.0))
    assert judged.verdict is ValidityVerdict.VALID
    told = finding(judged, "planned_cuts")
    assert not told.ok
    assert "5 had failed before it (4 http_error, 1 timeout)" in told.message


def test_the_budget_is_a_share_of_those_who_wait() -> None:
    """3 of 50 failed; of all 100 that would be within the budget."""
    judged = validity([cut_run([None] * 50, failures=3)], Budget(max_error_share=0.05))
    assert judged.verdict is ValidityVerdict.INVALID
    assert "3 of 50 requests failed" in finding(judged, "error_budget").message


def queued(slots: int, utilisation: float, requests: int = 1000, seed: int = 1) -> Observation:
    """Services of 1 s on average, exponential, of so many slots, first come first served."""
    random = np.random.default_rng(seed)
    sent_s = np.cumsum(random.exponential(1 / slots / utilisation, requests))
    free, ended_s = [0.0] * slots, np.empty(requests)
    for place, (at, service) in enumerate(zip(sent_s, random.exponential(size=requests), strict=True)):
        ended_s[place] = max(at, heapq.heappop(free)) + service
        heapq.heappush(free, ended_s[place])
    seen = answer(plan(slots * utilisation, requests))
    stamps = {"scheduled_ns": sent_s, "submitted_ns": sent_s, "finished_ns": ended_s}
    return replace(
        seen,
        records=replace(
            seen.records, **{name: (1e9 * at).astype(np.int64) + 1 for name, at in stamps.items()}
        ),
    )


def test_a_run_of_many_relaxation_times_is_long_enough() -> None:
    found = finding(validity([queued(8, 0.75)], Budget()), "run_length")
    assert found.ok
    assert not found.voids
    assert found.value is not None
    assert found.value > 5
    assert "too few" not in found.message


def test_a_short_run_of_a_busy_system_is_told_with_the_number_that_would_do() -> None:
    judged = validity([queued(8, 0.75), queued(8, 0.93, seed=5)], Budget())
    assert judged.verdict is ValidityVerdict.VALID
    short = finding(judged, "run_length")
    assert not short.ok
    assert short.value is not None
    assert short.limit is not None
    assert short.value < short.limit == pytest.approx(1.92, abs=0.01)
    assert "upper ends of means are open" in short.message
    (enough,) = map(int, re.findall(r"about (\d+) requests would do", short.message))
    assert enough == math.ceil(short.limit / short.value * 10) * 100
    assert finding(validity([queued(8, 1.2)], Budget()), "run_length").message.endswith(
        "more than 16000 requests would be needed, or a lower rate"
    )


def test_replies_that_take_long_are_no_queue() -> None:
    """As many as come in 5 s are under way, and none waits for another: were they all slots that there are,
    the system would seem to be full."""
    random = np.random.default_rng(3)
    sent_s = np.cumsum(random.exponential(1 / 50, 2000))
    service_s = 5 * np.exp(random.normal(0, 0.3, 2000))
    seen = answer(plan(50.0, 2000))
    stamps = {
        "scheduled_ns": sent_s,
        "submitted_ns": sent_s,
        "first_content_ns": sent_s + 0.1 * np.exp(random.normal(0, 0.3, 2000)),
        "finished_ns": sent_s + service_s,
    }
    records = replace(seen.records, **{name: (1e9 * at).astype(np.int64) + 1 for name, at in stamps.items()})
    judged = validity([replace(seen, records=records)], Budget())
    assert "run_length" not in {found.check for found in judged.findings}
    for family, samples in (("ttft", latency.ttft_ms(records)), ("latency", np.asarray(1e3 * service_s))):
        plain, among = distribution(family, samples), latency.distribution_of(family, [records])
        for statistic in ("mean", "p50", "p95"):
            upper, before = among[f"{family}.{statistic}"].upper, plain[f"{family}.{statistic}"].upper
            assert upper is not None
            assert before is not None
            assert before <= upper < 1.15 * before


def test_runs_that_are_not_about_a_queue_have_no_length() -> None:
    def checks(seen: Observation) -> set[str]:
        return {found.check for found in validity([seen], Budget()).findings}

    busy = queued(8, 0.93, seed=5)
    assert "run_length" in checks(busy)
    assert "run_length" not in checks(replace(busy, plan=plan(None, 1000)))
    assert "run_length" not in checks(queued(8, 0.93, requests=499, seed=5))
    # Each has a slot of its own: no queue that could be longer.
    assert finding(validity([queued(200, 0.1)], Budget()), "run_length").ok
    set_aside = validity([busy], Budget(), set_aside={0})
    assert "run_length" not in {found.check for found in set_aside.findings}


def test_what_the_server_said_stands_where_no_load_was_found() -> None:
    """Every probe behind the warm-up is refused: the words of the server, not of a search without result."""
    sut = ReplayedSUT("fast?fault=http_error&fault_status=400&fault_rate=1&fault_from=30")
    result = sut.measure(TESTS["itl"], "quick")
    told = finding(validity_of(result, Budget()), "measured")
    assert told.voids
    assert "found no load that the system sustains: " in told.message
    assert " requests failed (" in told.message
    assert "first error is: HTTP 400 Bad Request: a fault of the scenario" in told.message
