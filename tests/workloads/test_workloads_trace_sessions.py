"""Sessions of a trace: exact lengths, the recorded causes, and what prompts have in common."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest, Turn, prompt_lengths
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import realised_sharing
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import check_specification
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256
from pytest_llmbench.workloads.sessions import ProbeSessions, turns_of
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, TraceSessionWorkload

WHERE = DatasetIdentity("two agents and a chat", "1", "all")
AGENT = (
    TracedTurn(40, 5, hash_ids=(0, 1, 2)),
    TracedTurn(60, 6, (1,), 250.0, (0, 1, 3, 4)),
    TracedTurn(50, 7, (1,), hash_ids=(0, 1, 2, 5)),
    TracedTurn(33, 8, (2, 3), hash_ids=(0, 1, 3)),
)
CHAT = (
    TracedTurn(30, 10),
    TracedTurn(55, 4, (1,), 4000.0),
    TracedTurn(70, 4, (2,)),
    TracedTurn(58, 4, (3,)),  # shorter than what came before
    TracedTurn(62, 4, (4,), reset=True),
    TracedTurn(64, 4, (5,)),  # longer, but not by the answer
)
SESSIONS = (TracedSession(AGENT), TracedSession(CHAT, 100.5), TracedSession(AGENT, 100.5))
ALL = 14
"""Turns of a pass."""


def made(sessions: Any = SESSIONS, **changes: Any) -> TraceSessionWorkload:
    given: dict[str, Any] = {
        "name": "recorded",
        "sessions": tuple(sessions),
        "dataset": WHERE,
        "block_tokens": 16,
    }
    return TraceSessionWorkload(**(given | changes))


def ids(request: PlannedRequest) -> list[int]:
    assert request.token_ids is not None
    return list(request.token_ids)


def place(request: PlannedRequest) -> Turn:
    assert request.turn is not None
    return request.turn


def test_turns_are_those_of_the_trace_again_and_again() -> None:
    requests = made().requests(2 * ALL, 3)
    every = [turn for session in SESSIONS for turn in session.turns]
    assert [(r.input_tokens, r.max_tokens) for r in requests] == 2 * [
        (turn.input_tokens, turn.output_tokens) for turn in every
    ]
    assert [r.index for r in requests] == list(range(2 * ALL))
    assert [place(r).session for r in requests[:ALL]] == [0] * 4 + [1] * 6 + [2] * 4
    assert [place(r).session for r in requests[ALL:]] == [3] * 4 + [4] * 6 + [5] * 4
    assert [place(r).wait_for for r in requests[:4]] == [(), (1,), (1,), (2, 3)]
    assert [place(r).pause_ns for r in requests[:6]] == [0, 250_000_000, 0, 0, 0, 4_000_000_000]
    assert {(place(r).number, place(r).turns) for r in requests[:4]} == {(n, 4) for n in (1, 2, 3, 4)}


def test_every_prompt_has_exactly_its_length_as_text_too() -> None:
    tokenizer = reference_tokenizer()
    for seed in range(20):  # sentences end anywhere, also where a block does
        for request in made().requests(2 * ALL, seed):
            assert len(ids(request)) == request.input_tokens
            assert tokenizer.encode(tokenizer.decode(ids(request))) == ids(request)


def test_prompts_begin_alike_where_the_trace_says_so() -> None:
    requests = made().requests(ALL, 3)
    kept = [place(r).kept_tokens for r in requests]
    assert kept == [0, 32, 40, 33, 0, 30, 55, 0, 0, 62, 0, 32, 40, 33]
    shared = [r.shared_prefix_tokens for r in requests]
    # Of a block that was cut off at the end of an earlier prompt only what stood in that.
    assert shared == [0, 32, 40, 33, 0, 30, 55, 0, 0, 62, 40, 60, 50, 33]
    by_place = {(place(r).session, place(r).number): ids(r) for r in requests}
    for request in requests:
        turn = place(request)
        if turn.kept_tokens:
            before = by_place[turn.session, turn.wait_for[0]]
            assert ids(request)[: turn.kept_tokens] == before[: turn.kept_tokens]
    # Sessions that name the same blocks have the same prompts; a turn that forgot has no common beginning.
    assert [by_place[0, n] for n in (1, 2, 3, 4)] == [by_place[2, n] for n in (1, 2, 3, 4)]
    assert by_place[0, 2][32:48] != by_place[0, 3][32:48]
    assert by_place[0, 3][:48] == by_place[0, 1] + by_place[0, 3][40:48]
    assert by_place[1, 4][:20] != by_place[1, 3][:20]
    assert by_place[1, 5][:20] != by_place[1, 4][:20]


def test_the_next_pass_has_other_words_and_so_has_another_seed() -> None:
    requests = made().requests(2 * ALL, 3)
    for first, again in zip(requests[:ALL], requests[ALL:], strict=True):
        assert ids(first)[:20] != ids(again)[:20]
        assert place(first).kept_tokens == place(again).kept_tokens
    assert sequence_sha256(made().requests(ALL, 3)) == sequence_sha256(requests[:ALL])
    assert sequence_sha256(made().requests(ALL, 4)) != sequence_sha256(requests[:ALL])
    assert made().draws_anew


def test_turns_of_either_kind_may_follow_the_other() -> None:
    mixed = (
        TracedTurn(40, 5, hash_ids=(0, 1, 2)),
        TracedTurn(60, 5, (1,)),
        TracedTurn(70, 5, (2,), hash_ids=(0, 1, 2, 3, 4)),
    )
    first, second, third = made([TracedSession(mixed)]).requests(3, 1)
    assert ids(second)[:40] == ids(first)
    assert [place(r).kept_tokens for r in (first, second, third)] == [0, 40, 0]
    assert ids(third)[:40] == ids(first)
    assert third.shared_prefix_tokens == 40


def test_the_identity_of_a_turn_is_its_place_and_what_is_new_in_it() -> None:
    _, second = made().requests(2, 1)
    rest = ",".join(map(str, ids(second)[32:]))
    assert sequence_json([second]) == f"[[6,[0,2,4,[1],250000000,32],[{rest}]]]"


def test_shapes_have_the_lengths_of_the_prompts() -> None:
    workload = made()
    assert workload.unit == "session"
    shapes = list(islice(workload.shapes(5), 6))
    assert shapes[:3] == shapes[3:]
    for shape, session in zip(shapes, SESSIONS, strict=False):
        totals = [total for total, _ in prompt_lengths(shape, workload.shared_tokens)]
        assert totals == [turn.input_tokens for turn in session.turns]
    assert [turn.reset for turn in shapes[1].turns] == [False, False, False, True, True, True]
    assert [turn.input_tokens for turn in shapes[1].turns] == [30, 15, 11, 58, 62, 64]
    assert [turn.reset for turn in shapes[0].turns] == [False, True, False, True]
    assert turns_of(workload, 2, 1) == 10
    assert turns_of(workload, 2, 1, first=2) == 8


def test_the_specification_is_complete_and_states_sessions_and_sharing() -> None:
    one = made()
    assert check_specification(one) == []
    assert workload(one) is one
    stated = one.specification()
    assert json.loads(json.dumps(stated)) == stated
    assert stated["input_length"]["params"]["max"] == 70
    assert stated["input_length"]["of"] == "whole prompt of a turn"
    assert stated["prefix_sharing"]["fraction"] == pytest.approx(10 / 14)
    assert stated["sessions"]["count"] == 3
    assert stated["sessions"]["turns"]["params"]["mean"] == pytest.approx(14 / 3)
    assert stated["sessions"]["pause"]["params"]["max"] == 4000
    assert made([TracedSession((TracedTurn(3, 3),))]).specification()["sessions"]["pause"] is None
    assert realised_sharing(one, 0, ALL, 3) == {}  # blocks have no numbers as shared prefixes have


def test_workloads_are_equal_when_their_sessions_are() -> None:
    first, *others = SESSIONS
    assert made() == made()
    assert hash(made()) == hash(made())
    changes: list[dict[str, Any]] = [
        {"pause_ms": 0.5},
        {"wait_for": (1, 2)},
        {"reset": True},
        {"hash_ids": (0, 1, 6)},
        {"output_tokens": 9},
    ]
    for change in changes:
        last = replace(first.turns[-1], **change)
        assert made([replace(first, turns=(*first.turns[:-1], last)), *others]) != made()
    assert made([first, *(replace(each, offset_ms=7.0) for each in others)]) != made()


def test_starts_are_those_of_the_trace_where_it_has_any() -> None:
    assert made().offsets_ns == (0, 100_500_000, 100_500_000)
    assert made(timed=False).offsets_ns == ()


def test_mistakes_of_all_sessions_are_told_together() -> None:
    wrong = (
        TracedSession((TracedTurn(5, 5, (1,)), TracedTurn(5, 0, (9,), -3.0)), 5.0),
        TracedSession((TracedTurn(40, 5, hash_ids=(1,)), TracedTurn(4, 4, pause_ms=float("nan"))), 4.0),
        TracedSession(()),
        TracedSession((TracedTurn(20_000_000, 5),), 1e12),
    )
    with pytest.raises(SuiteError) as caught:
        made(wrong, name="conversation")
    for said in (
        "name of a reference workload",
        "session 0: turn 1 waits for itself",
        "session 0: turn 2 has output_tokens 0",
        "session 0: turn 2 has a negative pause (-0.003 s)",
        "session 0: turn 2 waits for turn 9, which does not exist",
        "session 1: turn 1: 1 hash ids are too few for 40 tokens",
        "session 1: turn 2 pauses for nan ms",
        "session 1: it starts before the session ahead of it",
        "session 2: it has no turns",
        "session 3: turn 1 has more than 10,000,000 tokens",
        "session 3: it starts more than a year after the first",
    ):
        assert said in str(caught.value)
    with pytest.raises(SuiteError, match="and 38 more"):
        made([TracedSession((TracedTurn(0, 1),))] * 50)
    with pytest.raises(SuiteError, match="the trace has no sessions"):
        made([])
    with pytest.raises(SuiteError, match="block_tokens is 0"):
        made(block_tokens=0)
    with pytest.raises(SuiteError, match="it has 10,001 turns: at most 10,000"):
        made([TracedSession((TracedTurn(1, 1),) * 10_001)])


def test_probes_of_a_trace_are_its_sessions_in_other_words() -> None:
    probes = ProbeSessions(made(), 1, (1, 3))
    requests = probes.requests(100, 7)
    load = [each for each in made().requests(ALL + 8, 1) if place(each).session in (1, 3)]
    assert len(requests) == len(load) == turns_of(probes, 2, 7) == 10
    assert [(place(each).session, place(each).number) for each in requests] == [
        ((1, 3).index(place(each).session), place(each).number) for each in load
    ]
    for probe, sent in zip(requests, load, strict=True):
        assert (probe.input_tokens, probe.max_tokens) == (sent.input_tokens, sent.max_tokens)
        assert place(probe).pause_ns == place(sent).pause_ns
        assert ids(probe)[:8] != ids(sent)[:8]
