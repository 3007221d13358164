"""``llm_client``: single requests from async tests. They are no load: no budget, no record, no statistics."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import httpx

from pytest_llmbench.errors import RequestFailedError, SuiteError
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.prepared import PreparedRequest, kept_prompt
from pytest_llmbench.generator.reply_reader import MOST_COUNTED, ReplyReader
from pytest_llmbench.http_client import is_grpc, is_websocket, over_http, socket_path
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.probes.access import Access, RequestForm
from pytest_llmbench.probes.control_plane import (
    CutOffError,
    as_httpx,
    explain,
    proxy_to,
    tls_context,
    without_query,
)
from pytest_llmbench.probes.model_list import below
from pytest_llmbench.redaction import outward
from pytest_llmbench.tokens import HuggingFaceTokenizer, ReferenceTokenizer, reference_tokenizer
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import Chunk, increments
from pytest_llmbench.wire.dialect import Dialect, EncodeOptions, headers_for, path_for
from pytest_llmbench.wire.sse import NDJSONDecoder, SSEDecoder

T = TypeVar("T")
Prompt = str | Sequence[Mapping[str, Any]]

MOST_BYTES = 64 * 1024 * 1024
_SENT = "send_request_body.complete"
"""The end of httpx's name for the instant at which the last byte of a request has left."""


@dataclass(frozen=True)
class Reply:
    """The outcome of one request. The client reads it like a reply of a load, and this process stamps it.

    Instants are taken when a read returns to Python, in the event loop of the test, which may be busy. They
    show that a reply came in time. To compare milliseconds, use the markers.
    """

    text: str
    """All visible output as one text."""
    reasoning: str
    record: RequestRecord = field(repr=False)
    """The record that a load would make of the request."""

    @property
    def ok(self) -> bool:
        """Whether the reply is a complete stream with visible content and a normal finish reason."""
        return self.record.outcome is Outcome.OK

    @property
    def outcome(self) -> Outcome:
        return self.record.outcome

    @property
    def error(self) -> str | None:
        """Why the reply is not ``ok``, in a sentence without secrets; None if it is ``ok``."""
        return None if self.record.error is None else outward(self.record.error)

    @property
    def status(self) -> int | None:
        """HTTP status of the answer; None without an answer."""
        return self.record.http_status

    @property
    def finish_reason(self) -> str | None:
        return self.record.finish_reason

    @property
    def input_tokens(self) -> int | None:
        """Tokens of the prompt, as counted by the server, else by the tokenizer of the SUT file, else by the
        reference tokenizer; None if there is no count."""
        return self.record.input_tokens

    @property
    def output_tokens(self) -> int | None:
        """Tokens of the output, counted by the source that ``record.token_source`` names; None if there is no
        count."""
        return self.record.output_tokens

    @property
    def ttft_ms(self) -> float | None:
        """Time to first token in milliseconds: from the last byte of the request to the first visible text
        that is more than white space. None if no such text came."""
        return _between_ms(self.record.submitted_ns, self.record.first_content_ns)

    @property
    def latency_ms(self) -> float | None:
        """Time from the last byte of the request to the end of the reply, in milliseconds; None if it did not
        end."""
        return _between_ms(self.record.submitted_ns, self.record.finished_ns)

    @property
    def chunk_gaps_ms(self) -> list[float]:
        """Gaps between consecutive chunks with output, in milliseconds. A chunk is a wire event, not always
        one token."""
        return [(after - before) / 1e6 for before, after in pairwise(self.record.chunk_ns)]


def _between_ms(begin_ns: int | None, end_ns: int | None) -> float | None:
    return None if begin_ns is None or end_ns is None else (end_ns - begin_ns) / 1e6


