"""The dialects of embeddings, reranking, scores and log-probabilities: each reply is one JSON document, its
bytes one event, its results counted.

Success is a whole document with as many results as the request has inputs, each a vector of finite numbers, a
finite score or the log-probabilities of its tokens. Anything else is a failed request with its cause,
whatever the status said: such an endpoint answers quickly, and would look fast.

A prompt is one text. Where it holds the control character RS (U+001E, "record separator"), each of its parts
is an input of its own: several texts to embed, or a query and its documents. Where it holds none and a pair
is wanted, it is cut between words: the first eighth is the query, the rest the document.

OpenAI's embeddings: ``POST …/embeddings``, a vector for each input.

Source: OpenAI's API reference, "Create embeddings"; vLLM, SGLang, llama.cpp and TEI serve the same form.
Vectors come as lists of numbers or, with ``encoding_format: base64`` among the extra fields, as little-endian
float32.

Reranking: ``POST …/rerank``, a score for each document, best first.

The form is that of Cohere's API, which Jina's and vLLM's share: ``results`` with ``index`` and
``relevance_score``. TEI's own ``/rerank`` answers with a bare list and is another one. Usage is vLLM's and
Jina's; Cohere tells tokens in ``meta`` or not at all.

vLLM's scores: ``POST …/score``, a similarity for each pair of texts.

Source: vLLM's online serving, "Score API": ``text_1`` against ``text_2``, one text or a list of them.

Log-probabilities of a prompt: ``POST …/completions`` with ``echo`` and no output.

Source: OpenAI's API reference, "Completions" (``echo``, ``logprobs``); vLLM serves the same form, and
lm-evaluation-harness asks it. The first token of a prompt has no predecessor, so its entry is null.
"""

from __future__ import annotations

import binascii
import json
import math
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.numbers import number
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, Usage, as_count, read_error
from pytest_llmbench.wire.dialect import EncodeOptions, JsonRequests, NonGenerativeDialect, ResultsAsked
from pytest_llmbench.wire.error_replies import beginning, shorten
from pytest_llmbench.wire.openai_chat import text_prompt, token_prompt
from pytest_llmbench.wire.reply import StreamSummary, outcome_of_error
from pytest_llmbench.wire.sse import CappedDecoder, SSEEvent

ReadResult = Callable[[Mapping[str, Any]], str]
"""Checks one of the results; returns what is wrong with it, empty if nothing is."""
ReadAll = Callable[[Mapping[str, Any], list[Any]], str]
"""Checks the document and all its results together; returns what is wrong, empty if nothing is."""


class DocumentDialect(JsonRequests, NonGenerativeDialect):
    """A dialect whose replies are one document."""

    protocol = "json"
    ends_with_body = True
    can_ignore_eos = False

    def summary(self, chunks: Sequence[Chunk], asked: ResultsAsked) -> StreamSummary:
        """The summary of a whole reply to a request for the results ``asked``.

        There is no token in it and no instant of one: the reply is there when its last byte is.
        """
        summary = StreamSummary()
        usage = chunks[0].usage if chunks else None
        summary.input_tokens = None if usage is None else usage.input_tokens
        summary.outcome, problem = _outcome(chunks, asked)
        summary.error = problem or None
        return summary


class DocumentDecoder(CappedDecoder):
    """Collects the body as one event, with the stamp of its last byte. Feed it reads in order, then close it
    once."""

    noun, blanks = "document", ""

    def feed(self, data: bytes, stamp_ns: int, read_index: int) -> list[SSEEvent]:
        """No event: the document ends with the body."""
        if data:
            self._take(data)
            self._stamp_ns, self._read_index = stamp_ns, read_index
        return []

    def close(self) -> list[SSEEvent]:
        """The document as an event; none if there is not a byte of it."""
        return self._whole()


def read_results(
    event: SSEEvent, key: str, read_result: ReadResult, read_all: ReadAll = lambda *_: ""
) -> Chunk:
    """The chunk of a document whose results are the list under ``key``."""
    chunk = Chunk(event.stamp_ns, event.read_index)
    if event.problem:
        chunk.problem = event.problem
        return chunk
    try:
        payload = orjson.loads(event.data)
    except ValueError:  # NaN and Infinity, which JSON has no words for: they are to be named, not unread
        try:
            payload = json.loads(event.data)
        except (ValueError, RecursionError):
            payload = None
    if payload.__class__ is not dict:
        chunk.problem = f"no JSON object but {shorten(beginning(event.data, 200), 80)}"
        return chunk
    if read_error(chunk, payload):
        return chunk
    results = payload.get(key)
    if results.__class__ is not list:
        chunk.problem = f"no list of {key}"
        return chunk
    chunk.results, problem = _inputs_of(results, read_result)
    chunk.problem = problem or read_all(payload, results)
    chunk.choice, chunk.done = 0, True
    # Of a reply without output the total is the same as the prompt; the last one is Cohere's.
    usage, meta = payload.get("usage"), payload.get("meta")
    tokens = meta.get("tokens") if meta.__class__ is dict else None
    said = [(usage, "prompt_tokens"), (usage, "total_tokens"), (tokens, "input_tokens")]
    counts = [as_count(source.get(key)) for source, key in said if source.__class__ is dict]
    count = next((count for count in counts if count is not None), None)
    chunk.usage = None if count is None else Usage(input_tokens=count)
    return chunk


