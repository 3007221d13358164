"""The handling of one request for tokens, from its body to the end of its reply."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from pytest_llmbench.model.request import SESSION_HEADER
from pytest_llmbench.simulator.engine.answers import StructuredAnswer, sum_in
from pytest_llmbench.simulator.engine.cheats import Conduct
from pytest_llmbench.simulator.engine.engine import QueueFullError
from pytest_llmbench.simulator.engine.faults import (
    WHOLE_REPLY_FAULTS,
    Admitted,
    FaultOptions,
    FaultSchedule,
    input_refused,
    queue_full,
)
from pytest_llmbench.simulator.engine.guardrails import Release
from pytest_llmbench.simulator.engine.media import encoder_ns
from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import Scenario
from pytest_llmbench.simulator.serving.asgi import Headers, Scope
from pytest_llmbench.simulator.serving.driver import EngineDriver, Waiting
from pytest_llmbench.simulator.serving.event_stream import TokenTexts
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.replies import Face, FaultyReply, FilteredReply
from pytest_llmbench.timing import LoopAlarm

_LONG_TEXT = 16_384
"""Number of characters from which on counting tokens takes milliseconds and moves off the event loop."""

Counted = TypeVar("Counted")


class Tokenizer(Protocol):
    """Counts the tokens of prompts, and gives their ids where a prefix cache compares them."""

    def count(self, text: str) -> int: ...

    def encode(self, text: str) -> Sequence[int]: ...


class Generation:
    """Accepts requests, draws their faults, and sees each through to its end."""

    def __init__(self, driver: EngineDriver, scenario: Scenario, tokenizer: Tokenizer) -> None:
        self._driver = driver
        self._config = scenario.engine
        self.options = scenario.stream
        self._faults = FaultSchedule(scenario.faults, scenario.engine.seed, scenario.cheats)
        self._tokenizer = tokenizer
        self._live: dict[Face, GroundTruth] = {}
        """Requests with a reply under way, and the ground truth of each."""
        self.accepted = 0

    @property
    def fault_options(self) -> FaultOptions:
        return self._faults.options

    @property
    def faults_given(self) -> int:
        return self._faults.given

    def require_up(self) -> None:
        """Raise RefusalError 503 while the engine recovers from a crash."""
        if self._driver.clock() < self._driver.loop.down_until_ns:
            raise RefusalError(503, "the engine has crashed and is being started again")

    async def encode_prompt(self, request: GenerationRequest) -> Sequence[int]:
        """The prompt's token ids."""
        if request.token_ids is not None:
            return request.token_ids
        encode = self._tokenizer.encode
        return await _beside(
            request.texts,
            lambda: [*(token for text in request.texts for token in encode(text)), *request.media_ids],
        )

    async def answer(
        self,
        face: Face,
        request: GenerationRequest,
        received_ns: int,
        own_id: str | None,
        session: str | None = None,
    ) -> None:
        """Answer a request on a protocol; returns when the reply is over. RefusalError if it gets an error
        status instead.

        ``session``: the session that the request says it belongs to. Cancelling is the client's going away.
        Where events are not those of chat and completions, of the stream's options those apply that are not
        about them: the sizes of chunks, reasoning, white space first, the trace.
        """
        sequence, truth, admitted = await self._take_in(request, received_ns, own_id, face)
        conduct = admitted.conduct
        assert conduct is not None
        place = self.options.reasoning_place
        if face.inline and place in ("reasoning", "reasoning_content"):
            place = "inline"
        texts = TokenTexts(conduct.first_word, place, self.options.first_chunk, canned=conduct.canned)
        reply = face.reply(texts, truth, self.options.chunk_tokens(sequence))
        if admitted.fault is not None and admitted.fault not in WHOLE_REPLY_FAULTS:
            struck, kind = reply, admitted.fault

            async def strike() -> bool:
                if kind != "crash":
                    return await face.strike(kind, struck)
                self._crash(truth.held_by)
                return True

            after_tokens = None if face.whole else self._faults.options.fault_after_tokens
            reply = FaultyReply(reply, strike, after_tokens)
        guardrails, driver = self._driver.guardrails, self._driver
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(face.close)
            if guardrails.holds and request.generates:
                release = Release(guardrails)
                reply = filtered = FilteredReply(reply, release, sequence, driver.clock, driver.note_end)
                stack.callback(asyncio.create_task(filtered.run()).cancel)
            waiting = Waiting(
                sequence, reply, session, lambda: self._settle(texts, truth, sequence, admitted)
            )
            self._submit(waiting, conduct)
            self._live[face] = truth
            stack.callback(self._live.pop, face, None)
            try:
                await self._begin(waiting, conduct)
                await face.until_over()
            finally:
                reply.stop()
                driver.abort(waiting)

    async def _take_in(
        self, request: GenerationRequest, received_ns: int, own_id: str | None, face: Face
    ) -> tuple[EngineSequence, GroundTruth, Admitted]:
        """Count the prompt, admit the request, and screen the prompt, which takes its time: that of the input
        filter, which refuses some, and of the encoder of images and sounds."""
        driver, texts = self._driver, request.texts
        ids = await self.encode_prompt(request) if self._config.prefix_caching else request.token_ids
        if ids is not None:
            prompt_tokens = len(ids)
        else:
            counted = await _beside(texts, lambda: sum(map(self._tokenizer.count, texts)))
            prompt_tokens = counted + len(request.media_ids)
        admitted = self._faults.admit(
            request,
            prompt_tokens,
            self._config,
            lambda: driver.running + driver.waiting,
            prompt=(texts[-1] if request.token_ids is None and texts else request.token_ids) or "",
            question=sum_in(texts) if request.structured is None else None,
            structured=request.structured,
            possible=face.faults,
        )
        asked_ns = driver.clock()
        screening = driver.guardrails.screen(prompt_tokens)
        delay_ns = screening.delay_ns + encoder_ns(len(request.media_ids), self._config)
        if delay_ns:
            await LoopAlarm().until(asked_ns + delay_ns)
        if screening.refused:
            raise input_refused()
        request_id, generates = own_id or uuid.uuid4().hex, request.generates
        truth = GroundTruth(request_id, received_ns, prompt_tokens, fault=admitted.fault, generates=generates)
        if self.options.trace:
            truth.token_ns, truth.write_ns = [], []
        known = ids if self._config.prefix_caching else None
        sequence = admitted.sequence(request, prompt_tokens, request_id=request_id, token_ids=known)
        return sequence, truth, admitted

    def _settle(
        self, texts: TokenTexts, truth: GroundTruth, sequence: EngineSequence, admitted: Admitted
    ) -> None:
        """Settle the text of the tokens, now that their number is known."""
        leading = sequence.think_tokens or min(self.options.lead_reasoning_tokens, sequence.output_tokens)
        texts.reason_first(leading)
        if (answer := admitted.answer) is not None:
            visible = sequence.output_tokens - leading
            said = answer.reply(visible, limited=sequence.finish_reason == "length")
            texts.answer_with(said)
            if isinstance(answer, StructuredAnswer):
                truth.schema_check = said.check
            else:
                truth.answer_check = said.check

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

    def _crash(self, number: int) -> None:
        """Crash the engine of that number: each connection with a reply of it under way is reset, and
        recovery takes its time."""
        driver = self._driver
        driver.loop.crash(driver.replicas[number], driver.clock())
        for face in [live for live, truth in self._live.items() if truth.held_by == number]:
            face.reset()


async def _beside(texts: Sequence[str], work: Callable[[], Counted]) -> Counted:
    """Run ``work`` off the event loop if the texts are long, as tokenising these takes milliseconds."""
    if sum(map(len, texts)) < _LONG_TEXT:
        return work()
    return await asyncio.to_thread(work)


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