class LLMClient:
    """A client for the session's system under test, with its model, dialect, key, headers and TLS
    settings."""

    def __init__(
        self,
        url: Callable[[], str],
        model: str,
        api: str,
        access: Access,
        asking: RequestForm,
        tokenizer: HuggingFaceTokenizer | None = None,
    ) -> None:
        """``url``: returns the base URL of the API. ``tokenizer``: the SUT's own; by default the reference
        tokenizer counts and makes ids."""
        self._url = url
        self.model = model
        self.api = api
        """The name of the dialect, such as ``openai-chat``."""
        self._access = access
        self._asking = asking
        self._own_tokenizer = tokenizer
        self._tls: ssl.SSLContext | None = None

    @property
    def url(self) -> str:
        """The base URL of the API, ``http://host/v1``."""
        return without_query(self._url())

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 256,
        temperature: float = 0.0,
        extra_body: Mapping[str, Any] | None = None,
        timeout_s: float = 120.0,
        check: bool = True,
    ) -> ReplyStream:
        """Prepare a request. Iterating over its chunks sends it: ``async for chunk in …stream("Hello")``.

        Each chunk has ``text``, ``reasoning``, ``finish_reason`` and ``stamp_ns``; after the last chunk the
        stream has its ``reply``. ``prompt`` is text, or a list of messages if the dialect has messages.
        ``extra_body`` replaces fields of the SUT file and of ``llm_sut``. ``timeout_s`` bounds the whole
        exchange. A request that fails raises :class:`RequestFailedError`, whose ``reply`` holds what was
        received; with ``check=False`` nothing is raised, and ``reply.error`` says why. Raises SuiteError for
        a request that cannot be sent.
        """
        if max_tokens < 1 or not timeout_s > 0:
            raise SuiteError("max_tokens and timeout_s must be more than 0", where="llm_client")
        if is_websocket(self._url()) or is_grpc(self._url()):
            kind = "gRPC" if is_grpc(self._url()) else "WebSockets"
            raise SuiteError(
                f"llm_client sends requests over HTTP, but --llm-endpoint is {kind}",
                where=f"llm_client, {self.url}",
                remedy="give the http:// URL of the server, if it has one, or use another client",
            )
        extra = {**self._asking.extra_body, **(extra_body or {})}
        body = self._encoded(prompt, max_tokens, temperature, extra)
        text = prompt if isinstance(prompt, str) else None
        request = PreparedRequest("llm-client", body, 0, max_tokens, 0, prompt=kept_prompt(text))
        return ReplyStream(self, request, timeout_s, check=check)

    async def complete(self, prompt: Prompt, **options: Any) -> Reply:
        """Send a request and return its whole reply. The reply is streamed too; the keywords are those of
        :meth:`stream`."""
        stream = self.stream(prompt, **options)
        async for _ in stream:
            pass
        return stream.reply

    @property
    def dialect(self) -> Dialect:
        return dialect(self.api)

    @property
    def reader(self) -> ReplyReader:
        """A reader that reads replies as the load generator does."""
        source = (
            TokenSource.REFERENCE_TOKENIZER if self._own_tokenizer is None else TokenSource.TOKENIZER_FILE
        )
        return ReplyReader(
            self.dialect,
            count_text=lambda text: self._tokenizer.count(text[:MOST_COUNTED]),
            counted_by=source,
            model=self.model,
        )

    @property
    def endpoint(self) -> str:
        """The URL that requests are posted to."""
        return below(self._url(), path_for(self.dialect, self.model))

    def explain(self, error: httpx.RequestError) -> str:
        """Why an exchange failed, in words."""
        return ": ".join(explain(self.endpoint, error, self._access, may_speak_tls=False))

    def connected(self) -> httpx.AsyncClient:
        """A client for one exchange: connections do not outlive the loop of the test that made them."""
        if self._tls is None:
            self._tls = tls_context(self._access)
        headers = {
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            "User-Agent": "pytest-llmbench",
            **headers_for(self.dialect, self._access.credentials.headers),
            **self._access.credentials.headers,
        }
        # The preflight has refused a proxy of the environment that nobody asked for.
        timeout = httpx.Timeout(None, connect=self._access.connect_s)
        path, proxy = socket_path(self._url()), proxy_to(self._url(), self._access)
        way = httpx.AsyncHTTPTransport(uds=path) if path else None
        return httpx.AsyncClient(
            headers=headers,
            verify=self._tls,
            trust_env=False,
            timeout=timeout,
            transport=way,
            proxy=None if path or proxy is None else as_httpx(proxy),
        )

    @property
    def _tokenizer(self) -> HuggingFaceTokenizer | ReferenceTokenizer:
        return self._own_tokenizer or reference_tokenizer()

    def _encoded(
        self, prompt: Prompt, max_tokens: int, temperature: float, extra: Mapping[str, Any]
    ) -> bytes:
        if not isinstance(prompt, str):
            extra = {**extra, "messages": [dict(message) for message in prompt]}
        asked = self._asking
        form = asked.prompt_form
        text = prompt if isinstance(prompt, str) else ""
        ids = tuple(self._tokenizer.encode(text)) if form == "token_ids" else None
        planned = PlannedRequest(0, max_tokens, 0, token_ids=ids, text=text, temperature=temperature)
        without = EncodeOptions(self.model, asked.ignore_eos, {}, form)
        if not isinstance(prompt, str) and "messages" not in json.loads(
            self.dialect.encode(planned, without)
        ):
            raise SuiteError(
                f"{self.api} has no messages", where="llm_client", remedy="give the prompt as a text"
            )
        return self.dialect.encode(planned, EncodeOptions(self.model, asked.ignore_eos, extra, form))


