"""Workloads of sessions: exact lengths, exact beginnings, one sequence per seed."""

from __future__ import annotations

from itertools import islice

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest, Session, SessionTurn
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import Salted, WithFixedOutput
from pytest_llmbench.workloads.lengths import Choice, Fixed, Uniform, check_specification
from pytest_llmbench.workloads.mixture import Mixture, Part
from pytest_llmbench.workloads.readable import readable_ids
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256
from pytest_llmbench.workloads.sessions import (
    ProbeSessions,
    SessionWorkload,
    requests_of,
    turns_of,
)
from pytest_llmbench.workloads.stream import BulkRandom

WORKLOAD = SessionWorkload(
    "talk",
    Uniform(1, 6),
    Uniform(20, 60),
    Uniform(10, 90),
    Uniform(100, 3000),
    system_tokens=70,
    group_tokens=30,
    groups=2,
    own_tokens=Uniform(5, 40),
)


def ids(request: PlannedRequest) -> list[int]:
    assert request.token_ids is not None
    return list(request.token_ids)


def test_every_prompt_has_exactly_its_length_as_text_too() -> None:
    tokenizer = reference_tokenizer()
    for workload in (WORKLOAD, SessionWorkload("fan", Fixed(9), Fixed(9), Fixed(8), fan_out=3)):
        for request in workload.requests(40, 3):
            assert tokenizer.encode(tokenizer.decode(ids(request))) == ids(request)
            assert len(ids(request)) == request.input_tokens


def test_a_prompt_begins_with_that_of_the_turn_before_and_sessions_with_their_groups_beginning() -> None:
    requests = WORKLOAD.requests(60, 3)
    by_place = {(r.turn.session, r.turn.number): r for r in requests if r.turn is not None}
    heads: dict[int, list[int]] = {}
    for request in requests:
        turn = request.turn
        assert turn is not None
        assert request.prefix_id == turn.session % 2
        assert heads.setdefault(turn.session % 2, ids(request)[:100]) == ids(request)[:100]
        if turn.number == 1:
            assert (turn.wait_for, turn.pause_ns, turn.kept_tokens) == ((), 0, 0)
            assert request.shared_prefix_tokens == 100
        else:
            before = by_place[turn.session, turn.number - 1]
            assert turn.wait_for == (turn.number - 1,)
            assert 100_000_000 <= turn.pause_ns <= 3_000_000_000
            assert turn.kept_tokens == request.shared_prefix_tokens == before.input_tokens
            assert ids(request)[: turn.kept_tokens] == ids(before)
            # The recorded answer is as long as the reply may be.
            grown = request.input_tokens - before.input_tokens - before.max_tokens
            assert 20 <= grown <= 60
    assert heads[0][:70] == heads[1][:70]
    assert heads[0][70:] != heads[1][70:]


def test_turns_that_fan_out_go_on_from_one_and_join_in_one() -> None:
    workload = SessionWorkload(
        "agent", Fixed(5), Fixed(10), Fixed(4), Fixed(500), system_tokens=20, fan_out=3
    )
    turns = workload.requests(5, 1)
    waits = [request.turn.wait_for for request in turns if request.turn is not None]
    assert waits == [(), (1,), (1,), (1,), (2, 3, 4)]
    root, *tools, join = map(ids, turns)
    assert all(tool[: len(root)] == root for tool in tools)
    assert len({tuple(tool) for tool in tools}) == 3
    assert join[: len(tools[0])] == tools[0]
    assert len(join) == len(tools[0]) + 3 * 4 + 10


def test_a_reset_keeps_the_shared_beginning_and_the_sessions_own_document() -> None:
    workload = SessionWorkload(
        "agent", Fixed(4), Fixed(10), Fixed(4), system_tokens=20, own_tokens=Fixed(7), reset_every=2
    )
    first, second, third, fourth = workload.requests(4, 1)
    assert [r.input_tokens for r in (first, second, third, fourth)] == [37, 51, 37, 51]
    assert ids(third)[:27] == ids(first)[:27]
    assert third.shared_prefix_tokens == 27
    assert third.turn is not None
    assert (third.turn.wait_for, third.turn.kept_tokens) == ((2,), 0)


def test_a_shorter_sequence_begins_a_longer_one_and_seeds_differ() -> None:
    whole = WORKLOAD.requests(30, 5)
    assert sequence_sha256(WORKLOAD.requests(12, 5)) == sequence_sha256(whole[:12])
    assert sequence_sha256(WORKLOAD.requests(30, 6)) != sequence_sha256(whole)
    assert len(whole) == 30
    count = turns_of(WORKLOAD, 7, 5)
    last = WORKLOAD.requests(count + 1, 5)[-2:]
    assert [r.turn.session for r in last if r.turn is not None] == [6, 7]
    assert turns_of(WORKLOAD, 4, 5) + turns_of(WORKLOAD, 3, 5, first=4) == count


