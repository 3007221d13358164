"""Embeddings, reranking, scores and log-probabilities: bodies, documents, and what is no result."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.extras.non_generative.dialects import DocumentDecoder
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import DIALECTS, dialect
from pytest_llmbench.wire.dialect import EncodeOptions, NonGenerativeDialect, ResultsAsked
from pytest_llmbench.wire.reply import StreamSummary
from pytest_llmbench.wire.stream import chunks_of

NAMES = ("openai-embeddings", "rerank", "score", "logprobs")
TEXT = "one two three four five six seven eight nine"
USAGE = {"prompt_tokens": 7, "total_tokens": 7}


def planned(text: str = TEXT) -> PlannedRequest:
    """Of a text that is the author's own, where it holds separators; else of drawn ids."""
    ids = None if "\x1e" in text else (1, 2, 3, 4)
    return PlannedRequest(0, max_tokens=0, input_tokens=4, text=text, token_ids=ids)


def spoken(name: str) -> NonGenerativeDialect:
    found = dialect(name)
    assert isinstance(found, NonGenerativeDialect)
    return found


def body(name: str, text: str = TEXT, **options: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(spoken(name).encode(planned(text), EncodeOptions("m", **options)))
    return decoded


def read(name: str, document: Any, asked: int = 1, cut: int = 0, inputs: int | None = None) -> StreamSummary:
    data = document if isinstance(document, bytes) else json.dumps(document).encode()
    reads = [(data[:cut], 5), (data[cut:], 9)]
    return spoken(name).summary(list(chunks_of(reads, spoken(name))), ResultsAsked(asked, inputs or asked))


def whole(name: str, count: int = 1, **more: Any) -> dict[str, Any]:
    """A good reply."""
    if name == "rerank":
        results = [{"index": number, "relevance_score": 0.5 - number} for number in reversed(range(count))]
        return {"id": "x", "results": results, "usage": USAGE, **more}
    if name == "logprobs":
        entries = [[None, -0.5, -2, *[-1.0] * (7 - 3 - count + 1)], *[[None]] * (count - 1)]
        told = [{"index": n, "logprobs": {"token_logprobs": each}} for n, each in enumerate(entries)]
        return {"choices": told, "usage": USAGE, **more}
    value = {"score": {"score": 0.25}, "openai-embeddings": {"embedding": [0.5, -1, 2e-3]}}[name]
    return {"data": [{"index": number, **value} for number in range(count)], "usage": USAGE, **more}


@pytest.mark.parametrize("name", ["openai-embeddings", "logprobs"])
def test_a_separator_among_drawn_ids_separates_nothing(name: str) -> None:
    """Else one of some hundred random prompts is two inputs, or is refused."""
    for ids in ((1, 2, 3), ()):  # within this process, and as they are dealt to a worker
        drawn = PlannedRequest(0, max_tokens=0, input_tokens=3, text="one\x1etwo", token_ids=ids)
        sent = json.loads(spoken(name).encode(drawn, EncodeOptions("m")))
        assert sent["input" if name == "openai-embeddings" else "prompt"] == "one\x1etwo"


def test_bodies() -> None:
    assert body("embeddings") == {"model": "m", "input": TEXT, "encoding_format": "float"}
    assert body("openai-embeddings", prompt_form="token_ids")["input"] == [1, 2, 3, 4]
    assert body("openai-embeddings", "a\x1eb")["input"] == ["a", "b"]
    assert body("rerank") == {
        "model": "m",
        "query": "one two",
        "documents": ["three four five six seven eight nine"],
    }
    assert body("rerank", "q\x1ea b\x1ec")["documents"] == ["a b", "c"]
    assert body("score", "q\x1ed") == {"model": "m", "text_1": "q", "text_2": "d"}
    assert body("score", "q\x1ed\x1ee")["text_2"] == ["d", "e"]
    assert body("score", "ab") == {"model": "m", "text_1": "a", "text_2": "b"}
    assert body("rerank", "no_space_in_this_one")["query"] == "no"
    echo = {"max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0.0}
    assert body("logprobs") == {"model": "m", "prompt": TEXT, **echo}
    assert body("logprobs", prompt_form="token_ids")["prompt"] == [1, 2, 3, 4]
    assert body("logprobs", "a\x1eb")["prompt"] == ["a", "b"]


def test_what_cannot_be_sent() -> None:
    for name in ("rerank", "score"):
        with pytest.raises(GeneratorError, match="less than two characters"):
            body(name, "a")
        with pytest.raises(GeneratorError, match="takes text, not token ids"):
            body(name, prompt_form="token_ids")
    for name in NAMES:
        with pytest.raises(SuiteError, match="end-of-sequence"):
            body(name, ignore_eos=True)


def test_how_many_results_a_body_asks_for() -> None:
    def asked(name: str, text: str, **options: Any) -> int:
        known = spoken(name)
        return results_asked(known, text, **options).results

    def results_asked(known: NonGenerativeDialect, text: str, **options: Any) -> ResultsAsked:
        return known.results_asked(known.encode(planned(text), EncodeOptions("m", **options)))

    assert asked("openai-embeddings", TEXT) == asked("score", TEXT) == asked("rerank", TEXT) == 1
    assert asked("openai-embeddings", "a", prompt_form="token_ids") == 1
    assert asked("logprobs", "a", prompt_form="token_ids") == asked("logprobs", TEXT) == 1
    assert asked("logprobs", "a\x1eb\x1ec") == 3
    assert asked("openai-embeddings", "a\x1eb\x1ec") == 3
    assert asked("score", "a\x1eb\x1ec") == asked("rerank", "a\x1eb\x1ec") == 2
    assert results_asked(spoken("rerank"), "a\x1eb\x1ec", extra_body={"top_n": 1}) == (1, 2)


def test_they_are_found_by_name_and_never_by_auto() -> None:
    for name in NAMES:
        assert dialect(name).name == name
        assert dialect(name).protocol == "json"
        assert name not in DIALECTS
    assert dialect("embeddings") is dialect("openai-embeddings")
    for known in DIALECTS.values():
        assert not isinstance(known, NonGenerativeDialect)


@pytest.mark.parametrize("name", NAMES)
@given(cut=st.integers(0, 400), count=st.integers(1, 4))
def test_a_good_reply_wherever_it_is_cut_into_reads(name: str, cut: int, count: int) -> None:
    summary = read(name, whole(name, count), count, cut)
    assert (summary.outcome, summary.error) == (Outcome.OK, None)
    assert summary.input_tokens == 7
    assert (summary.output_tokens, summary.first_event_ns, summary.first_content_ns) == (None, None, None)
    assert (summary.chunk_ns, summary.last_content_ns) == ([], None)


@pytest.mark.parametrize("name", NAMES)
@given(end=st.integers(0, 400))
def test_a_part_of_a_reply_is_never_a_success(name: str, end: int) -> None:
    data = json.dumps(whole(name)).encode()
    if end < len(data):
        assert read(name, data[:end]).outcome in (Outcome.UNDECODABLE, Outcome.EMPTY)


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_read_without_an_exception(name: str, data: bytes) -> None:
    assert read(name, data).outcome is not Outcome.OK


@pytest.mark.parametrize("name", NAMES)
def test_replies_that_fail(name: str) -> None:
    key = {"rerank": "results", "logprobs": "choices"}.get(name, "data")
    for document, outcome, said in (
        (b"", Outcome.EMPTY, "empty body"),
        (b"<html>", Outcome.UNDECODABLE, "no JSON object but <html>"),
        ([1], Outcome.UNDECODABLE, "no JSON object"),
        ({}, Outcome.UNDECODABLE, f"no list of {key}"),
        ({key: []}, Outcome.EMPTY, "no result"),
        (whole(name, 2), Outcome.UNDECODABLE, "2 results, 1 were requested"),
        ({key: [3]}, Outcome.UNDECODABLE, "result 0, which is not a JSON object"),
        ({key: [{"index": 0}]}, Outcome.UNDECODABLE, "result 0 without"),
        ({key: whole(name)[key] * 2}, Outcome.UNDECODABLE, "two results for the same input"),
        ({key: [{**whole(name)[key][0], "index": "a"}]}, Outcome.UNDECODABLE, "not the number of an input"),
        ({key: [{**whole(name)[key][0], "index": -1}]}, Outcome.UNDECODABLE, "not the number of an input"),
        ({key: [{**whole(name)[key][0], "index": 1}]}, Outcome.UNDECODABLE, "a result for input 1 of 1"),
        ({"error": {"message": "no such model"}}, Outcome.IN_BAND_ERROR, "no such model"),
        (whole(name, error={"message": "late"}), Outcome.IN_BAND_ERROR, "late"),
        (json.dumps(whole(name)).encode() + b"\xff", Outcome.UNDECODABLE, "not UTF-8"),
    ):
        summary = read(name, document)
        assert summary.outcome is outcome, document
        assert summary.error is not None
        assert said in summary.error


@pytest.mark.parametrize(("index", "outcome"), [(0, "ok"), (3, "ok"), (4, "undecodable")])
def test_the_best_of_several_documents_are_of_those_that_were_sent(index: int, outcome: str) -> None:
    best = {"results": [{"index": index, "relevance_score": 0.5}]}
    assert read("rerank", best, 1, inputs=4).outcome == outcome


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "0.5", True, 10**400])
def test_no_number_is_no_score(value: Any) -> None:
    for name, result in (
        ("score", {"score": value}),
        ("rerank", {"index": 0, "relevance_score": value}),
        ("openai-embeddings", {"embedding": [0.5, value]}),
    ):
        key = "results" if name == "rerank" else "data"
        assert read(name, {key: [result]}).outcome is Outcome.UNDECODABLE, name


