"""Sessions as values: what cannot be sent is told whole, and prompts grow by a rule that can be reckoned."""

from __future__ import annotations

import pytest

from pytest_llmbench.model.plan import ClosedLoop, Load, OpenLoop, SessionSlots, SessionStarts, describe_loads
from pytest_llmbench.model.request import Session, SessionTurn, in_a_row, prompt_lengths, session_mistakes


def test_all_mistakes_of_a_session_are_told_at_once() -> None:
    session = Session(
        (
            SessionTurn(10, 5),
            SessionTurn(10, 5, (2,)),
            SessionTurn(10, 5, (4,)),
            SessionTurn(10, 5, (9,)),
            SessionTurn(10, 5, (1, 1), -2_000_000_000),
            SessionTurn(0, -1, (1,)),
        ),
        own_tokens=-1,
    )
    assert session_mistakes(session) == [
        "its own tokens are -1: give a number, not negative",
        "turn 2 waits for itself",
        "turn 3 waits for turn 4, which comes after it: turns that wait in a circle never start",
        "turn 4 waits for turn 9, which does not exist",
        "turn 5 has a negative pause (-2 s)",
        "turn 5 waits for a turn twice",
        "turn 6 has input_tokens 0: give a whole number, at least 1",
        "turn 6 has output_tokens -1: give a whole number, at least 1",
    ]
    assert session_mistakes(Session(())) == ["it has no turns"]


def test_turns_that_do_not_fit_the_context_are_named() -> None:
    session = Session(in_a_row([(10, 5), (10, 5), (10, 50)]))
    assert session_mistakes(session, shared_tokens=100, context_tokens=190) == []
    (one,) = session_mistakes(session, shared_tokens=100, context_tokens=189)
    assert one == "turn 3 needs 190 tokens of context with the reply, the model has 189"
    (several,) = session_mistakes(session, shared_tokens=100, context_tokens=114)
    assert several.startswith("3 turns, the first of them turn 1, need up to 190 tokens")


def test_a_prompt_is_that_of_the_turn_before_with_the_answers_and_the_new_input() -> None:
    fan_out = (
        SessionTurn(10, 5),
        SessionTurn(20, 6, (1,)),
        SessionTurn(30, 7, (1,)),
        SessionTurn(40, 8, (2, 3)),
        SessionTurn(50, 9, (4,), reset=True),
    )
    assert prompt_lengths(Session(fan_out, own_tokens=3), 100) == [
        (113, 0),
        (113 + 5 + 20, 113),
        (113 + 5 + 30, 113),
        (138 + 6 + 7 + 40, 138),
        (103 + 50, 0),
    ]


def test_pauses_of_turns_in_a_row_come_before_the_second_and_following() -> None:
    turns = in_a_row([(1, 1)] * 4, [5, 6])
    assert [turn.pause_ns for turn in turns] == [0, 5, 6, 0]
    assert [turn.wait_for for turn in turns] == [(), (1,), (2,), (3,)]


def test_loads_of_sessions_say_so() -> None:
    loads = [SessionStarts(2.0), SessionSlots(8), SessionStarts(1.0, "gamma", 0.5)]
    assert describe_loads(loads) == (
        "open loop of sessions, poisson starts at 2 sessions/s; closed loop of sessions, 8 at once; "
        "open loop of sessions, gamma starts at 1 sessions/s, burstiness 0.5"
    )
    assert SessionStarts(2.0) == OpenLoop(2.0, of_sessions=True) != OpenLoop(2.0)
    assert SessionSlots(3) == ClosedLoop(3, of_sessions=True) != ClosedLoop(3)
    levels = [SessionStarts(rate) for rate in (0.5, 1.0, 2.0, 1.5)]
    assert describe_loads(levels) == "open loop of sessions, poisson starts at 0.5 to 2 sessions/s (4 loads)"
    slots = [SessionSlots(number) for number in (2, 4, 8, 16)]
    assert describe_loads(slots) == "closed loop of sessions, 2 to 16 at once (4 loads)"
    both = describe_loads([*slots, *map(ClosedLoop, (1, 3))])
    assert both.startswith("closed loop, 1 to 3 in flight (2 loads); closed loop of sessions, 2 to 16")


@pytest.mark.parametrize(
    ("load", "rate", "in_flight", "requests_in_flight"),
    [
        (OpenLoop(2.0), 2.0, None, None),
        (SessionStarts(2.0), None, None, None),
        (ClosedLoop(4), None, 4, 4),
        (SessionSlots(4), None, 4, None),
    ],
)
def test_requests_have_a_rate_or_a_number_in_flight_where_turns_have_none(
    load: Load, rate: float | None, in_flight: int | None, requests_in_flight: int | None
) -> None:
    assert (load.request_rate, load.in_flight) == (rate, in_flight)
    assert load.requests_in_flight == requests_in_flight
