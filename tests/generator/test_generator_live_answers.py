"""Turns that read what the server answered: their prompts are made of its replies."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from scripted_server import (
    DONE,
    HEAD,
    REPLY,
    Conversation,
    ScriptedServer,
    chunked,
    event,
    plain,
    text_event,
)

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.messages import Message, MessageArray
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, SessionSlots, SessionStarts
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.adapted import Cuts
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sequence import drawn_sha256
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.trace_sessions import (
    TracedSession,
    TracedTurn,
    TraceSessionWorkload,
    ids_of,
)

CHAT = SessionWorkload(
    "chat", Fixed(4), Fixed(6), Fixed(5), Fixed(30), system_tokens=12, own_tokens=Fixed(9), answers="live"
)
AGENT = SessionWorkload("agent", Fixed(5), Fixed(6), Fixed(5), fan_out=3, answers="live")
AT_ONCE = SessionWorkload("at once", Fixed(6), Fixed(6), Fixed(5), answers="live")
TOKENS = 3
"""Of each answer, as the server counts; 5 are asked for."""


def answer(*texts: str, finish: str = "stop", tokens: int = TOKENS) -> bytes:
    usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": tokens}}
    parts = [text_event(text) for text in texts]
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return HEAD + chunked((*parts, last, event(usage), DONE))


class Says:
    """Answers each turn of a session with another text, that tells which of its requests it is for."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def number(self, conversation: Conversation) -> int:
        with self._lock:
            self._asked[conversation.headers["x-session-id"]] += 1
            return self._asked[conversation.headers["x-session-id"]]

    def __call__(self, conversation: Conversation) -> None:
        number = self.number(conversation)
        conversation.wait(0.01)
        session = conversation.headers["x-session-id"]
        conversation.send(answer("said ", f"{number} ", f"in {session}"))


