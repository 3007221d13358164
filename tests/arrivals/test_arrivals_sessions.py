"""Which turns are due, and when."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest

from pytest_llmbench.arrivals import (
    Due,
    SessionFlow,
    arrival_seed,
    schedule_ns,
    sessions_of,
    starts_ns,
    turn_of,
)
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.request import PlannedRequest, Turn
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

PLAN = LoadPlan("measure", SYNTHETIC_UNIFORM, OpenLoop(5.0), 8, seed=7)


def session(*waits: tuple[int, ...], number: int = 0, pause_ns: int = 10) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            100 * number + place,
            1,
            1,
            turn=Turn(number, place, len(waits), wait_for, pause_ns if wait_for else 0),
        )
        for place, wait_for in enumerate(waits, start=1)
    ]


def told(due: list[Due]) -> list[tuple[int, int]]:
    return [(turn_of(each.request).number, each.at_ns) for each in due]


def test_turns_in_a_row_follow_the_end_and_the_pause():
    flow, turns = SessionFlow(), session((), (1,), (2,))
    assert told(flow.begin(turns, 1000)) == [(1, 1000)]
    assert flow.unsent == 3
    now_ns = 1000
    for number in (1, 2):
        assert flow.take(turn_of(turns[number - 1]).session)
        now_ns += 100
        after = flow.ended(turn_of(turns[number - 1]), now_ns, ok=True)
        assert told(after.due) == [(number + 1, now_ns + 10)]
        assert not after.over
        now_ns += 10
    assert flow.take(turn_of(turns[2]).session)
    assert flow.unsent == 0
    assert flow.ended(turn_of(turns[2]), now_ns, ok=True) == ([], True, False)


def test_a_turn_without_a_pause_is_taken_at_the_end_before_it():
    flow, turns = SessionFlow(), session((), (1,), (2,), pause_ns=0)
    flow.begin(turns, 1000)
    flow.take(0)
    assert [flow.take_next(turn_of(turns[number])) for number in (0, 1, 2)] == [turns[1], turns[2], None]
    assert flow.unsent == 0
    assert flow.ended(turn_of(turns[2]), 2000, ok=True) == ([], True, False)


@pytest.mark.parametrize(
    ("waits", "pause_ns"),
    [
        pytest.param([(), (1,)], 10, id="a-pause"),
        pytest.param([(), (1,), (1,)], 0, id="two-followers"),
        pytest.param([(), (), (1, 2)], 0, id="two-causes"),
        pytest.param([(), (1,), (1, 2)], 0, id="one-waits-for-it-alone-and-one-for-two"),
        pytest.param([()], 0, id="nothing-follows"),
    ],
)
def test_a_turn_is_taken_at_the_end_before_it_only_where_it_alone_waits_for_that_alone(waits, pause_ns):
    flow, turns = SessionFlow(), session(*waits, pause_ns=pause_ns)
    for _ in flow.begin(turns, 0):
        flow.take(0)
    unsent = flow.unsent
    assert flow.take_next(turn_of(turns[0])) is None
    assert flow.unsent == unsent
    flow.ended(turn_of(turns[0]), 100, ok=True)  # which it was not told of yet


def test_the_end_of_a_chain_joins_what_ran_beside_it():
    flow, turns = SessionFlow(), session((), (1,), (1,), (2,), (3, 4), pause_ns=0)
    flow.begin(turns, 0)
    flow.take(0)
    assert told(flow.ended(turn_of(turns[0]), 100, ok=True).due) == [(2, 100), (3, 100)]
    flow.take(0)
    flow.take(0)
    assert flow.take_next(turn_of(turns[1])) == turns[3]
    assert flow.take_next(turn_of(turns[3])) is None
    assert told(flow.ended(turn_of(turns[3]), 200, ok=True).due) == []
    assert told(flow.ended(turn_of(turns[2]), 300, ok=True).due) == [(5, 300)]
    flow.take(0)
    assert flow.ended(turn_of(turns[4]), 400, ok=True) == ([], True, False)


def test_no_turn_of_a_session_that_was_cut_off_is_taken():
    flow, turns = SessionFlow(), session((), (1,), (2,), pause_ns=0)
    flow.begin(turns, 0)
    flow.take(0)
    assert flow.take_next(turn_of(turns[0])) == turns[1]
    assert not flow.cut(0)  # by the reply to the first; the second is under way
    assert flow.unsent == 0
    assert flow.take_next(turn_of(turns[1])) is None
    assert flow.ended(turn_of(turns[1]), 200, ok=True) == ([], True, True)


def test_a_join_waits_for_the_last_of_those_that_fanned_out():
    flow, turns = SessionFlow(), session((), (1,), (1,), (2, 3))
    flow.begin(turns, 0)
    flow.take(turn_of(turns[0]).session)
    assert flow.followers(turns[0]) == turns[1:3]
    assert told(flow.ended(turn_of(turns[0]), 100, ok=True).due) == [(2, 110), (3, 110)]
    flow.take(turn_of(turns[1]).session)
    flow.take(turn_of(turns[2]).session)
    assert flow.followers(turns[1]) == []
    assert flow.followers(turns[2]) == [turns[3]]
    assert told(flow.ended(turn_of(turns[2]), 150, ok=True).due) == []
    assert told(flow.ended(turn_of(turns[1]), 400, ok=True).due) == [(4, 410)]


def test_the_order_in_which_causes_are_named_is_of_no_account():
    flow, turns = SessionFlow(), session((), (1,), (1,), (3, 2))
    flow.begin(turns, 0)
    flow.take(turn_of(turns[0]).session)
    flow.ended(turn_of(turns[0]), 100, ok=True)
    flow.take(turn_of(turns[1]).session)
    flow.take(turn_of(turns[2]).session)
    assert flow.followers(turns[1]) == []
    assert flow.followers(turns[2]) == [turns[3]]
    assert told(flow.ended(turn_of(turns[2]), 150, ok=True).due) == []
    assert told(flow.ended(turn_of(turns[1]), 400, ok=True).due) == [(4, 410)]


def test_a_session_is_cut_off_by_a_turn_that_does_not_end_well():
    flow, turns = SessionFlow(), session((), (1,), (1,), (2, 3))
    flow.begin(turns, 0)
    flow.take(turn_of(turns[0]).session)
    flow.ended(turn_of(turns[0]), 100, ok=True)
    flow.take(turn_of(turns[1]).session)
    assert flow.unsent == 2
    # Turn 3 is due, and will not be sent; turn 4 never is.
    assert flow.ended(turn_of(turns[1]), 120, ok=False) == ([], True, True)
    assert flow.unsent == 0
    assert flow.is_cut(turn_of(turns[2]).session)
    assert not flow.take(turn_of(turns[2]).session)


def test_what_is_in_flight_when_a_session_is_cut_off_goes_on_to_its_end():
    flow, turns = SessionFlow(), session((), (1,), (1,), (2, 3))
    flow.begin(turns, 0)
    flow.take(turn_of(turns[0]).session)
    flow.ended(turn_of(turns[0]), 100, ok=True)
    flow.take(turn_of(turns[1]).session)
    flow.take(turn_of(turns[2]).session)
    assert flow.ended(turn_of(turns[1]), 120, ok=False) == ([], False, True)
    assert flow.ended(turn_of(turns[2]), 130, ok=True) == ([], True, True)


def test_a_reply_that_turns_out_bad_later_cuts_what_has_not_been_sent():
    flow, turns = SessionFlow(), session((), (1,), (2,))
    flow.begin(turns, 0)
    flow.take(turn_of(turns[0]).session)
    flow.ended(turn_of(turns[0]), 100, ok=True)
    assert flow.cut(0)
    assert not flow.take(turn_of(turns[1]).session)
    assert flow.unsent == 0
    assert not flow.cut(0)


def test_requests_are_taken_apart_into_sessions():
    first, second = session((), (1,)), session((), number=1)
    assert list(sessions_of([*first, *second])) == [tuple(first), tuple(second)]
    with pytest.raises(SuiteError, match="belongs to no session"):
        list(sessions_of([PlannedRequest(0, 1, 1)]))
    with pytest.raises(SuiteError, match="turn 2 of session 0 waits for a turn that does not come before it"):
        list(sessions_of(first[1:]))


def test_starts_are_those_of_the_schedule_and_go_on_where_a_sequence_is_taken_up():
    def starts(load: Load, first_session: int, **changes: Any) -> list[int]:
        return list(islice(starts_ns(PLAN.with_(load=load, **changes), first_session), 500))

    whole = schedule_ns(OpenLoop(5.0), 1000, arrival_seed(7)).tolist()
    moved = [instant - whole[299] for instant in whole[300:800]]
    assert starts(SessionStarts(5.0), 0) == whole[:500]
    assert starts(SessionStarts(5.0), 300) == moved
    assert starts(OpenLoop(5.0), 0, requests=500) == whole[:500]
    assert starts(OpenLoop(5.0), 0, first=300, requests=500) == moved
    assert starts(OpenLoop(5.0), 0, first=300, requests=3) == moved[:3]
    trace = SessionStarts(5.0, "trace", offsets_ns=(1, 5, 9))
    assert starts(trace, 0) == [1, 5, 9]
    assert starts(trace, 1) == [4, 8]
    assert starts(ClosedLoop(3), 0) == starts(SessionSlots(3), 0) == []