def test_vectors_as_base64() -> None:
    def vector(data: bytes) -> dict[str, Any]:
        return {"data": [{"embedding": base64.b64encode(data).decode()}]}

    assert read("embeddings", vector(struct.pack("<3f", 0.5, -1, 2))).outcome is Outcome.OK
    for data in (b"", b"abc", struct.pack("<2f", 1, float("nan"))):
        assert read("embeddings", vector(data)).outcome is Outcome.UNDECODABLE
    assert read("embeddings", {"data": [{"embedding": "***"}]}).error == (
        "the reply holds result 0 with an embedding that is not base64"
    )
    assert read("embeddings", {"data": [{"embedding": []}]}).outcome is Outcome.UNDECODABLE


def test_input_tokens_by_every_way_of_telling_them() -> None:
    for usage, tokens in (
        ({"usage": {"total_tokens": 5}}, 5),
        ({"usage": None, "meta": {"tokens": {"input_tokens": 6}}}, 6),
        ({"usage": {"prompt_tokens": -1}, "meta": {"billed_units": {"search_units": 1}}}, None),
        ({"usage": []}, None),
    ):
        assert read("rerank", {**whole("rerank"), **usage}).input_tokens == tokens


def test_a_document_beyond_the_limit_is_undecodable() -> None:
    decoder = DocumentDecoder(max_line_bytes=64)
    assert decoder.feed(b"[" + b"1," * 100, 3, 0) == []
    (event,) = decoder.close()
    assert event.problem == "a document of more than 64 bytes"
    assert len(event.data) == 64


