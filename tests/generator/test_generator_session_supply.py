"""Turns that are encoded ahead of need: whole plans within the budget, of larger ones no more than that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.prepared import PreparedJobs, PreparedRequest, weight
from pytest_llmbench.model.request import PlannedRequest, Turn

WEIGHT = weight(PreparedRequest("r", b"x", 0, 1, 1))


class Encoder:
    """Notes what it was asked to encode."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, request: PlannedRequest) -> PreparedRequest:
        self.asked.append(request.index)
        return PreparedRequest(f"r{request.index}", b"x", request.index, 1, 1)


def sessions(*turns: int) -> list[list[PlannedRequest]]:
    """Sessions of so many turns, one after the other."""
    found: list[list[PlannedRequest]] = []
    index = 0
    for number, count in enumerate(turns):
        found.append([])
        for turn in range(1, count + 1):
            wait_for = (turn - 1,) if turn > 1 else ()
            place = Turn(session=number, number=turn, turns=count, wait_for=wait_for)
            found[-1].append(PlannedRequest(index, 1, 1, text="x", turn=place))
            index += 1
    return found


def supply(encode: Encoder, turns: Sequence[int], room: int) -> PreparedJobs:
    return PreparedJobs(iter(sessions(*turns)), encode, budget_bytes=room * WEIGHT)


def begin(made: PreparedJobs) -> Sequence[PlannedRequest]:
    session = made.take()
    assert not isinstance(session, PreparedRequest)
    return session


def test_a_plan_within_the_budget_is_encoded_before_it_starts():
    encode = Encoder()
    made = supply(encode, (2, 3), 10)
    assert encode.asked == [0, 1, 2, 3, 4]
    assert (made.exhausted, made.begun, made.first_number) == (False, 0, 0)
    assert not made.lacks
    for session in sessions(2, 3):
        assert [each.index for each in begin(made)] == [each.index for each in session]
        for request in session:
            made.keep(request)
            assert made.ready(request).index == request.index
    assert (made.exhausted, made.begun) == (True, 5)
    assert encode.asked == [0, 1, 2, 3, 4], "nothing twice"


def test_of_a_larger_plan_so_much_as_has_room():
    encode = Encoder()
    made = supply(encode, (3, 3, 3), 4)
    assert encode.asked == [0, 1, 2, 3]
    assert not made.top_up()
    first, second, _ = sessions(3, 3, 3)
    begin(made)
    for request in first:
        made.ready(request)
        made.top_up()
    assert encode.asked == [0, 1, 2, 3, 4, 5, 6]
    assert made.lacks
    begin(made)
    assert [made.ready(request).index for request in second] == [3, 4, 5]


def test_turns_of_a_session_that_is_begun_are_encoded_when_they_are_needed():
    encode = Encoder()
    made = supply(encode, (4, 2), 2)
    begun = begin(made)
    made.ready(begun[0])
    made.top_up()
    assert encode.asked == [0, 1, 4], "the rest of the first would come when it is needed"
    made.keep(begun[2])
    assert encode.asked == [0, 1, 4, 2]
    assert made.ready(begun[2]).index == 2


def test_what_is_forgotten_makes_room():
    encode = Encoder()
    made = supply(encode, (3, 3), 3)
    begin(made)
    made.forget(0)
    made.forget(7)
    while made.top_up():
        pass
    assert encode.asked == [0, 1, 2, 3, 4, 5]


@given(
    turns=st.lists(st.integers(1, 5), max_size=8),
    room=st.integers(0, 12),
    cut=st.sets(st.integers(0, 7)),
)
def test_every_turn_is_encoded_once_and_in_the_end_there_is_as_much_room_as_before(turns, room, cut):
    encode = Encoder()
    made = supply(encode, turns, room)
    sent = []
    while not made.exhausted:
        session = begin(made)
        number = session[0].turn.session if session[0].turn is not None else 0
        for request in session[:1] if number in cut else session:
            made.keep(request)
            sent.append(made.ready(request).index)
            made.top_up()
        made.forget(number)
    assert len(encode.asked) == len(set(encode.asked))
    wanted = [s[:1] if number in cut else s for number, s in enumerate(sessions(*turns))]
    assert sent == [request.index for session in wanted for request in session]
    assert made._room == room * WEIGHT
    assert not made._ready


def test_a_turn_of_no_session_has_no_place_here():
    made = supply(Encoder(), (), 1)
    assert made.exhausted
    alone = PreparedJobs(iter([[PlannedRequest(0, 1, 1, text="x")]]), Encoder(), budget_bytes=0)
    with pytest.raises(SuiteError, match="belongs to no session"):
        begin(alone)


def live_sessions(*turns: int) -> list[list[PlannedRequest]]:
    """Sessions whose turns read what was answered to those before them."""
    return [
        [
            replace(each, turn=replace(each.turn, live=True, reads=tuple(range(1, each.turn.number))))
            for each in session
            if each.turn is not None
        ]
        for session in sessions(*turns)
    ]


def test_turns_that_wait_for_live_answers_are_not_encoded_ahead():
    encode = Encoder()
    made = PreparedJobs(iter(live_sessions(3, 2)), encode)
    assert encode.asked == [0, 3]
    assert made.live
    first, second, third = begin(made)
    assert [made.ready(each).index for each in (first, second)] == [0, 1]
    made.keep(third)
    made.keep(third)
    assert made.ready(third).index == 2
    assert encode.asked == [0, 3, 1, 2]


def test_they_take_up_room_all_the_same_and_give_it_back():
    """So sessions of a long plan are not all taken from it."""
    long = [[replace(each, input_tokens=1_000) for each in one] for one in live_sessions(2, 2, 2, 2)]
    encode = Encoder()
    made = PreparedJobs(iter(long), encode, budget_bytes=WEIGHT + 5_000 + 1)
    assert encode.asked == [0, 2]
    assert made.lacks
    for session in range(4):
        for request in begin(made):
            made.ready(request)
        made.forget(session)
        while made.top_up():
            pass
    assert sorted(encode.asked) == list(range(8))
    assert made.exhausted
