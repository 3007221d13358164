"""Embeddings, reranking, scores and log-probabilities of a prompt: requests of prefill alone, answered with
one JSON document.

A request is one prefill of all its inputs together: the engine's time, its cache and its scheduler are those
of a prompt of that length, and the document leaves where a first token would. Vectors and scores are numbers
made of the inputs, the same each time; they mean nothing.
"""

from __future__ import annotations

import json
import random
import struct
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.serving.asgi import Receive, Scope, Send, send_json
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.event_stream import TokenTexts, error_object
from pytest_llmbench.simulator.serving.generation import Generation, request_id, session_id
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import HttpFace, Reply
from pytest_llmbench.simulator.serving.request_body import VOCABULARY_SIZE, Fields, content_of, require_model

DIMENSIONS = 64
"""Number of dimensions of a vector. Real ones have ten to fifty times as many, which costs a client time to
read."""


@dataclass(frozen=True, slots=True)
class Asked:
    """The parsed body of a request for a document."""

    texts: tuple[str, ...]
    """All texts that have to be read, in order."""
    token_ids: list[int] | None
    """Token ids of the only input, instead of text; None: it is text."""
    results: Callable[[int], list[dict[str, Any]]]
    """Makes the results from the number of tokens that were read."""


_Parse = Callable[[Mapping[str, Any]], Asked]


def _embeddings(content: Mapping[str, Any]) -> Asked:
    given, form = content.get("input"), content.get("encoding_format", "float")
    if form not in ("float", "base64"):
        raise RefusalError(400, "encoding_format must be float or base64", "encoding_format")
    pack = _packed if form == "base64" else list
    if isinstance(given, list) and given and all(type(token) is int for token in given):
        if not 0 <= min(given) <= max(given) < VOCABULARY_SIZE:
            raise RefusalError(400, f"input must be token ids from 0 to {VOCABULARY_SIZE - 1}", "input")
        return Asked((), given, lambda _: [_embedding(0, pack(_vector(str(given))))])
    texts = _texts(given, "input")
    return Asked(
        texts,
        None,
        lambda _: [_embedding(number, pack(_vector(text))) for number, text in enumerate(texts)],
    )