def asked(server: ScriptedServer) -> dict[str, list[list[dict[str, Any]]]]:
    """The messages of each request, by session, in the order in which they came."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for served in server.served:
        found.setdefault(served.headers["x-session-id"], []).append(json.loads(served.body)["messages"])
    return found


def answers_in(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [each["content"] for each in messages if each["role"] == "assistant"]


def assert_read(server: ScriptedServer, sessions: int, turns: int) -> None:
    """Turn after turn read all that was answered in its session, word for word, and what was asked there."""
    every = asked(server)
    assert len(every) == sessions
    for session, prompts in every.items():
        assert len(prompts) == turns
        for number, messages in enumerate(prompts):
            assert answers_in(messages) == [f"said {n} in {session}" for n in range(1, number + 1)]
            if number:
                assert messages[: len(prompts[number - 1])] == prompts[number - 1]
            assert messages[-1]["role"] == "user"


def assert_due(seen: Observation, pause_ns: int) -> None:
    records = seen.records
    for session in set(records.session.tolist()):
        own = records.select(records.session == session)
        assert own.turn.tolist() == list(range(1, len(own) + 1))
        assert (own.scheduled_ns[1:] == own.finished_ns[:-1] + pause_ns).all()
        assert (own.dispatched_ns >= own.scheduled_ns).all()


@pytest.mark.parametrize("load", [SessionSlots(2), SessionStarts(30.0)], ids=["closed", "open"])
@pytest.mark.parametrize("workload", [CHAT, AT_ONCE], ids=["with pauses", "without"])
def test_each_turn_reads_what_was_answered(serve, generator_for, plan, workload, load):
    server = serve(Says())
    turns = workload.turns.bounds[1]
    wanted = plan(turns_of(workload, 6, 1), workload=workload, load=load)
    seen = generator_for(server).run(wanted)
    records = seen.records
    assert records.counts()["ok"] == wanted.requests
    assert_read(server, 6, turns)
    assert_due(seen, 0 if workload.pause_ms is None else 30_000_000)
    assert seen.facts.value("wire.messages") == "roles"
    assert seen.sequence_sha256 == drawn_sha256(workload, 0, wanted.requests, 1)


def test_lengths_are_those_of_the_answers_and_what_is_shared_is_not_known(serve, generator_for, plan):
    wanted = plan(turns_of(CHAT, 3, 1), workload=CHAT, load=SessionSlots(3))
    records = generator_for(serve(Says())).run(wanted).records
    first = 12 + 9 + 6
    by_turn = {1: first, 2: first + TOKENS + 6, 3: first + 2 * (TOKENS + 6), 4: first + 3 * (TOKENS + 6)}
    assert records.requested_input_tokens.tolist() == [by_turn[turn] for turn in records.turn.tolist()]
    assert records.requested_max_tokens.tolist() == [5] * 12
    known = records.turn == 1
    assert (records.shared_prefix_tokens[known] == 12).all()
    assert (records.shared_prefix_tokens[~known] == MISSING).all()


def test_a_turn_that_waits_for_several_reads_all_of_them(serve, generator_for, plan):
    server = serve(Says())
    wanted = plan(turns_of(AGENT, 4, 1), workload=AGENT, load=SessionSlots(2))
    assert generator_for(server).run(wanted).records.counts()["ok"] == 20
    for session, prompts in asked(server).items():
        assert [answers_in(each) for each in prompts[:4]] == [[], *[[f"said 1 in {session}"]] * 3]
        first, joined = answers_in(prompts[4])
        assert first == f"said 1 in {session}"
        assert sorted(joined.split("\n\n")) == [f"said {n} in {session}" for n in (2, 3, 4)]


def test_a_reset_forgets_the_answers_too(serve, generator_for, plan):
    workload = SessionWorkload("forgets", Fixed(4), Fixed(6), Fixed(5), reset_every=2, answers="live")
    server = serve(Says())
    records = generator_for(server).run(plan(4, workload=workload, load=SessionSlots(1))).records
    (prompts,) = asked(server).values()
    assert [len(answers_in(each)) for each in prompts] == [0, 1, 0, 1]
    assert (records.shared_prefix_tokens != MISSING).tolist() == [True, False, True, False]


def test_workers_keep_a_session_and_its_answers(serve, plan):
    server = serve(Says())
    wanted = plan(turns_of(CHAT, 7, 1), workload=CHAT, load=SessionSlots(3))
    with DistributedLoadGenerator(Address(server.url), "openai-chat", workers=2, model="m") as generator:
        seen = generator.run(wanted)
    assert seen.records.counts()["ok"] == wanted.requests
    assert_read(server, 7, 4)
    assert_due(seen, 30_000_000)
    assert seen.sequence_sha256 == drawn_sha256(CHAT, 0, wanted.requests, 1)


def test_messages_of_a_trace_with_what_the_server_says_in_them(serve, generator_for, plan):
    server = serve(Says())
    seen = generator_for(server).run(plan(6, workload=talks(), load=SessionSlots(1)))
    assert seen.records.counts()["ok"] == 6
    assert_read(server, 2, 3)
    (prompts, _) = asked(server).values()
    assert [each["content"] for each in prompts[2] if each["role"] != "assistant"] == [
        "Be brief.", "Where are the maps?", "And the globes?", "Thank you. Is it open?"
    ]  # fmt: skip


def talks() -> TraceSessionWorkload:
    said = [
        Message("system", "Be brief."),
        Message("user", "Where are the maps?"),
        Message("assistant", "On the second floor."),
        Message("user", "And the globes?"),
        Message("assistant", "Beside them."),
        Message("user", "Thank you. Is it open?"),
    ]
    arrays = [MessageArray(tuple(said[:end])) for end in (2, 4, 6)]
    turns = tuple(
        TracedTurn(len(ids_of(array)), 9, (number,) if number else (), messages=array)
        for number, array in enumerate(arrays)
    )
    identity = DatasetIdentity("made up", "1", "all")
    return TraceSessionWorkload("talks", (TracedSession(turns),) * 2, identity, timed=False, answers="live")


@pytest.mark.parametrize(
    "bad",
    [
        plain("500 Internal Server Error", b"{}"),
        HEAD + chunked((text_event("x"), event({"error": {"message": "out of memory"}}), DONE)),
    ],
    ids=["by its status", "within a stream"],
)
@pytest.mark.parametrize("workload", [CHAT, AT_ONCE], ids=["with pauses", "without"])
def test_a_turn_that_failed_cuts_its_session_off_before_anything_rests_on_it(
    serve, generator_for, plan, bad, workload
):
    says, lock, number = Says(), threading.Lock(), 0

    def script(conversation: Conversation) -> None:
        nonlocal number
        with lock:
            number += 1
            fails = number == 2
        if fails:
            conversation.send(bad)
        else:
            says(conversation)

    server, turns = serve(script), workload.turns.bounds[1]
    wanted = plan(turns_of(workload, 3, 1), workload=workload, load=SessionSlots(1))
    seen = generator_for(server).run(wanted)
    records = seen.records
    assert records.turn[records.session == 0].tolist() == [1, 2]
    assert records.counts()["ok"] == 1 + 2 * turns
    assert len(server.served) == 2 + 2 * turns
    assert (seen.interrupted, seen.in_flight_at_end) == (None, 0)


def test_of_a_reply_that_was_cut_the_part_that_came_is_read(serve, generator_for, plan):
    """One after three words, one before the first: there is no answer then, and one message of the user."""
    says = Says()

    def script(conversation: Conversation) -> None:
        number = says.number(conversation)
        whole = answer("said ", f"{number}", " and more")
        if number == 2:
            conversation.wait(1.0)  # until its user has gone
        conversation.send(whole[: whole.index(b" and more") - 40] if number == 1 else whole)
        conversation.wait(1.0 if number == 1 else 0.0)

    workload = SessionWorkload(
        "impatient", Fixed(3), Fixed(6), Fixed(5), cuts=Cuts(1.0, Fixed(150)), answers="live"
    )
    server = serve(script)
    records = generator_for(server).run(plan(3, workload=workload, load=SessionSlots(1))).records
    assert records.has_outcome(Outcome.CUT_BY_USER).all()
    assert len(server.served) == 3
    (prompts,) = asked(server).values()
    _, second, third = prompts
    assert answers_in(second) == answers_in(third) == ["said 1"]
    assert [each["role"] for each in third] == ["user", "assistant", "user"]
    assert third[2]["content"].startswith(second[2]["content"] + "\n\n")
    assert records.requested_input_tokens.tolist() == [6, 14, 20]  # two chunks, then nothing


def test_what_cannot_be_sent_again_is_replaced_and_thoughts_are_left_out(serve, generator_for, plan):
    thought = event({"choices": [{"index": 0, "delta": {"reasoning": "hm"}, "finish_reason": None}]})
    half = b'data: {"choices": [{"index": 0, "delta": {"content": "a \\ud83d b"}}]}\n\n'
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    usage = {
        "prompt_tokens": 7,
        "completion_tokens": 9,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    whole = HEAD + chunked((thought, half, last, event({"choices": [], "usage": usage}), DONE))
    server = serve(lambda conversation: conversation.send(whole))
    workload = SessionWorkload("thinks", Fixed(2), Fixed(6), Fixed(5), answers="live")
    records = generator_for(server).run(plan(2, workload=workload, load=SessionSlots(1))).records
    assert records.counts()["ok"] == 2
    (prompts,) = asked(server).values()
    assert answers_in(prompts[1]) == ["a ? b"]
    assert records.requested_input_tokens.tolist() == [6, 6 + 5 + 6]


def content(text: str, choice: int = 0) -> bytes:
    return event({"choices": [{"index": choice, "delta": {"content": text}, "finish_reason": None}]})


def called(name: str = "", arguments: str = "") -> dict[str, Any]:
    calls = [{"index": 0, "function": {"name": name, "arguments": arguments}}]
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": None}]}


def thought(text: str) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"reasoning": text}, "finish_reason": None}]})


SMILE = "\U0001f600"
CALL = (event(called("find", '{"q":')), event(called("", "1}")))


@pytest.mark.parametrize(
    ("parts", "usage", "read", "tokens"),
    [
        # Halves of one character in two events, and of one that stays without the other.
        ((content("\ud83d"), content("\ude00 a"), content("\ude00")), {}, f"{SMILE} a?", 8),
        ((content("Yes."), *CALL), {}, "Yes.", 2),  # four of its fifteen characters
        (CALL, {}, None, 0),
        ((content("one"), content("ab", 1), content(" two"), content("c", 1)), {}, "one two", 6),
        ((content(" second", 1), content("first")), {}, "first", 3),
        ((content("<thi"), content("nk>hm"), content(" </think>ah")), {}, "ah", 3),
        ((content("<think>hm</think>"), content("ah"), content("ha")), {"reasoning_tokens": 5}, "ahha", 3),
        ((thought("hm"), content("ah"), content("ok")), {}, "ahok", 5),
        ((thought("hm"), content("ah")), {"reasoning_tokens": 99}, "ah", 4),  # no count of thoughts
    ],
    ids=[
        "halves", "content and a call", "a call alone", "several choices", "the second first",
        "tags in pieces", "tags and a count", "thoughts that nobody counts", "more thoughts than output",
    ],
)  # fmt: skip
def test_an_answer_is_what_a_user_reads_of_a_reply(serve, generator_for, plan, parts, usage, read, tokens):
    """What calls of tools, thoughts and other choices are of the count is not of the answer's."""
    choices = 2 if any(b'"index": 1, "delta"' in part for part in parts) else 1
    ends = [event({"choices": [{"index": n, "delta": {}, "finish_reason": "stop"}]}) for n in range(choices)]
    counted = {"prompt_tokens": 7, "completion_tokens": 8, "completion_tokens_details": usage}
    whole = HEAD + chunked((*parts, *ends, event({"choices": [], "usage": counted}), DONE))
    server = serve(lambda conversation: conversation.send(whole))
    workload = SessionWorkload("reads", Fixed(2), Fixed(6), Fixed(40), answers="live")
    records = generator_for(server).run(plan(2, workload=workload, load=SessionSlots(1))).records
    if read is None:
        assert [records.turn.tolist(), len(server.served)] == [[1, 2], 2]
    else:
        assert records.counts()["ok"] == 2, list(records.error)
    (prompts,) = asked(server).values()
    assert answers_in(prompts[1]) == ([] if read is None else [read])
    assert records.requested_input_tokens.tolist() == [6, 6 + tokens + 6]


