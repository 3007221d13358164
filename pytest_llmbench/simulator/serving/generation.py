"""The handling of one request for tokens, from its body to the end of its reply."""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar, cast, get_args

from pytest_llmbench.model.request import SESSION_HEADER
from pytest_llmbench.simulator.engine.answers import QuestionAnswer, StructuredAnswer, sum_in
from pytest_llmbench.simulator.engine.cheats import Conduct
from pytest_llmbench.simulator.engine.engine import QueueFullError
from pytest_llmbench.simulator.engine.faults import (
    REFUSALS,
    TRANSPORT_FAULTS,
    WHOLE_REPLY_FAULTS,
    FaultKind,
    FaultSchedule,
    StreamOptions,
    input_refused,
    queue_full,
    refusal_of,
)
from pytest_llmbench.simulator.engine.media import encoder_ns
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import Scenario
from pytest_llmbench.simulator.serving.asgi import Headers, Receive, Scope, Send, until_disconnect
from pytest_llmbench.simulator.serving.driver import EngineDriver, Waiting
from pytest_llmbench.simulator.serving.event_stream import EventStream, PlainStream, ReplyText, TokenTexts
from pytest_llmbench.simulator.serving.fault_injection import (
    BufferedWrites,
    Connection,
    FaultyReply,
    LateWrites,
    strike_of,
)
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import (
    FACE_FAULTS,
    Face,
    FilteredReply,
    Reply,
    StreamedReply,
    WholeReply,
    strike_on,
)
from pytest_llmbench.simulator.serving.request_body import Endpoint
from pytest_llmbench.timing import LoopAlarm

CONNECTION = "connection"
"""Key of the request's ``state`` under which the HTTP protocol leaves its :class:`Connection`."""

_ALL_FAULTS: frozenset[FaultKind] = frozenset(get_args(FaultKind))
_LONG_TEXT = 16_384
"""Number of characters from which on counting tokens takes milliseconds and moves off the event loop."""

Counted = TypeVar("Counted")
Answer = StructuredAnswer | QuestionAnswer
"""What the model answers a request for structured output, or a question that it knows."""


class Tokenizer(Protocol):
    """Counts the tokens of prompts, and gives their ids where a prefix cache compares them."""

    def count(self, text: str) -> int: ...

    def encode(self, text: str) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Asked:
    """A parsed request, and the connection that its answer takes."""

    request: GenerationRequest
    endpoint: Endpoint
    received_ns: int
    scope: Scope
    receive: Receive
    send: Send

    @property
    def connection(self) -> Connection | None:
        """The connection of the request. Only this package's server provides one; None on others."""
        found: Connection | None = self.scope.get("state", {}).get(CONNECTION)
        return found


class Resettable(Protocol):
    """A connection that a crash of the engine resets."""

    def reset(self) -> None: ...