def _embedding(number: int, vector: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": number, "embedding": vector}


def _rerank(content: Mapping[str, Any]) -> Asked:
    (query,) = _texts(content.get("query"), "query", most=1)
    documents = _texts(content.get("documents"), "documents")
    most = content.get("top_n")
    if most is not None and (type(most) is not int or most < 1):
        raise RefusalError(400, "top_n must be a whole number of 1 or more", "top_n")

    def results(_: int) -> list[dict[str, Any]]:
        scores = [_score(query, text) for text in documents]
        best = sorted(range(len(scores)), key=lambda number: -scores[number])[:most]
        return [{"index": number, "relevance_score": scores[number]} for number in best]

    return Asked(_pairs([query], documents), None, results)


def _scores(content: Mapping[str, Any]) -> Asked:
    firsts, seconds = _texts(content.get("text_1"), "text_1"), _texts(content.get("text_2"), "text_2")
    if len(firsts) not in (1, len(seconds)):
        raise RefusalError(400, "text_1 must be one text, or as many as text_2", "text_1")
    pairs = list(zip(firsts * (len(seconds) if len(firsts) == 1 else 1), seconds, strict=True))
    return Asked(
        _pairs(firsts, seconds),
        None,
        lambda _: [
            {"index": number, "object": "score", "score": _score(*pair)} for number, pair in enumerate(pairs)
        ],
    )


def _logprobs(content: Mapping[str, Any]) -> Asked:
    fields = Fields(dict(content))
    texts, token_ids = fields.prompt()
    fields.require_none_wrong()

    def results(tokens: int) -> list[dict[str, Any]]:
        drawn = random.Random(zlib.crc32(json.dumps([texts, token_ids]).encode()))
        entries = [None, *(round(-drawn.expovariate(0.5), 4) for _ in range(tokens - 1))]
        told = {"token_logprobs": entries, "tokens": [], "top_logprobs": None, "text_offset": []}
        return [{"index": 0, "text": "".join(texts), "logprobs": told, "finish_reason": "length"}]

    return Asked(texts, None if token_ids is None else list(token_ids), results)


_COMPLETIONS = "/v1/completions"
_APIS: Mapping[str, tuple[_Parse, str]] = {
    "/v1/embeddings": (_embeddings, "data"),
    "/v1/rerank": (_rerank, "results"),
    "/v1/score": (_scores, "data"),
    _COMPLETIONS: (_logprobs, "choices"),
}


class DocumentFace:
    """Serves the requests whose replies are documents."""

    paths = tuple(path for path in _APIS if path != _COMPLETIONS)

    def __init__(self, generation: Generation, driver: EngineDriver) -> None:
        self._generation = generation
        self._driver = driver

    def asked(self, path: str, body: bytes) -> bool:
        """Whether the reply is a document: true also of a completion that echoes its prompt and generates
        nothing."""
        if path != _COMPLETIONS or b'"echo"' not in body:
            return path in self.paths
        content = content_of(body)
        return content.get("echo") is True and content.get("max_tokens") == 0

    async def serve(self, body: bytes, received_ns: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. Raises RefusalError if it gets a status instead of a document."""
        parse, key = _APIS[scope["path"]]
        content = content_of(body)
        model = self._driver.config.model
        named = content.get("model")
        if named is not None and not isinstance(named, str):
            raise RefusalError(400, "model must be a string", "model")
        require_model(named, model)
        asked = parse(content)
        request = GenerationRequest(
            texts=asked.texts,
            token_ids=asked.token_ids,
            stream=False,
            max_tokens=1,
            ignore_eos=True,
            generates=False,
        )
        face = _Document(asked, key, scope, receive, send, self._driver)
        await self._generation.answer(face, request, received_ns, request_id(scope), session_id(scope))


class _Document(HttpFace):
    """Face and reply of one request for a document."""

    truth: GroundTruth

    def __init__(
        self, asked: Asked, key: str, scope: Scope, receive: Receive, send: Send, driver: EngineDriver
    ) -> None:
        super().__init__(scope, receive)
        self._asked = asked
        self._key = key
        self._send = send
        self._driver = driver

    # The face.

    def reply(self, _texts: TokenTexts, truth: GroundTruth, _chunk_tokens: Iterator[int], /) -> Reply:
        self.truth = truth
        return self

    def end(self) -> None:
        """End the reply before its document: over HTTP, only closing the connection can do so."""
        self.reset()

    # The reply.

    async def begin(self) -> None:
        """Do nothing: nothing is sent before the document is complete."""

    async def token(self) -> None:
        """Note that prefill is complete; its token is no part of the reply."""

    async def finish(self, reason: str) -> bool:
        if reason == "content_filter":
            await self.fail("the output filter refused the reply")
            return False
        truth = self.truth
        usage = {"prompt_tokens": truth.prompt_tokens, "total_tokens": truth.prompt_tokens}
        document = {
            "id": truth.request_id,
            "object": "list",
            "model": self._driver.config.model,
            self._key: self._asked.results(truth.prompt_tokens),
            "usage": usage,
        }
        truth.first_write_ns = truth.last_write_ns = self._driver.clock()
        truth.note_write(truth.last_write_ns)
        await send_json(self._send, 200, document, [(b"x-request-id", truth.request_id.encode("latin-1"))])
        self.over.set()
        return False

    async def fail(self, message: str) -> None:
        await send_json(self._send, 500, error_object(message))
        self.over.set()

    def stop(self) -> None:
        """Do nothing: nothing is written before the end anyway."""


def _texts(value: Any, name: str, most: int | None = None) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given or not all(isinstance(text, str) for text in given):
        raise RefusalError(400, f"{name} must be a text{'' if most else ' or a list of texts'}", name)
    if most is not None and len(given) > most:
        raise RefusalError(400, f"{name} must be one text", name)
    return tuple(given)


def _pairs(firsts: tuple[str, ...] | list[str], seconds: tuple[str, ...]) -> tuple[str, ...]:
    """The texts that a cross-encoder reads: each pair whole, so a single first text once for each second
    one."""
    return (*firsts * (len(seconds) if len(firsts) == 1 else 1), *seconds)


def _vector(text: str) -> list[float]:
    drawn = random.Random(zlib.crc32(text.encode("utf-8", "surrogatepass")))
    return [round(drawn.uniform(-1.0, 1.0), 6) for _ in range(DIMENSIONS)]


def _packed(vector: list[float]) -> str:
    return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _score(first: str, second: str) -> float:
    return round(zlib.crc32(json.dumps([first, second]).encode()) / 2**32, 6)