@pytest.mark.parametrize(
    "parts",
    [
        (content(""),),
        (content(" \n"),),
        (thought("hm"),),
        (event({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "content_filter"}]}),),
        (b'data: {"choices": [{"index": 0, "delta": {"content": "\xf0\x9f"}}]}\n\n',),
        (event({"error": {"message": "blocked by the content filter", "code": "content_filter"}}),),
    ],
    ids=["empty", "white space", "thoughts alone", "filtered", "half of a character", "refused"],
)
def test_without_an_answer_the_session_is_cut_off(serve, generator_for, plan, parts):
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    ends = () if b"content_filter" in parts[0] else (last,)
    usage = event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}})
    server = serve(lambda conversation: conversation.send(HEAD + chunked((*parts, *ends, usage, DONE))))
    seen = generator_for(server).run(plan(12, workload=CHAT, load=SessionSlots(1)))
    assert seen.records.counts()["ok"] == 0
    assert seen.records.turn.tolist() == [1, 1, 1]
    assert len(server.served) == 3
    assert seen.interrupted is None


def test_of_a_reply_that_was_cut_in_its_thoughts_nothing_is_read(serve, generator_for, plan):
    def script(conversation: Conversation) -> None:
        conversation.send(HEAD + chunked((content("<think>hm"), content(" well")))[:-5])
        conversation.wait(1.0)  # until its user has gone

    workload = SessionWorkload(
        "hurried", Fixed(2), Fixed(6), Fixed(5), cuts=Cuts(1.0, Fixed(100)), answers="live"
    )
    server = serve(script)
    records = generator_for(server).run(plan(2, workload=workload, load=SessionSlots(1))).records
    assert records.has_outcome(Outcome.CUT_BY_USER).all()
    (prompts,) = asked(server).values()
    assert [each["role"] for each in prompts[1]] == ["user"]
    assert records.requested_input_tokens.tolist() == [6, 12]