def test_the_identity_of_a_sequence_holds_its_causes_and_pauses() -> None:
    def digest(pause_ns: int, wait_for: tuple[int, ...]) -> str:
        session = Session((SessionTurn(3, 2), SessionTurn(3, 2, (1,)), SessionTurn(3, 2, wait_for, pause_ns)))
        head = readable_ids(BulkRandom(1), 4)
        return sequence_sha256(requests_of(session, head, BulkRandom(2), number=0, first=0))

    assert len({digest(0, (2,)), digest(1, (2,)), digest(0, (1,)), digest(0, (1, 2))}) == 4
    (first,) = SessionWorkload("one", Fixed(1), Fixed(1), Fixed(9)).requests(1, 1)
    assert sequence_json([first]) == f"[[9,[0,1,1,[],0,0],[{ids(first)[0]}]]]"


def test_a_session_ends_before_the_turn_that_the_context_has_no_room_for() -> None:
    workload = SessionWorkload("cut", Fixed(50), Fixed(30), Fixed(20), system_tokens=100, context_tokens=300)
    (session,) = islice(workload.shapes(1), 1)
    assert len(session.turns) == 4
    assert max(r.input_tokens + r.max_tokens for r in workload.requests(40, 1)) == 300
    with pytest.raises(SuiteError, match="the longest first turn, with its reply, needs more"):
        SessionWorkload("cut", Fixed(50), Uniform(30, 181), Fixed(20), system_tokens=100, context_tokens=300)


def test_mistakes_are_told_together_and_the_specification_is_complete() -> None:
    with pytest.raises(SuiteError) as caught:
        SessionWorkload(
            "synthetic-uniform",
            Choice((1, 20_000)),
            Fixed(1),
            Fixed(1),
            system_tokens=-1,
            groups=0,
            fan_out=0,
            reset_every=-1,
            temperature=-1.0,
        )
    for word in (
        "choose another name",
        "20000",
        "system_tokens",
        "groups",
        "fan_out",
        "reset_every",
        "temperature",
    ):
        assert word in str(caught.value)
    assert check_specification(WORKLOAD) == []
    assert WORKLOAD.shared_prefixes(1) == (100, 100)


def test_a_workload_that_is_made_of_one_of_sessions_is_of_single_requests() -> None:
    """What is changed about a turn is not what the identity of its session is made of."""
    mixed = Mixture("mixed", (Part("talk", WORKLOAD, 0.5), Part("again", WORKLOAD, 0.5)))
    for made in (Salted(WORKLOAD, "one"), WithFixedOutput(WORKLOAD, 5), mixed):
        assert made.unit == "request"
        assert {request.turn for request in made.requests(8, 3)} == {None}
    salted = [sequence_sha256(Salted(WORKLOAD, salt).requests(8, 3)) for salt in ("one", "two")]
    assert salted[0] != salted[1]


def test_probes_have_the_shapes_of_some_sessions_and_words_of_their_own() -> None:
    assert WORKLOAD.rewords_sessions
    probes = ProbeSessions(WORKLOAD, 3, (1, 4, 5))
    assert probes.unit == "session"
    assert check_specification(probes) == []
    shapes = list(islice(WORKLOAD.shapes(3), 6))
    assert list(probes.shapes(9)) == [shapes[1], shapes[4], shapes[5]]
    count = turns_of(probes, 3, 9)
    made = probes.requests(count + 1, 9)
    load = [each for each in WORKLOAD.requests(60, 3) if each.turn and each.turn.session in (1, 4, 5)]
    assert len(made) == len(load) == count
    assert [each.index for each in made] == list(range(count))
    for probe, sent in zip(made, load, strict=True):
        assert probe.turn is not None
        assert sent.turn is not None
        assert (1, 4, 5)[probe.turn.session] == sent.turn.session
        for name in ("number", "turns", "wait_for", "pause_ns", "kept_tokens"):
            assert getattr(probe.turn, name) == getattr(sent.turn, name)
        assert (probe.input_tokens, probe.max_tokens) == (sent.input_tokens, sent.max_tokens)
        assert ids(probe)[:8] != ids(sent)[:8]
    assert made == probes.requests(count, 9)
    assert ProbeSessions(WORKLOAD, 4, (1, 4, 5)).specification() != probes.specification()