def _inputs_of(results: list[Any], read_result: ReadResult) -> tuple[list[int], str]:
    """The input number of each result, and the first mistake in the results, empty if there is none."""
    numbers: list[int] = []
    for place, result in enumerate(results):
        if result.__class__ is not dict:
            return numbers, f"result {place}, which is not a JSON object"
        wrong = read_result(result)
        if wrong:
            return numbers, f"result {place} {wrong}"
        number = result.get("index", place)
        if number.__class__ is not int or number < 0:
            return numbers, "a result whose index is not the number of an input"
        numbers.append(number)
    return numbers, "two results for the same input" if len(set(numbers)) < len(numbers) else ""


def finite(value: Any) -> bool:
    """Whether the value is a number, and neither NaN nor infinite."""
    if value.__class__ is not int and value.__class__ is not float:
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond what any model says
        return False


def _outcome(chunks: Sequence[Chunk], asked: ResultsAsked) -> tuple[Outcome, str]:
    if not chunks:
        return Outcome.EMPTY, "the reply has an empty body"
    chunk = chunks[0]
    if chunk.error is not None:
        return outcome_of_error(chunk, StreamSummary()), chunk.error
    if chunk.problem:
        return Outcome.UNDECODABLE, f"the reply holds {chunk.problem}"
    found = len(chunk.results)
    if not found:
        return Outcome.EMPTY, "the reply holds no result"
    if found != asked.results:
        return Outcome.UNDECODABLE, f"the reply holds {found} results, {asked.results} were requested"
    if max(chunk.results) >= asked.inputs:
        said = f"a result for input {shorten(str(max(chunk.results)), 20)} of {asked.inputs}, counted from 0"
        return Outcome.UNDECODABLE, f"the reply holds {said}"
    return Outcome.OK, ""


SEPARATOR: Final = "\x1e"
_QUERY_SHARE: Final = 8


def texts_of(request: PlannedRequest) -> list[str]:
    """The inputs of a request, at least one.

    :raises GeneratorError: it has no text.
    """
    text = text_prompt(request)
    # Some of the ids that are drawn stand for the separator, and in what they are decoded to it separates
    # nothing.
    return [text] if request.token_ids is not None else text.split(SEPARATOR)


def texts_or_ids(request: PlannedRequest, options: EncodeOptions) -> Any:
    """The inputs as a body holds them: a text, a list of texts, or the token ids of one.

    :raises GeneratorError: the request has no text, or no ids, where that is asked for.
    """
    if options.prompt_form != "text":
        return token_prompt(request)
    texts = texts_of(request)
    return texts[0] if len(texts) == 1 else texts


def one_result_each(given: Any) -> ResultsAsked:
    """What a body with :func:`texts_or_ids` asks for: a result for each input."""
    of_texts = given.__class__ is list and given and given[0].__class__ is not int
    inputs = len(given) if of_texts else 1
    return ResultsAsked(inputs, inputs)


def query_and_documents(request: PlannedRequest) -> tuple[str, list[str]]:
    """The query and the documents of a request, at least one.

    :raises GeneratorError: it has no text, or one too short to be cut in two.
    """
    first, *rest = texts_of(request)
    if rest:
        return first, rest
    if len(first) < 2:
        raise GeneratorError(
            "a query and a document cannot be made of a prompt of less than two characters",
            where=f"request {request.index}",
            remedy="use longer prompts, or separate query and documents by U+001E",
        )
    at = max(1, len(first) // _QUERY_SHARE)
    space = first.find(" ", at)
    cut = at if space < 0 or not first[space:].strip() else space
    return first[:cut], [first[cut:].lstrip() or first[cut:]]


_FLOAT32_BYTES = 4
_NOT_FINITE = "with an embedding that is not finite"


class OpenAIEmbeddings(DocumentDialect):
    """The input is the prompt, as text or token ids."""

    name = "openai-embeddings"
    path = "/embeddings"
    accepts_token_ids = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        given = texts_or_ids(request, options)
        return {"model": options.model, "input": given, "encoding_format": "float"}

    def results_asked(self, body: bytes) -> ResultsAsked:
        return one_result_each(orjson.loads(body)["input"])

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "data", _wrong_embedding)


