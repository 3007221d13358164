"""No dialect raises, whatever JSON a server sends, and none makes output of what is none."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_corpus import REPLIES
from wire_corpus_apis import API_REPLIES

from pytest_llmbench.wire.catalogue import DIALECTS
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.reply import read_stream
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.stream import chunks_of, events_of

ODD = [None, True, 0, -1, 2.5, "", "x", [], [None], [[]], {}, {"type": []}, {"error": {}}]
"""What stands in the place of a value, one after another."""


def payloads(name: str) -> list[Any]:
    """Every event that the corpus has in this dialect, as JSON."""
    protocol = DIALECTS[name].protocol
    bodies = [reply.body for reply in [*REPLIES, *API_REPLIES] if reply.dialect == name]
    found = []
    for event in (event for body in bodies for event in events_of([(body, 0)], protocol=protocol)):
        if event.data.startswith("{") and event.terminated and not event.problem:
            found.append(json.loads(event.data))
    return found


def with_one_odd(value: Any) -> list[Any]:
    """The value with each value in it replaced by each odd one."""
    if not isinstance(value, dict):
        return []
    found = [{**value, key: odd} for key in value for odd in ODD]
    return found + [{**value, key: inner} for key in value for inner in with_one_odd(value[key])]


@pytest.mark.parametrize("name", DIALECTS)
def test_one_odd_value_anywhere_is_no_crash(name):
    decode = DIALECTS[name].decode
    seen = 0
    for payload in payloads(name):
        for odd in with_one_odd(payload):
            chunk = decode(SSEEvent(json.dumps(odd), "message", 1, 0))
            assert isinstance(chunk.text, str)
            assert isinstance(chunk.reasoning, str)
            assert chunk.finish_reason is None or isinstance(chunk.finish_reason, str)
            read_stream([chunk])
            seen += 1
    assert seen > 50


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(st.sampled_from(["type", "delta", "message", "token", "text", "done"]), inner)
        ),
        max_leaves=6,
    ),
    st.sampled_from(["message", "error", "ping", "response.output_text.delta"]),
)
def test_no_json_is_a_crash(payload, event):
    for known in DIALECTS.values():
        known.decode(SSEEvent(json.dumps(payload), event, 1, 0))


@pytest.mark.parametrize("name", DIALECTS)
def test_an_event_that_was_cut_off_is_an_empty_chunk(name):
    decode = DIALECTS[name].decode
    cut = SSEEvent('{"type":"response.outp', "message", 7, 2, terminated=False)
    assert decode(cut) == Chunk(7, 2)
    assert decode(replace(cut, problem="bytes that are not UTF-8")) == Chunk(7, 2)
    assert decode(replace(cut, terminated=True)).problem


@pytest.mark.parametrize("name", DIALECTS)
def test_a_whole_page_is_no_reply(name):
    body = b"<html>\n<p>busy</p>\n</html>\n"
    summary = read_stream(list(chunks_of([(body, 1)], DIALECTS[name])))
    assert summary.outcome in ("empty", "undecodable", "truncated")
    assert summary.text == ""