class _Decoder:
    """Decodes the chunks of a reply as its bytes come."""

    def __init__(self, spoken: Dialect) -> None:
        self._spoken = spoken
        self._events = NDJSONDecoder() if spoken.protocol == "ndjson" else SSEDecoder()
        self._decoded: deque[Chunk] = deque()
        taken = iter(self._decoded.popleft, None)
        self._reduced = increments(taken) if spoken.accumulates else taken

    def feed(self, piece: bytes, stamp_ns: int, read: int) -> Iterator[Chunk]:
        for event in self._events.feed(piece, stamp_ns, read):
            self._decoded.append(self._spoken.decode(event))
            yield next(self._reduced)


class ReplyStream:
    """One request and its reply. Iterate over it once, for the chunks as they arrive. After that it has a
    ``reply``."""

    def __init__(self, client: LLMClient, request: PreparedRequest, timeout_s: float, *, check: bool) -> None:
        self._client = client
        self._exchange = Exchange(request, 0, 0, lambda _: None)
        self._timeout_s = timeout_s
        self._deadline_s = 0.0
        self._check = check
        self._begun = False
        self._chunks: list[Chunk] = []
        self._reply: Reply | None = None

    @property
    def reply(self) -> Reply:
        """The outcome of the request. Raises SuiteError before the last chunk."""
        if self._reply is None:
            raise SuiteError(
                "the reply has not ended", where="llm_client", remedy="iterate over all of its chunks first"
            )
        return self._reply

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        if self._begun:
            raise SuiteError("a request is sent once", where="llm_client", remedy="call stream() again")
        self._begun = True
        self._deadline_s = time.monotonic() + self._timeout_s
        self._exchange.scheduled_ns = self._exchange.dispatched_ns = time.monotonic_ns()
        try:
            async for chunk in self._received():
                self._chunks.append(chunk)
                yield chunk
            self._end(End.COMPLETE)
        except TimeoutError:
            self._end(End.TIMEOUT, f"not ended after {trimmed(self._timeout_s)} s")
        except httpx.TimeoutException as error:
            self._end(End.TIMEOUT, self._client.explain(error))
        except httpx.ConnectError as error:
            self._end(End.UNREACHABLE, self._client.explain(error))
        except httpx.RequestError as error:
            status = self._exchange.status
            begun = f"HTTP {status}, and after {sum(map(len, self._exchange.bodies))} bytes of the answer"
            said = error if status is None else CutOffError.behind(begun, error)
            self._end(End.BROKEN, self._client.explain(said))
        steps = self._client.reader.steps(self._exchange)  # read as the load generator would
        while True:
            try:
                next(steps)
            except StopIteration as ended:
                record: RequestRecord = ended.value
                break
        text, reasoning = ("".join(getattr(c, name) for c in self._chunks) for name in ("text", "reasoning"))
        self._reply = Reply(text, reasoning, record)
        if self._check and not self._reply.ok:
            failed = RequestFailedError(
                f"{record.outcome}: {record.error}",
                where=without_query(self._client.endpoint),
                remedy="read the reply of this exception, or pass check=False",
            )
            failed.reply = self._reply
            raise failed

    async def _received(self) -> AsyncIterator[Chunk]:
        exchange = self._exchange

        async def note(event: str, _: Mapping[str, Any]) -> None:
            if event.endswith(_SENT):
                exchange.submitted_ns = time.monotonic_ns()

        async with self._client.connected() as http:
            url = over_http(self._client.endpoint)
            request = http.build_request("POST", url, content=exchange.request.wire)
            request.extensions["trace"] = note
            response = await self._in_time(http.send(request, stream=True))
            exchange.status, exchange.headers = response.status_code, list(response.headers.raw)
            streams = 200 <= response.status_code < 300
            decoder, pieces, received = _Decoder(self._client.dialect), response.aiter_raw(), 0
            while piece := await self._in_time(anext(pieces, b"")):
                now_ns, received = time.monotonic_ns(), received + len(piece)
                exchange.stamps.append(now_ns)
                exchange.bodies.append(piece)
                if received > MOST_BYTES:
                    self._end(End.GARBAGE, f"more than {MOST_BYTES >> 20} MiB")
                    return
                for chunk in decoder.feed(piece, now_ns, len(exchange.stamps) - 1) if streams else ():
                    yield chunk
                    if chunk.done:
                        return

    async def _in_time(self, step: Awaitable[T]) -> T:
        async with asyncio.timeout(max(0.0, self._deadline_s - time.monotonic())):
            return await step

    def _end(self, end: End, error: str | None = None) -> None:
        self._exchange.finish(end, time.monotonic_ns(), error)