def test_a_turn_that_cannot_be_written_ends_the_load_with_its_cause(serve, plan):
    """The Messages API has no place for what the system says later on, which a later turn's history holds."""
    said = [
        Message("user", "Where are the maps?"),
        Message("assistant", "On the second floor."),
        Message("system", "Be brief."),
        Message("user", "And the globes?"),
    ]
    arrays = (MessageArray((said[0],)), MessageArray(tuple(said)))
    turns = tuple(
        TracedTurn(len(ids_of(array)), 9, (number,) if number else (), messages=array)
        for number, array in enumerate(arrays)
    )
    identity = DatasetIdentity("made up", "1", "all")
    workload = TraceSessionWorkload(
        "talks", (TracedSession(turns),) * 2, identity, timed=False, answers="live"
    )
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1}}
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "so"}}
    server = serve(
        lambda talk: talk.send(HEAD + chunked([event(text), event(end), event({"type": "message_stop"})]))
    )
    with (
        LoadGenerator(Target.parse(server.url), dialect("anthropic-messages"), model="m") as generator,
        pytest.raises(SuiteError, match="message 3 is the system's"),
    ):
        generator.run(plan(4, workload=workload, load=SessionSlots(1)))


def test_known_replies_are_read_where_their_text_is_asked_for(serve, generator_for, plan):
    """A generator that has learnt how replies look recognises them without reading their text."""
    server = serve(lambda conversation: conversation.send(REPLY))
    generator = generator_for(server)
    assert generator.run(plan(20, load=ClosedLoop(1))).records.counts()["ok"] == 20
    before = len(server.served)
    assert generator.run(plan(8, workload=CHAT, load=SessionSlots(1))).records.counts()["ok"] == 8
    prompts = [json.loads(served.body)["messages"] for served in server.served[before:]]
    assert [answers_in(each) for each in prompts] == [["one two"] * number for number in range(4)] * 2


