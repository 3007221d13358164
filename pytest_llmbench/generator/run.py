"""The load generator: takes a LoadPlan, gives back an Observation."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from dataclasses import replace
from functools import cache
from typing import Any

from pytest_llmbench.arrivals import LiveAnswers, sessions_of, starts_ns
from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.generator.dispatcher import Barrier, Dispatcher
from pytest_llmbench.generator.http.http1 import http1_transport
from pytest_llmbench.generator.http.request_head import RequestHead
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import Head, Transport
from pytest_llmbench.generator.limits import (
    LoadLimits,
    mean_tokens,
    own_limits,
    peak_connections,
    refuse_too_much,
)
from pytest_llmbench.generator.loop_thread import (
    LoopFactory,
    LoopThread,
    PlanRunner,
    Progress,
    fastest_loop,
    result_of,
)
from pytest_llmbench.generator.loops import Extent, JobLoop, Pacer
from pytest_llmbench.generator.measurement import Gate, Hold, LoadLoop, Measurement
from pytest_llmbench.generator.prepared import Prepare, PreparedJobs, PreparedRequest, kept_prompt
from pytest_llmbench.generator.records.spool import RowLog
from pytest_llmbench.generator.records.supply import DealtWorkload
from pytest_llmbench.generator.reply_reader import ReplyReader
from pytest_llmbench.generator.selfcheck import of_records
from pytest_llmbench.http_client import OF_HTTP, numbered_ids
from pytest_llmbench.model.facts import (
    ClockFact,
    Facts,
    LoadFact,
    Origin,
    StreamingFact,
    TimingFact,
    WireFact,
)
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C, Observation
from pytest_llmbench.model.plan import Load, LoadPlan
from pytest_llmbench.model.record import OnRecord, TokenSource
from pytest_llmbench.model.request import SESSION_HEADER, PlannedRequest
from pytest_llmbench.registry import load, required, transport_for
from pytest_llmbench.timing import Clock, MonotonicClock, anchor, best_alarm, resolution_ns, stepped_ns
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import (
    Dialect,
    EncodeOptions,
    NonGenerativeDialect,
    PromptForm,
    headers_for,
    path_for,
)
from pytest_llmbench.wire.server_figures import Declared
from pytest_llmbench.workloads.sequence import drawn, drawn_sha256, text_of

_HTTP_VERSIONS = {"http/1.1": "1.1", "http/2": "2"}
"""Names of the transports that carry dialects of HTTP → the version of HTTP."""
_STAMPED = {"http/1.1": "read", "websocket": "message", "http/2": "frame", "grpc": "frame"}
"""Names of the transports → what has one receive stamp, that of its last byte."""
_LEAST_OPEN_LOOP_CONNECTIONS = 16
_MOST_OPEN_LOOP_CONNECTIONS = 64
_CLOSE_S = 5.0


class LoadGenerator(PlanRunner):
    """Runs one LoadPlan after another against one target, on kept-alive connections.

    It has an event loop and a thread of its own, so :meth:`run` may be called from plain functions and from
    within somebody's running loop alike (which it then holds up). ``on_progress`` is called in that thread:
    keep it quick. ``kernel_stamps``: reads have the kernel's receive times where there are any (Linux).
    ``count_text`` counts what the server does not, by the tokenizer that ``counted_by`` names. ``keeps``:
    False where the ``on_record`` of :meth:`run` keeps the records, and the Observation is to have none. A
    ``target`` of WebSockets or gRPC wants a dialect with a form for it; any other raises SuiteError.
    ``transport``: what carries requests in place of HTTP, in the loop of ``thread``, which is closed with the
    generator. The ``on_record`` of :meth:`run` is called in the thread of the loop as soon as a request has
    been decoded: keep it quick.

    A worker's share is read from its file as it is sent. Any other plan is drawn whole before it starts, some
    KiB for each request: drawing while load is running would hold up the reads for milliseconds at a time.
    """

    _answers: LiveAnswers | None = None
    """The live answers of the plan's sessions; None where no turn reads any."""
    _asks_form = _has_roles = False
    """Whether a request of the plan asks for structured output; whether one has messages with roles."""

    def __init__(
        self,
        target: Target,
        dialect: Dialect,
        *,
        model: str,
        prompt_form: PromptForm = "text",
        extra_body: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        count_text: Callable[[str], int] | None = None,
        counted_by: TokenSource = TokenSource.REFERENCE_TOKENIZER,
        session_deadline_ns: int | None = None,
        loop_factory: LoopFactory = fastest_loop,
        gate: Gate | None = None,
        kernel_stamps: bool = True,
        keeps: bool = True,
        declared: Declared | None = None,
        session_header: str = SESSION_HEADER,
        transport: Transport | None = None,
        thread: LoopThread | None = None,
        limits: LoadLimits | None = None,
    ) -> None:
        super().__init__()
        self._model = model
        self._prompt_form, self._extra_body = prompt_form, dict(extra_body or {})
        self._clock = MonotonicClock() if clock is None else clock
        self._on_progress = on_progress
        self._count_text, self._counted_by = count_text, counted_by
        self._declared = declared or Declared()
        self._session_deadline_ns = session_deadline_ns
        self._loop_factory, self._limits = loop_factory, limits or LoadLimits()
        self._gate, self._keeps = gate, keeps
        self._dialect, self._head, transport_of = _way_to(target, dialect, model, session_header)
        self._transport = transport or transport_of(self._clock, kernel_stamps)
        self._thread = thread
        self._measurement: Measurement | None = None
        self._done: Future[Measurement] | None = None

    def stop(self, reason: str) -> None:
        """End the running plan early, from any thread: nothing more is sent, what is in flight is cancelled,
        what was measured is kept. Without a running plan this does nothing."""
        self._stop_reason = reason
        measurement, thread = self._measurement, self._thread
        if measurement is not None and thread is not None:
            thread.loop.call_soon_threadsafe(measurement.stop, reason)

    def close(self) -> None:
        """Close connections, loop and thread; a plan that is still running is stopped. Safe to call twice."""
        if self._thread is None:
            return
        if self._done is not None and not self._done.done():
            self.stop("the load generator is being closed")
            wait([self._done], timeout=_CLOSE_S)
        try:
            self._thread.submit(self._transport.close()).result()
        finally:
            self._thread.close()
            self._thread = None

    # One plan.

    def _run(self, plan: LoadPlan, on_record: OnRecord | None) -> Observation:
        self._measurement = self._answers = None
        self._asks_form = self._has_roles = False
        planned, count = self._planned(plan)
        of_sessions = plan.load.of_sessions
        supply = PreparedJobs(sessions_of(planned) if of_sessions else planned, self._preparer(plan))
        if supply.live:
            self._answers = LiveAnswers()
        sending = self._load_of(plan, supply, count)
        taken_at = anchor(self._clock)
        rows = RowLog(keeps=self._keeps)
        try:
            measurement = self._execute(self._measure(plan, sending, rows, on_record))
            records = rows.records()
            set_ns = stepped_ns(taken_at, anchor(self._clock))
        finally:
            rows.close()
        clock_resolution_ns = resolution_ns(self._clock)
        # Of a share of a load there is no digest: whoever dealt it knows the sequence.
        sent = supply.begun if of_sessions else measurement.submitted
        digest = "" if self._gate is not None else drawn_sha256(plan.workload, plan.first, sent, plan.seed)
        return Observation(
            plan=plan,
            records=records,
            started_ns=measurement.started_ns,
            ended_ns=measurement.ended_ns,
            anchor=taken_at,
            selfcheck=replace(
                measurement.selfcheck,
                clock=self._clock.name,
                clock_resolution_ns=clock_resolution_ns,
                **of_records(plan.load, records),
            ),
            in_flight_at_end=measurement.left_in_flight,
            interrupted=measurement.interrupted,
            sequence_sha256=digest,
            facts=self._facts(plan.load, clock_resolution_ns, set_ns),
            load_ended_ns=measurement.load_ended_ns if plan.duration_s is not None else None,
            stopped=measurement.stopped,
        )

    def _execute(self, work: Coroutine[Any, Any, Measurement]) -> Measurement:
        if self._thread is None:
            self._thread = LoopThread(self._loop_factory)
        done = self._done = self._thread.submit(work)
        try:
            return result_of(done)
        except KeyboardInterrupt:
            self.stop(INTERRUPTED_BY_CTRL_C)
            return result_of(done)
        except BaseException:
            if not done.done():  # a signal handler raised into the wait, as test timeouts do: load must end
                self.stop("the caller gave up waiting")
                done.exception()
            raise

    async def _measure(
        self,
        plan: LoadPlan,
        sending: tuple[LoadLoop, Hold | None, int],
        rows: RowLog,
        on_record: OnRecord | None,
    ) -> Measurement:
        load, hold, connections = sending
        reader = ReplyReader(
            self._dialect,
            plan.phase,
            self._count_text,
            self._counted_by,
            declared=self._declared,
            model=self._model,
            on_text=None if self._answers is None else self._answers.keep_text,
        )
        measurement = Measurement(
            plan=plan,
            load=load,
            transport=self._transport,
            clock=self._clock,
            connections=connections,
            decode=reader.steps,
            decode_at_once=reader.at_once,
            on_record=on_record,
            on_progress=self._on_progress,
            session_deadline_ns=self._session_deadline_ns,
            hold=hold,
            gate=self._gate,
            rows=rows,
            limits=self._limits,
            reads_at_once=self._answers is not None,
        )
        self._measurement = measurement
        if self._stop_reason is not None:  # asked for while requests were being prepared
            measurement.stop(self._stop_reason)
        await measurement.run()
        return measurement

    def _planned(self, plan: LoadPlan) -> tuple[Iterator[PlannedRequest], int]:
        """The requests of a plan in order, and their number; each goes when it has been taken.

        Raises SuiteError if the plan needs more than this machine can have open at once.
        """
        planned: Iterator[PlannedRequest]
        if isinstance(plan.workload, DealtWorkload):
            tokens, count = plan.workload.mean_tokens, plan.most_requests
            planned = plan.workload.stream(count)
        else:
            every = deque(drawn(plan.workload, plan.first, plan.most_requests, plan.seed))
            tokens, count = mean_tokens(every), len(every)
            planned = (every.popleft() for _ in range(count))
        limits = self._limits.host or own_limits()
        refuse_too_much(peak_connections(plan, tokens), limits, plan.label)
        return planned, count

    def _preparer(self, plan: LoadPlan) -> Prepare:
        options = EncodeOptions(
            model=self._model,
            ignore_eos=plan.ignore_eos,
            extra_body=self._extra_body,
            prompt_form=self._prompt_form,
        )
        of_model = cache(lambda model: replace(options, model=model))
        as_ids = self._prompt_form == "token_ids"
        # Each load has sessions of its own, as it has requests of its own: none is known from before.
        id_of, session_id_of = numbered_ids(), numbered_ids()
        document = self._dialect if isinstance(self._dialect, NonGenerativeDialect) else None

        def prepare(planned: PlannedRequest) -> PreparedRequest:
            self._refuse_unsendable(planned)
            if planned.reads_answers and self._answers is not None:
                planned = self._answers.asked(planned)
            self._asks_form |= planned.structured is not None
            self._has_roles |= planned.messages is not None
            text = planned.text if as_ids else text_of(planned)
            request = planned if text is planned.text else replace(planned, text=text)
            request_id = id_of(planned.index)
            session_id = None if planned.turn is None else session_id_of(planned.turn.session)
            try:
                body = self._dialect.encode(
                    request, options if planned.model is None else of_model(planned.model)
                )
            except GeneratorError as error:  # of the workload: a process that measures hands it on as it is
                raise SuiteError(error.what, where=error.where, remedy=error.remedy) from error
            return PreparedRequest(
                request_id=request_id,
                wire=self._head.wire(request_id, body, session_id),
                index=planned.index,
                max_tokens=planned.max_tokens,
                input_tokens=planned.input_tokens,
                sent_tokens=len(planned.token_ids) if as_ids and planned.token_ids is not None else None,
                prompt=kept_prompt(request.text) if self._count_text is not None else None,
                class_label=planned.class_label,
                shared_prefix_tokens=None if planned.reads_answers else planned.shared_prefix_tokens,
                prefix_id=planned.prefix_id,
                turn=planned.turn,
                structured=planned.structured if self._dialect.structured_output else None,
                results_asked=None if document is None else document.results_asked(body),
                cut_after_ns=planned.cut_after_ns,
                expected=planned.expected,
                model=planned.model,
            )

        return prepare

    def _refuse_unsendable(self, planned: PlannedRequest) -> None:
        name = self._dialect.name
        if planned.media and not self._dialect.media:
            raise SuiteError(
                f"{name} carries no images, sounds or videos",
                where=f"request {planned.index}",
                remedy="measure over openai-chat, or with a workload of text alone",
            )
        if not self._dialect.text_replies and planned.turn is not None and planned.turn.live:
            # The history would lack the answers, and nobody would see it.
            raise SuiteError(
                f"{name} answers in token ids, without text, so live answers cannot be read",
                where="--llm-endpoint",
                remedy='leave answers="live" out of the workload, or measure over an API of text',
            )

    def _load_of(self, plan: LoadPlan, supply: PreparedJobs, count: int) -> tuple[LoadLoop, Hold | None, int]:
        """The load that sends the plan, what holds its requests back, and how many connections to open before
        it."""
        asked, timed_s = plan.load, plan.duration_s
        if asked.together:
            barrier = Barrier(supply, self._clock, plan.deadlines.connect_s)
            return barrier, barrier.hold if self._transport.holds else None, count
        extent = Extent(plan.requests, timed_s) if asked.model == "closed" and timed_s is not None else None
        if isinstance(plan.workload, DealtWorkload):
            starts = plan.workload.instants_ns(plan.requests if asked.in_flight is None else 0)
        else:
            starts = starts_ns(plan, supply.first_number)

        async def load_(dispatcher: Dispatcher, start_ns: int) -> int:
            with closing(best_alarm(asyncio.get_running_loop(), self._clock)) as alarm:
                loop = JobLoop(
                    dispatcher,
                    supply,
                    Pacer(self._clock, alarm, most_behind_ns=self._limits.most_behind_ns),
                    self._clock,
                    start_ns,
                    slots=asked.in_flight or 0,
                    starts_ns=starts,
                    most_in_flight=asked.most_in_flight,
                    of_sessions=asked.of_sessions,
                    extent=extent,
                    answers=self._answers,
                )
                ended_ns = await loop.run()
            if timed_s is None or extent is not None:
                return ended_ns
            return start_ns + round(timed_s * 1e9)

        usual = min(_MOST_OPEN_LOOP_CONNECTIONS, math.ceil(asked.request_rate or 0))
        slots = asked.in_flight or asked.most_in_flight
        return load_, None, min(count, slots or max(_LEAST_OPEN_LOOP_CONNECTIONS, usual))

    def _facts(self, load: Load, clock_resolution_ns: int, set_ns: int) -> Facts:
        told: dict[str, Any] = {}
        if load.together:
            told[LoadFact.RELEASE] = "last_byte" if self._transport.holds else "whole_request"
        if load.of_sessions:
            told[WireFact.SESSION_HEADER] = self._head.session_header or "none"
        if self._asks_form:
            told[WireFact.STRUCTURED_OUTPUT] = "fields" if self._dialect.structured_output else "prompt_words"
        if set_ns:
            told[ClockFact.STEPPED_MS] = set_ns / 1e6
        if self._has_roles:
            told[WireFact.MESSAGES] = "roles" if self._dialect.message_roles else "one_text"
        calls = self._dialect.protocol == "grpc"
        first: dict[str, Any] = {
            TimingFact.FIRST_POINT: "first_token_message" if calls else "parsed_data_event",
            TimingFact.FIRST_TOKEN_KIND: "content",
        }
        return Facts.of(
            Origin.GENERATOR,
            {
                StreamingFact.PROTOCOL: self._dialect.protocol,
                WireFact.DIALECT: self._dialect.name,
                WireFact.HTTP_VERSION: _HTTP_VERSIONS.get(self._transport.name),
                WireFact.PROMPT_FORM: self._prompt_form,
                **told,
                TimingFact.STAMP_UNIT: _STAMPED.get(self._transport.name),
                TimingFact.SUBMIT_POINT: "message_sent" if calls else "last_request_byte",
                **({} if self._dialect.protocol == "json" else first),
                TimingFact.CLOCK_RESOLUTION_NS: clock_resolution_ns,
                TimingFact.TIMESTAMP_FORMAT: "epoch_ms",
            },
            "load generator",
        )


def _way_to(
    target: Target, dialect: Dialect, model: str, session_header: str
) -> tuple[Dialect, Head, Callable[[Clock, bool], Transport]]:
    """How to reach the target over HTTP or by an extra: the dialect, the form of requests, and what makes the
    transport; its second argument: whether to use the kernel's stamps. Raises SuiteError for a dialect that
    has no form for that."""
    path = path_for(dialect, model)
    if target.http2:
        carry = load(required("http/2", "--llm-http").carry)
        return dialect, *carry(target, dialect, path, session_header)
    if target.scheme not in OF_HTTP:
        spoken = dialect_at(target.url, dialect.name)
        further = transport_for(target.scheme)
        assert further is not None  # its dialect is spoken
        return spoken, *load(further.carry)(target, spoken, path, session_header)
    head = RequestHead(target, path, headers_for(dialect, dict(target.headers)), session_header)
    return dialect, head, lambda clock, kernel: http1_transport(target, clock, kernel_stamps=kernel)