def _wrong_embedding(result: Mapping[str, Any]) -> str:
    vector = result.get("embedding")
    if vector.__class__ is str:
        try:
            packed = b64decode(vector, validate=True)
        except (binascii.Error, ValueError):
            return "with an embedding that is not base64"
        if not packed or len(packed) % _FLOAT32_BYTES:
            return f"with an embedding of {len(packed)} bytes, which is not a vector of float32"
        return "" if np.isfinite(np.frombuffer(packed, "<f4")).all() else _NOT_FINITE
    if vector.__class__ is not list:
        return "without an embedding"
    if not vector:
        return "with an embedding that is not a list of numbers"
    if not set(map(type, vector)) <= {int, float}:
        return "with an embedding that holds something other than numbers"
    try:
        whole = all(map(math.isfinite, vector))
    except OverflowError:
        whole = False
    return "" if whole else _NOT_FINITE


class Rerank(DocumentDialect):
    """The prompt is a query and its documents, as the head of this module says."""

    name = "rerank"
    path = "/rerank"

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        query, documents = query_and_documents(request)
        return {"model": options.model, "query": query, "documents": documents}

    def results_asked(self, body: bytes) -> ResultsAsked:
        """How many results a request asks for; ``top_n`` among the extra fields asks for only the best
        ones."""
        asked = orjson.loads(body)
        documents, most = len(asked["documents"]), asked.get("top_n")
        results = min(documents, most) if most.__class__ is int and most > 0 else documents
        return ResultsAsked(results, documents)

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "results", _wrong_ranked)


def _wrong_ranked(result: Mapping[str, Any]) -> str:
    if "index" not in result:
        return "without an index"
    return "" if finite(result.get("relevance_score")) else "without a finite relevance_score"


class Score(DocumentDialect):
    """The prompt is a text and those that it is compared with, cut as a query and its documents are."""

    name = "score"
    path = "/score"

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        text, others = query_and_documents(request)
        against: Any = others[0] if len(others) == 1 else others
        return {"model": options.model, "text_1": text, "text_2": against}

    def results_asked(self, body: bytes) -> ResultsAsked:
        asked = orjson.loads(body)
        lengths = [len(asked[key]) for key in ("text_1", "text_2") if asked[key].__class__ is list]
        pairs = max(lengths, default=1)
        return ResultsAsked(pairs, pairs)

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "data", _wrong_score)


def _wrong_score(result: Mapping[str, Any]) -> str:
    return "" if finite(result.get("score")) else "without a finite score"


_ROUNDED = 1e-3
"""Tolerance for a log-probability above 0, which rounding may cause."""


class LogProbs(DocumentDialect):
    """The input is the prompt, as text or token ids. A result is an entry for each of its tokens."""

    name = "logprobs"
    path = "/completions"
    accepts_token_ids = True

    def fields(self, request: PlannedRequest, options: EncodeOptions) -> dict[str, Any]:
        given = texts_or_ids(request, options)
        asked = {"max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0.0}
        return {"model": options.model, "prompt": given, **asked}

    def results_asked(self, body: bytes) -> ResultsAsked:
        return one_result_each(orjson.loads(body)["prompt"])

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "choices", _wrong_logprobs, _wrong_with_all)


def _wrong_logprobs(result: Mapping[str, Any]) -> str:
    entries = _entries(result)
    if not entries:
        return "without log-probabilities of its prompt"
    if not all(map(finite, entries[1:])) or not (entries[0] is None or finite(entries[0])):
        return "with a log-probability that is not a finite number"
    most = max(entries[1:], default=0.0)
    return f"with a log-probability of {number(most)}, which is above 0" if most > _ROUNDED else ""


def _wrong_with_all(payload: Mapping[str, Any], results: list[Any]) -> str:
    """What is wrong with all entries together: there must be one for each input token that the server
    counts."""
    usage = payload.get("usage")
    if usage.__class__ is not dict:
        return ""
    tokens, generated = as_count(usage.get("prompt_tokens")), as_count(usage.get("completion_tokens"))
    found = sum(len(_entries(result)) for result in results)
    if tokens is None or found in (tokens, tokens + (generated or 0)):
        return ""
    return f"log-probabilities of {found} tokens where the server counts {tokens} in the prompt"


def _entries(result: Mapping[str, Any]) -> list[Any]:
    said = result.get("logprobs")
    entries = said.get("token_logprobs") if said.__class__ is dict else None
    return entries if entries.__class__ is list else []