class Generation:
    """Accepts requests, draws their faults, and sees each through to its end."""

    def __init__(self, driver: EngineDriver, scenario: Scenario, tokenizer: Tokenizer) -> None:
        self._driver = driver
        self._config = scenario.engine
        self._options = scenario.stream
        self._faults = FaultSchedule(scenario.faults, scenario.engine.seed, scenario.cheats)
        self._tokenizer = tokenizer
        self._live: dict[Resettable, GroundTruth] = {}
        """Connections with a reply under way, and the ground truth of its request."""
        self.accepted = 0

    @property
    def tells_timings(self) -> bool:
        """Whether replies end with the engine's own figures."""
        return self._options.server_timings

    @property
    def faults_given(self) -> int:
        return self._faults.given

    def require_up(self) -> None:
        """Raise RefusalError 503 while the engine recovers from a crash."""
        if self._driver.clock() < self._driver.loop.down_until_ns:
            raise RefusalError(503, "the engine has crashed and is being started again")

    def crash(self, number: int) -> None:
        """Crash the engine of that number: each connection with a reply of it under way is reset, and
        recovery takes its time."""
        self._driver.crash(number, round(self._config.recovery_ms * 1e6))
        for connection in [live for live, truth in self._live.items() if truth.held_by == number]:
            connection.reset()

    async def encode_prompt(self, request: GenerationRequest) -> Sequence[int]:
        """The prompt's token ids."""
        if request.token_ids is not None:
            return request.token_ids
        encode = self._tokenizer.encode
        return await _beside(
            request.texts,
            lambda: [*(token for text in request.texts for token in encode(text)), *request.media_ids],
        )

    async def _count_prompt(self, request: GenerationRequest) -> int:
        if request.token_ids is not None:
            return len(request.token_ids)
        told = await _beside(request.texts, lambda: sum(map(self._tokenizer.count, request.texts)))
        return told + len(request.media_ids)

    async def answer(self, asked: Asked) -> None:
        """Answer a request with tokens over HTTP. RefusalError if it gets an error status instead."""
        possible = _ALL_FAULTS if asked.connection is not None else _ALL_FAULTS - TRANSPORT_FAULTS
        sequence, truth, answer, conduct = await self._take_in(
            asked.request, asked.received_ns, request_id(asked.scope), possible
        )
        async with contextlib.AsyncExitStack() as stack:
            await self._carry(asked, sequence, truth, stack, answer, conduct)

    async def answer_on(
        self,
        face: Face,
        request: GenerationRequest,
        received_ns: int,
        own_id: str | None,
        session: str | None = None,
    ) -> None:
        """Answer a request on another protocol; returns when the reply is over. RefusalError as in
        :meth:`answer`.

        ``session``: the session that the request says it belongs to. Cancelling is the client's going away.
        Of the stream's options those apply that are not about server-sent events: the sizes of chunks,
        reasoning, white space first, the trace.
        """
        sequence, truth, answer, conduct = await self._take_in(request, received_ns, own_id, FACE_FAULTS)
        text = ReplyText(
            Endpoint.CHAT, truth.request_id, int(time.time()), self._config.model, conduct.first_word
        )
        texts = self._texts(text, Endpoint.CHAT, conduct)
        reply = face.reply(texts, truth, self._options.chunk_tokens(sequence))
        if truth.fault is not None:
            strike = strike_on(cast(FaultKind, truth.fault), face, reply, lambda: self.crash(truth.held_by))
            reply = FaultyReply(reply, strike, self._faults.options.fault_after_tokens, at_end=False)
        async with contextlib.AsyncExitStack() as stack:
            if request.generates:
                reply = self._filtered(reply, sequence, stack)
            waiting = Waiting(sequence, reply, session, lambda: self._say(texts, truth, sequence, answer))
            self._submit(waiting, conduct)
            self._live[face] = truth
            stack.callback(self._live.pop, face, None)
            try:
                await self._begin(waiting, conduct)
                await face.until_over()
            finally:
                reply.stop()
                self._driver.abort(waiting)

    async def _take_in(
        self,
        request: GenerationRequest,
        received_ns: int,
        own_id: str | None,
        possible: frozenset[FaultKind],
    ) -> tuple[EngineSequence, GroundTruth, Answer | None, Conduct]:
        """Count the prompt, draw the request's fault among the ``possible`` ones, and screen the prompt."""
        ids = await self.encode_prompt(request) if self._config.prefix_caching else None
        prompt_tokens = await self._count_prompt(request) if ids is None else len(ids)
        in_flight = 1 + self._driver.running + self._driver.waiting
        prompt = request.texts[-1] if request.token_ids is None and request.texts else request.token_ids
        ceiling = request.ceiling(prompt_tokens, self._config)
        fate = self._fate(possible)
        conduct = self._faults.conduct(prompt or "", ceiling, in_flight)
        ceiling = conduct.ceiling
        answer: Answer | None = None
        if request.structured is not None:
            answer = self._faults.answer(request.structured)
        elif (known := sum_in(request.texts)) is not None:
            answer = self._faults.answer_question(known, in_flight)
            ceiling = min(ceiling, answer.least_tokens)
        await self._screen(prompt_tokens, len(request.media_ids))
        truth = GroundTruth(
            own_id or uuid.uuid4().hex, received_ns, prompt_tokens, fault=fate, generates=request.generates
        )
        if self._options.trace:
            truth.token_ns, truth.write_ns = [], []
        sequence = EngineSequence(
            truth.request_id,
            prompt_tokens,
            ceiling,
            min_tokens=max(request.min_tokens, 0 if answer is None else min(answer.least_tokens, ceiling)),
            ignore_eos=request.ignore_eos,
            priority=request.priority,
            thinks=request.thinks,
            generates=request.generates,
            adapter=request.adapter,
            token_ids=ids,
        )
        return sequence, truth, answer, conduct

    def _say(
        self, texts: TokenTexts, truth: GroundTruth, sequence: EngineSequence, answer: Answer | None
    ) -> None:
        """Settle the text of the tokens, now that their number is known."""
        leading = sequence.think_tokens or min(self._options.lead_reasoning_tokens, sequence.output_tokens)
        texts.reason_first(leading)
        visible = sequence.output_tokens - leading
        if answer is not None:
            said = answer.reply(visible, limited=sequence.finish_reason == "length")
            texts.answer_with(said)
            if isinstance(answer, StructuredAnswer):
                truth.schema_check = said.check
            else:
                truth.answer_check = said.check

    async def _carry(
        self,
        asked: Asked,
        sequence: EngineSequence,
        truth: GroundTruth,
        stack: contextlib.AsyncExitStack,
        answer: Answer | None,
        conduct: Conduct,
    ) -> None:
        """Build the reply, hand the sequence to the engine, and wait until the client has gone."""
        fate = cast(FaultKind | None, truth.fault)
        send = self._path(asked.send, fate, stack)
        created, first_word = int(time.time()), conduct.first_word
        model = asked.request.adapter or self._config.model
        text = ReplyText(asked.endpoint, truth.request_id, created, model, first_word)
        texts = self._texts(text, asked.endpoint, conduct)
        free = answer is None and not conduct.canned
        sizes = self._options.chunk_tokens(sequence)
        reply = self._reply(asked.request, text, texts, truth, send, stack, sizes, free=free)
        if fate is not None and fate not in WHOLE_REPLY_FAULTS:
            reply = self._faulty(reply, asked, fate, send)
        reply = self._filtered(reply, sequence, stack)
        session = session_id(asked.scope)
        waiting = Waiting(sequence, reply, session, lambda: self._say(texts, truth, sequence, answer))
        self._submit(waiting, conduct)
        if asked.connection is not None:
            self._live[asked.connection] = truth
            stack.callback(self._live.pop, asked.connection, None)
        await self._begin(waiting, conduct)
        await until_disconnect(asked.receive)
        reply.stop()
        self._driver.abort(waiting)

    async def _screen(self, prompt_tokens: int, media_tokens: int) -> None:
        """Apply the input filter, which takes its time and refuses some prompts, and the encoder of images
        and sounds."""
        asked_ns = self._driver.clock()
        screening = self._driver.guardrails.screen(prompt_tokens)
        delay_ns = screening.delay_ns + encoder_ns(media_tokens, self._config)
        if delay_ns:
            await LoopAlarm().until(asked_ns + delay_ns)
        if screening.refused:
            raise input_refused()

    def _submit(self, waiting: Waiting, conduct: Conduct) -> None:
        if conduct.from_memory:
            assert waiting.sequence is not None
            waiting.sequence.output_tokens = conduct.ceiling
            waiting.drawn()
        else:
            try:
                self._driver.loop.submit(waiting, self._driver.clock())
            except QueueFullError:
                raise queue_full(self._config, self._faults.options) from None
        self.accepted += 1

    async def _begin(self, waiting: Waiting, conduct: Conduct) -> None:
        """Begin the reply; with what the engine says before it has computed anything, if it cheats."""
        reply = waiting.reply
        await reply.begin()
        for _ in range(conduct.ceiling if conduct.from_memory else conduct.canned):
            reply.truth.note_token(self._driver.clock())
            await reply.token()
        if conduct.from_memory:
            reply.truth.finish_reason = "length"
            await reply.finish("length")
            self._driver.note_end(reply)

    def _fate(self, possible: frozenset[FaultKind]) -> FaultKind | None:
        kind, options = self._faults.next(), self._faults.options
        if kind is not None and kind not in possible:
            raise RefusalError(501, f"the fault {kind!r} of the scenario cannot be given on this connection")
        if kind in REFUSALS:
            raise refusal_of(kind, options)
        return kind

    def _path(self, send: Send, fate: FaultKind | None, stack: contextlib.AsyncExitStack) -> Send:
        """The ``send`` that the reply's bytes go through, with the delays of its fault."""
        if fate == "buffering":
            return BufferedWrites(send)
        if fate not in ("stall", "drip"):
            return send
        late = LateWrites(send, self._faults.options.drip_ms / 1000.0 if fate == "drip" else None)
        stack.callback(asyncio.create_task(late.run()).cancel)
        return late

    def _texts(self, text: ReplyText, endpoint: Endpoint, conduct: Conduct) -> TokenTexts:
        place = self._options.reasoning_place
        if endpoint is Endpoint.COMPLETIONS and place in ("reasoning", "reasoning_content"):
            place = "inline"
        return TokenTexts(text, place, self._options.first_chunk, canned=conduct.canned)

    def _reply(
        self,
        request: GenerationRequest,
        text: ReplyText,
        texts: TokenTexts,
        truth: GroundTruth,
        send: Send,
        stack: contextlib.AsyncExitStack,
        sizes: Iterator[int],
        *,
        free: bool,
    ) -> Reply:
        options, clock = self._options, self._driver.clock
        headers: Headers = [(b"x-request-id", truth.request_id.encode("latin-1"))]
        if not request.stream:
            return WholeReply(send, text, texts, truth, clock, headers, timings=options.server_timings)
        reasons = self._config.think_mean_tokens is not None or self._config.speculative_tokens > 0
        plain = _is_plain(options) and not request.continuous_usage and not reasons and free
        stream = (PlainStream if plain else EventStream)(
            text,
            options,
            sizes,
            truth,
            texts=texts,
            include_usage=request.include_usage,
            continuous_usage=request.continuous_usage,
        )
        reply = StreamedReply(send, stream, truth, clock, headers)
        if options.comment_ms > 0:
            stack.callback(asyncio.create_task(reply.keep_alive(options.comment_ms / 1000.0)).cancel)
        return reply

    def _filtered(self, reply: Reply, sequence: EngineSequence, stack: contextlib.AsyncExitStack) -> Reply:
        """The reply behind the output filter, if the engine has one."""
        guardrails, driver = self._driver.guardrails, self._driver
        if not guardrails.holds:
            return reply
        filtered = FilteredReply(reply, guardrails.open_release(), sequence, driver.clock, driver.note_end)
        stack.callback(asyncio.create_task(filtered.run()).cancel)
        return filtered

    def _faulty(self, reply: Reply, asked: Asked, fate: FaultKind, send: Send) -> Reply:
        options, streamed = self._faults.options, asked.request.stream
        headers: Headers = [(b"x-request-id", reply.truth.request_id.encode("latin-1"))]
        strike = strike_of(
            fate,
            options,
            send,
            asked.connection,
            headers,
            streamed=streamed,
            crash=lambda: self.crash(reply.truth.held_by),
        )
        return FaultyReply(reply, strike, options.fault_after_tokens, at_end=not streamed)


