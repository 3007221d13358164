"""Replies of models that reason, through the whole generator: whatever is known of earlier replies."""

from __future__ import annotations

import pytest
from scripted_server import DONE, HEAD, Conversation, chunked, event, reply, text_event

from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.server_figures import Declared


def body(number: int, *texts: str) -> bytes:
    """A reply with an id, so that others like it are recognised."""
    one = f"chatcmpl-{number:012d}"
    events = [
        {"id": one, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        for text in texts
    ]
    end = {"id": one, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {"id": one, "choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": len(texts)}}
    return HEAD + chunked([*map(event, [*events, end, usage]), DONE])


def test_a_known_shape_does_not_hide_an_opening_tag(serve, generator_for, plan):
    """Six plain replies teach the generator their shape; then one of the same shape begins with a tag."""
    texts = [("Hi", " you", ", too", "!")] * 6 + [
        ("<think>", "Hm", "</think>", "4"),
        ("Hi", " <think>", "b", "c"),
    ]

    def script(conversation: Conversation) -> None:
        conversation.send(body(conversation.turn, *texts[conversation.turn]))

    seen = generator_for(serve(script)).run(plan(8)).records
    reasoned = (seen.first_reasoning_ns != MISSING).tolist()
    assert reasoned == [False] * 6 + [True, False]
    assert bool((seen.outcome == seen.outcome[0]).all())
    assert seen.thinking_end_ns[6] == MISSING, "one read brought all of it"
    assert seen.output_tokens.tolist() == [4] * 8


@pytest.mark.parametrize(
    ("inline", "texts", "outcome", "reasoned"),
    [
        (InlineReasoning("think", True), ("Hm", "</thi", "nk>", "4"), Outcome.OK, True),
        (InlineReasoning("think", True), ("Hm", ", on", " and", " on"), Outcome.EMPTY, True),
        (InlineReasoning("think"), ("Hm", ", on", " and", " on"), Outcome.OK, False),
        (InlineReasoning("none"), ("<think>", "Hm", "</think>", "4"), Outcome.OK, False),
    ],
)
def test_what_is_declared_of_the_tags(serve, generator_for, plan, inline, texts, outcome, reasoned):
    generator = generator_for(serve(reply(body(1, *texts))), declared=Declared(inline))
    seen = generator.run(plan(3)).records
    assert seen.has_outcome(outcome).all()
    assert ((seen.first_reasoning_ns != MISSING) == reasoned).all()


def test_what_the_server_reports_is_read_where_it_is_declared(serve, generator_for, plan):
    head = HEAD.replace(b"Content-Type", b"X-Evictions: 2\r\nContent-Type")
    last = event({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "think_end": "cap"}]})
    whole = head + chunked([text_event("one"), last, DONE])
    told = Declared(end_reason="field:choices.0.think_end", critical_evictions="header:x-evictions")
    seen = generator_for(serve(reply(whole)), declared=told).run(plan(2)).records
    assert list(seen.thinking_end_reason) == ["cap"] * 2
    assert seen.critical_evictions.tolist() == [2, 2]
    undeclared = generator_for(serve(reply(whole))).run(plan(2)).records
    assert list(undeclared.thinking_end_reason) == [None] * 2
    assert undeclared.critical_evictions.tolist() == [MISSING] * 2


def test_a_reply_of_too_many_events_is_read_once_and_no_further(serve, generator_for, plan, monkeypatch):
    monkeypatch.setattr("pytest_llmbench.wire.stream.MOST_EVENTS", 100)
    early, late = (event({"choices": [], "think_end": reason}) for reason in ("cap", "budget"))
    whole = HEAD + chunked([early, *[b"data: \n\n"] * 200, late, DONE])
    told = Declared(end_reason="field:think_end")
    seen = generator_for(serve(reply(whole)), declared=told).run(plan(1)).records
    assert list(seen.thinking_end_reason) == ["cap"]
    assert "more than 100 events" in str(seen.error[0])


@pytest.mark.parametrize("waits_ms", [[3] * 8, [1, 2, 3, 4, 5, 6, 7, 8]])
def test_times_in_headers_are_those_of_each_reply(serve, generator_for, plan, waits_ms):
    """Also where a reply is known by its bytes, with its headers or but for them."""

    def script(conversation: Conversation) -> None:
        told = f"X-Queue: {waits_ms[conversation.turn]}\r\nContent-Type".encode()
        conversation.send(body(1, "tea", " time").replace(b"Content-Type", told))

    declared = Declared(queue_wait="header:x-queue")
    seen = generator_for(serve(script), declared=declared).run(plan(8)).records
    assert seen.ok.all()
    assert sorted(seen.queue_wait_ns // 1_000_000) == waits_ms