def test_token_ids_of_what_nobody_has_said_yet_cannot_be_sent(serve, plan):
    server = serve(Says())
    spoken = dialect("openai-completions")
    wanted = plan(4, workload=CHAT, load=SessionSlots(1))
    with (
        LoadGenerator(Target.parse(server.url), spoken, model="m", prompt_form="token_ids") as generator,
        pytest.raises(SuiteError, match="cannot be sent as token ids"),
    ):
        generator.run(wanted)
    assert server.served == []


def test_an_api_of_one_text_gets_the_conversation_rendered(serve, plan):
    def script(conversation: Conversation) -> None:
        parts = ({"text": "so", "finish_reason": None}, {"text": " so", "finish_reason": "stop"})
        usage = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
        sent = [event({"choices": [{"index": 0, **part}]}) for part in parts]
        conversation.send(HEAD + chunked((*sent, event(usage), DONE)))

    server = serve(script)
    with LoadGenerator(Target.parse(server.url), dialect("openai-completions"), model="m") as generator:
        seen = generator.run(plan(3, workload=talks(), load=SessionSlots(1)))
    assert seen.records.counts()["ok"] == 3
    assert json.loads(server.served[1].body)["prompt"] == (
        "system: Be brief.\n\nuser: Where are the maps?\n\nassistant: so so\n\nuser: And the globes?\n\n"
        "assistant:"
    )
    assert seen.facts.value("wire.messages") == "one_text"