async def _beside(texts: Sequence[str], work: Callable[[], Counted]) -> Counted:
    """Run ``work`` off the event loop if the texts are long, as tokenising these takes milliseconds."""
    if sum(map(len, texts)) < _LONG_TEXT:
        return work()
    return await asyncio.to_thread(work)


def _is_plain(options: StreamOptions) -> bool:
    """Whether nothing in the options changes the bytes of a chunk."""
    others = replace(options, trace=False, comment_ms=0.0, done_marker=True, server_timings=True)
    return others == StreamOptions()


def request_id(scope: Scope) -> str | None:
    """The client's ``x-request-id``; None where there is none."""
    return _header(scope, b"x-request-id")


def session_id(scope: Scope) -> str | None:
    """The client's ``x-session-id``, which names the session that the request is a turn of; None where there
    is none."""
    return _header(scope, SESSION_HEADER.encode())


def _header(scope: Scope, wanted: bytes) -> str | None:
    for name, value in scope["headers"]:
        if name == wanted:
            return str(value.decode("latin-1")) or None
    return None


def refusal_headers(scope: Scope, refusal: RefusalError) -> Headers:
    """Headers of an error response."""
    asked = request_id(scope)
    headers: Headers = [] if asked is None else [(b"x-request-id", asked.encode("latin-1"))]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(math.ceil(refusal.retry_after_s)).encode()))
    return headers