@pytest.mark.parametrize(
    ("entries", "usage", "said"),
    [
        ([None, -1.0, float("-inf")], {}, "not a finite number"),
        ([None, -1.0, float("nan")], {}, "not a finite number"),
        ([None, -1.0, None], {}, "not a finite number"),
        ([None, "-1"], {}, "not a finite number"),
        ([None, True], {}, "not a finite number"),
        ([None, -1.0, 0.5], {}, "a log-probability of 0.50, which is above 0"),
        ([], {}, "without log-probabilities of its prompt"),
        (None, {}, "without log-probabilities of its prompt"),
        ([None, -1.0], {"prompt_tokens": 3}, "of 2 tokens where the server counts 3 in the prompt"),
        ([None, -1.0], {"prompt_tokens": 3, "completion_tokens": 1}, "of 2 tokens where the server counts 3"),
        ([None, -1.0, 1e-4], {"prompt_tokens": 3}, None),
        ([-0.5, -1.0, -9999.0], {"prompt_tokens": 3, "completion_tokens": 0}, None),
        (
            [None, -1.0, -2.0],
            {"prompt_tokens": 2, "completion_tokens": 1},
            None,
        ),  # one was generated all the same
        ([None], {"prompt_tokens": 1}, None),
        ([None, -1.0], {}, None),
    ],
)
def test_log_probabilities_are_of_every_token_of_the_prompt(
    entries: Any, usage: dict[str, int], said: str | None
) -> None:
    document = {"choices": [{"index": 0, "logprobs": {"token_logprobs": entries}}], "usage": usage}
    summary = read("logprobs", document)
    assert summary.outcome is (Outcome.OK if said is None else Outcome.UNDECODABLE)
    assert said is None or said in (summary.error or "")


@pytest.mark.parametrize(
    "choice", [{}, {"logprobs": None}, {"logprobs": []}, {"logprobs": {"tokens": ["a"]}}]
)
def test_a_completion_without_log_probabilities_is_none(choice: dict[str, Any]) -> None:
    summary = read("logprobs", {"choices": [{"index": 0, "text": "a", **choice}], "usage": USAGE})
    assert (summary.outcome, summary.error) == (
        Outcome.UNDECODABLE,
        "the reply holds result 0 without log-probabilities of its prompt",
    )


def test_a_document_is_read_with_the_blanks_around_it() -> None:
    decoder = DocumentDecoder()
    decoder.feed("\u00a0{}\n".encode(), 1, 0)  # a blank in Python, and a mistake in JSON
    assert [event.data for event in decoder.close()] == ["\u00a0{}\n"]
