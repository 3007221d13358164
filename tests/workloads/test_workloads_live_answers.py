"""Live answers: where they stand in prompts, and what a workload says of them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.arrivals import LiveAnswers
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.factory import make_workload
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.model.messages import LivePlace, Message, MessageArray, ToolCall
from pytest_llmbench.model.request import LIVE_ANSWERS, PlannedRequest, Turn, prompt_lengths
from pytest_llmbench.store.objects import described, rebuilt
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import check_specification
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.sessions import SessionWorkload
from pytest_llmbench.workloads.stream import streamed
from pytest_llmbench.workloads.trace_sessions import (
    TracedSession,
    TracedTurn,
    TraceSessionWorkload,
    ids_of,
)

CHAT: dict[str, Any] = {
    "turns": 4, "input_tokens": (5, 30), "output_tokens": (4, 20), "system_tokens": 15, "own_tokens": (8, 12),
}  # fmt: skip
SAID = (
    Message("system", "Be brief."),
    Message("user", "Where are the maps?"),
    Message("assistant", "On the second floor, beside the window."),
    Message("user", "And the globes?"),
    Message("assistant", "Beside them."),
    Message("user", "Thank you. Is it open?"),
)


def chats(**more: Any) -> SessionWorkload:
    made = workload({"sessions": {**CHAT, "answers": "live", **more}})
    assert isinstance(made, SessionWorkload)
    return made


def place(request: PlannedRequest) -> Turn:
    assert request.turn is not None
    return request.turn


def messages(request: PlannedRequest) -> tuple[Message, ...]:
    assert request.messages is not None
    return request.messages.messages


def traced(*arrays: tuple[Message, ...], tools: str = "") -> TracedSession:
    """Turns in a row that ask these."""
    said = [MessageArray(array, tools) for array in arrays]
    return TracedSession(
        tuple(
            TracedTurn(len(ids_of(each)), 9, (number,) if number else (), messages=each)
            for number, each in enumerate(said)
        )
    )


def talks(*sessions: TracedSession, **changes: Any) -> TraceSessionWorkload:
    given: dict[str, Any] = {"timed": False, "answers": "live", **changes}
    return TraceSessionWorkload("talks", sessions, DatasetIdentity("made up", "1", "all"), **given)


@pytest.mark.parametrize("more", [{}, {"fan_out": 3, "turns": 9}, {"reset_every": 2}, {"system_tokens": 0}])
def test_roles_hold_the_words_of_the_recorded_prompt(more: dict[str, Any]) -> None:
    live, recorded = chats(**more), chats(**more, answers="recorded")
    decode = reference_tokenizer().decode
    for one, other in zip(live.requests(60, 3), recorded.requests(60, 3), strict=True):
        assert one.messages is not None
        assert other.messages is None
        assert "".join(one.messages.texts) == decode(other.token_ids or ())
        assert ids_of(one.messages).tolist() == list(other.token_ids or ()) == list(one.token_ids or ())
        assert (one.input_tokens, one.max_tokens) == (other.input_tokens, other.max_tokens)
        assert one.messages.mistakes() == []
        assert place(one).live
        assert not place(other).live


def test_answers_stand_where_the_turns_are_that_it_waits_for() -> None:
    requests = chats(fan_out=3, turns=9).requests(9, 3)
    assert [place(each).reads for each in requests[:6]] == [
        (), (1,), (1,), (1,), (1, 2, 3, 4), (1, 2, 3, 4, 5)
    ]  # fmt: skip
    roles = [message.role for message in messages(requests[4])]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]
    lengths = [each.max_tokens for each in requests]
    assert [m.live for m in messages(requests[4]) if m.live] == [
        LivePlace((1,), lengths[0]), LivePlace((2, 3, 4), sum(lengths[1:4]))
    ]  # fmt: skip
    assert [place(each).kept_tokens for each in requests] == [0] * 9


def test_a_turn_that_forgets_reads_nothing() -> None:
    requests = chats(reset_every=2).requests(4, 3)
    assert [place(each).reads for each in requests] == [(), (1,), (), (3,)]


def test_shapes_are_those_of_recorded_answers_the_most_that_it_may_come_to() -> None:
    live, recorded = chats(), chats(answers="recorded")
    shapes = list(islice(live.shapes(5), 10))
    assert shapes == list(islice(recorded.shapes(5), 10))
    totals = [total for shape in shapes for total, _ in prompt_lengths(shape, 15)]
    assert [each.input_tokens for each in live.requests(40, 5)] == totals


def test_a_request_with_the_answers_that_it_reads() -> None:
    requests = chats(fan_out=2, turns=5).requests(5, 3)
    answers = LiveAnswers()
    for number, (text, tokens) in enumerate([("one", 2), ("two", 3), ("three", 4), ("four", 5)], start=1):
        assert answers.asked(requests[number - 1]).input_tokens >= 1
        answers.note(place(requests[number - 1]), text, tokens)
    asked = answers.asked(requests[4])
    said = [message for message in messages(asked) if message.role == "assistant"]
    assert said == [
        Message("assistant", "one"),
        Message("assistant", "two\n\nthree"),
        Message("assistant", "four"),
    ]
    recorded = sum(each.max_tokens for each in requests[:4])
    assert asked.input_tokens == requests[4].input_tokens - recorded + 2 + 3 + 4 + 5
    assert asked.turn == requests[4].turn
    assert answers.asked(requests[0]) is requests[0]
    answers.forget(0)
    nothing = answers.asked(requests[4])
    assert [message.role for message in messages(nothing)] == ["system", "user"]
    assert nothing.input_tokens == requests[4].input_tokens - recorded


def test_where_nothing_was_said_the_user_goes_on() -> None:
    array = MessageArray(
        (
            Message("user", "one"),
            Message("assistant", "?", live=LivePlace((1,), 4)),
            Message("user", "two"),
            Message("assistant", "?", live=LivePlace((2,), 4)),
            Message("user", "three"),
        )
    )
    assert array.reads == (1, 2)
    assert array.answered({1: " ", 2: "ja"}).messages == (
        Message("user", "one\n\ntwo"), Message("assistant", "ja"), Message("user", "three")
    )  # fmt: skip
    assert array.answered({}).messages == (Message("user", "one\n\ntwo\n\nthree"),)
    twice = MessageArray((Message("user", "a"), Message("user", "b")))
    assert twice.answered({}) == twice


def test_the_plan_has_an_identity_and_no_seed_gives_the_prompts() -> None:
    live, recorded = chats(), chats(answers="recorded")
    assert sequence_sha256(live.requests(8, 3)) == sequence_sha256(live.requests(8, 3))
    assert sequence_sha256(live.requests(8, 3)) != sequence_sha256(recorded.requests(8, 3))
    stated = live.specification()
    assert stated["answers"] == "live"
    assert stated["content"]["context"] == "deltas with live answers"
    assert stated["deviations"] == [{"what": "context", "rule": LIVE_ANSWERS}]
    assert check_specification(live) == []
    assert "answers" not in recorded.specification()
    assert "deviations" not in recorded.specification()
    assert rebuilt(described(live)) == live != recorded


def test_answers_of_a_trace_give_way_where_its_messages_go_on() -> None:
    edited = (SAID[0], Message("user", "Where are the pens?"), SAID[2], SAID[3])
    made = talks(traced(SAID[:2], SAID[:4], SAID), traced(SAID[:2], edited))
    requests = made.requests(5, 1)
    assert [place(each).reads for each in requests] == [(), (1,), (1, 2), (), ()]
    first, second = (reference_tokenizer().count(SAID[n].content) for n in (2, 4))
    assert [message.live for message in messages(requests[2])] == [
        None, None, LivePlace((1,), first), None, LivePlace((2,), second), None
    ]  # fmt: skip
    plain = talks(*made.sessions, answers="recorded").requests(5, 1)
    assert [each.input_tokens for each in requests] == [each.input_tokens for each in plain]
    assert [place(each).kept_tokens for each in requests[:3]] == [0, 0, 0]
    assert messages(requests[4]) == edited
    answers = LiveAnswers()
    answers.note(place(requests[0]), "Upstairs.", 3)
    asked = answers.asked(requests[1])
    assert [message.content for message in messages(asked)] == [
        "Be brief.", "Where are the maps?", "Upstairs.", "And the globes?"
    ]  # fmt: skip
    assert asked.input_tokens == requests[1].input_tokens - first + 3
    stated = made.specification()
    assert stated["content"]["context"] == "full message arrays with live answers"
    assert stated["answers"] == "live"


def test_traces_that_cannot_have_live_answers() -> None:
    of_lengths = TracedSession((TracedTurn(20, 5), TracedTurn(40, 5, (1,))))
    with pytest.raises(SuiteError, match="do not show where answers are"):
        talks(of_lengths)
    call = Message("assistant", "", (ToolCall("c", "find", "{}"),))
    with_call = (*SAID[:2], call, Message("tool", "floor 2", call_id="c"))
    with pytest.raises(SuiteError, match=r"session 1, turn 2 has tools"):
        talks(traced(SAID[:2]), traced(SAID[:2], with_call))
    tools = '[{"type":"function","function":{"name":"find","parameters":{}}}]'
    with pytest.raises(SuiteError, match=r"session 0, turn 1 has tools"):
        talks(traced(SAID[:2], tools=tools))


def test_a_word_for_it(tmp_path: Path) -> None:
    made = make_workload("session:chat", answers="live")
    assert (streamed(made).answers, made.name) == ("live", "session:chat")
    assert streamed(make_workload("session:chat")).answers == streamed(None).answers == "recorded"
    assert streamed(make_workload(made, answers="live-compared")).answers == "live-compared"
    with pytest.raises(SuiteError, match="answers applies to sessions"):
        make_workload("synthetic-uniform", answers="live")
    with pytest.raises(SuiteError, match=r"answers is 'alive': give one of recorded, live, live-compared"):
        chats(answers="alive")
    with pytest.raises(SuiteError, match="answers is 3: give a"):
        chats(answers=3)
    (tmp_path / "talks.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}, '
        '{"role": "user", "content": "And now?"}, {"role": "assistant", "content": "Now we go."}]}\n',
        "utf-8",
    )
    table = (
        '[workloads.talks]\nkind = "trace"\npath = "talks.jsonl"\ndataset = "talks"\nversion = "1"\n'
        'subset_method = "all"\nanswers = "live"\n'
    )
    path = tmp_path / "workloads.toml"
    path.write_text(f"{table}sessions = true\nmessages = true\n", "utf-8")
    read = read_workload_file(path)["talks"]
    assert streamed(read).answers == "live"
    assert [place(each).reads for each in read.requests(2, 1)] == [(), (1,)]
    path.write_text(table, "utf-8")
    with pytest.raises(SuiteError, match="answers are for sessions: add sessions = true"):
        read_workload_file(path)
    path.write_text(f"{table}sessions = true\nmessages = true\n".replace('"live"', '"lively"'), "utf-8")
    with pytest.raises(SuiteError, match=r"workloads.talks.answers is 'lively'"):
        read_workload_file(path)


def test_made_into_single_requests_they_have_recorded_answers() -> None:
    """What is changed about the turns of a session is not what it was made of."""
    made = WithFixedOutput(chats(), 7).requests(8, 3)
    assert [(each.turn, each.messages) for each in made] == [(None, None)] * 8
    plain = WithFixedOutput(chats(answers="recorded"), 7).requests(8, 3)
    assert [list(each.token_ids or ()) for each in made] == [list(each.token_ids or ()) for each in plain]
