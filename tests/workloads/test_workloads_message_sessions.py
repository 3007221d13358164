"""Sessions whose turns send messages: what is sent, what begins alike, and what a report holds of it."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.messages import Message, MessageArray, ToolCall
from pytest_llmbench.model.request import PlannedRequest, prompt_lengths
from pytest_llmbench.store.objects import described, rebuilt
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import check_specification
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256
from pytest_llmbench.workloads.trace_sessions import (
    TracedSession,
    TracedTurn,
    TraceSessionWorkload,
    ids_of,
)

SYSTEM = Message("system", "You know all that there is to know about the library, its maps and its globes.")
TALK = (
    SYSTEM,
    Message("user", "Where are the maps?"),
    Message("assistant", "", (ToolCall("c", "find", '{"what": "maps"}'),)),
    Message("tool", "floor 2", call_id="c"),
    Message("assistant", "On the second floor, beside the window."),
    Message("user", "And the globes?"),
)


def turn(said: tuple[Message, ...], wait_for: tuple[int, ...] = (), **changes: Any) -> TracedTurn:
    array = MessageArray(said)
    given: dict[str, Any] = {"wait_for": wait_for, "messages": array}
    return TracedTurn(len(ids_of(array)), 9, **(given | changes))


def session(last: str = "And the globes?") -> TracedSession:
    ends = (*TALK[:5], Message("user", last))
    return TracedSession((turn(TALK[:2]), turn(TALK[:4], (1,)), turn(ends, (2,))))


TWO = (session(), session("And the pens?"))


def made(sessions: Any = TWO, **changes: Any) -> TraceSessionWorkload:
    given: dict[str, Any] = {"block_tokens": 16, "timed": False}
    return TraceSessionWorkload(
        "talks", tuple(sessions), DatasetIdentity("talks", "1", "all"), **(given | changes)
    )


def ids(request: PlannedRequest) -> list[int]:
    return list(request.token_ids or ())


def test_a_turn_asks_its_messages_and_begins_with_those_before_it() -> None:
    requests = made().requests(6, 1)
    assert [len(each.messages.messages) for each in requests if each.messages] == [2, 4, 6] * 2
    for each in requests:
        assert each.messages is not None
        count = reference_tokenizer().count
        assert each.input_tokens == len(ids(each)) == sum(map(count, each.messages.texts))
        assert each.text is None
    for before, after in pairwise(requests[:3]):
        assert after.turn is not None
        assert after.turn.kept_tokens == before.input_tokens
        assert ids(after)[: before.input_tokens] == ids(before)


def test_a_context_that_was_edited_keeps_what_is_alike() -> None:
    edited = (SYSTEM, Message("user", "Where are the pens?"))
    workload = made([TracedSession((turn(TALK[:2]), turn(edited, (1,))))])
    first, second = workload.requests(2, 1)
    assert second.turn is not None
    kept = second.turn.kept_tokens
    assert reference_tokenizer().count(SYSTEM.content) < kept < first.input_tokens
    assert ids(first)[:kept] == ids(second)[:kept]
    assert ids(first)[kept] != ids(second)[kept]


def test_the_same_is_sent_for_every_seed_and_in_every_repetition() -> None:
    workload = made()
    first = workload.requests(12, 1)
    assert [each.messages for each in first[:6]] == [each.messages for each in first[6:]]
    assert [each.messages for each in workload.requests(6, 2)] == [each.messages for each in first[:6]]
    assert not workload.draws_anew


def test_a_seed_settles_the_order_where_it_may() -> None:
    workload = made([session(f"And number {number}?") for number in range(20)], shuffled=True)
    orders = [[each.messages for each in workload.requests(60, seed)] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(map(repr, orders[0])) == sorted(map(repr, orders[2]))
    lasts = [each.input_tokens for each in workload.requests(60, 2) if each.turn and each.turn.number == 3]
    shapes = islice(workload.shapes(2), 20)
    assert [prompt_lengths(each, 0)[-1][0] for each in shapes] == lasts
    with pytest.raises(SuiteError, match="has an order: leave out shuffled"):
        made(timed=True, shuffled=True)


def test_in_other_words_roles_and_lengths_and_what_is_alike_stay() -> None:
    workload = made()
    told = list(workload.reworded([0, 1], 1, 7))
    for said, own in zip(workload.requests(6, 1), told, strict=True):
        assert said.messages is not None and own.messages is not None  # noqa: PT018 - for the type
        assert own.input_tokens == said.input_tokens == len(ids(own))
        assert [each.role for each in own.messages.messages] == [each.role for each in said.messages.messages]
        assert own.messages.messages[1].content != said.messages.messages[1].content
        assert own.turn == said.turn
    assert ids(told[1])[: told[0].input_tokens] == ids(told[0])
    assert told[0].messages == told[3].messages


def test_two_texts_of_one_length_are_two_workloads() -> None:
    one, other = made([session("And the cat?")]), made([session("And the dog?")])
    assert [each.input_tokens for each in one.requests(3, 1)] == [
        each.input_tokens for each in other.requests(3, 1)
    ]
    assert one != other
    assert sequence_sha256(one.requests(3, 1)) != sequence_sha256(other.requests(3, 1))
    (_, _, (tools, said)) = json.loads(sequence_json(one.requests(1, 1)))[0]
    assert tools == []
    assert said == [each.as_chat() for each in TALK[:2]]


def test_a_report_holds_nothing_that_was_said() -> None:
    workload = made(shuffled=True)
    told = json.dumps(described(workload)) + json.dumps(workload.specification())
    for word in ("library", "maps", "globes", "floor", "find"):
        assert word not in told
    again = rebuilt(described(workload))
    assert again == workload
    assert again.specification() == workload.specification()
    assert [each.input_tokens for each in again.requests(6, 3)] == [
        each.input_tokens for each in workload.requests(6, 3)
    ]
    assert check_specification(workload) == []


def test_made_into_single_requests_they_are_texts() -> None:
    (first,) = WithFixedOutput(made(), 5).requests(1, 1)
    assert first.messages is None
    assert first.turn is None
    assert first.max_tokens == 5


@pytest.mark.parametrize(
    ("turns", "mistake"),
    [
        ((turn(TALK[:3]),), "turn 1: message 3 is the assistant's: there is nothing to answer"),
        ((turn(TALK[:2]), TracedTurn(60, 5, (1,))), "some of its turns have messages: give them to all"),
        ((TracedTurn(3, 9, messages=MessageArray(TALK[:2])),), "its messages have "),
    ],
)
def test_mistakes(turns: tuple[TracedTurn, ...], mistake: str) -> None:
    with pytest.raises(SuiteError, match=mistake):
        made([TracedSession(turns)])
