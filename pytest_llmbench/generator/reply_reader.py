"""The way from an ended exchange to its record: body, events, chunks, and how it all ended."""

from __future__ import annotations

import asyncio
import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, islice
from typing import cast

from pytest_llmbench.generator.http.known_replies import KnownReply
from pytest_llmbench.generator.http.transport import End, Exchange
from pytest_llmbench.generator.prepared import PreparedRequest, prompt_of
from pytest_llmbench.model.record import (
    LENGTH_FINISH,
    Outcome,
    Phase,
    RequestRecord,
    TokenSource,
    of_planned_cut,
)
from pytest_llmbench.model.reply_checks import UNANSWERED
from pytest_llmbench.timing import Clock
from pytest_llmbench.wire.chunk import Chunk, without_repetitions
from pytest_llmbench.wire.dialect import Dialect, NonGenerativeDialect
from pytest_llmbench.wire.error_replies import (
    classify_status,
    classify_unstreamed,
    header,
    is_policy_error,
    is_stream,
    shorten,
)
from pytest_llmbench.wire.reply import Ended, StreamSummary, answer_of, checked, read_stream
from pytest_llmbench.wire.server_figures import Declared, named_model
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.stream import chunks_in, events_of
from pytest_llmbench.wire.uniform import ReplyMemory, instants_of, read_uniform
from pytest_llmbench.wire.usage import is_modest, refuse_impossible

_CHUNKS_PER_STEP = 4
MOST_COUNTED = 2_000_000
"""The most characters of a reply that we tokenise ourselves, in one step: half a million tokens. No model
that keeps to a limit writes more; where one did, chunks are counted."""

_WHOLE = {"ndjson": 1, "grpc": sys.maxsize}
"""How many chunks a reply that is no stream yields, by framing; none where events are expected. With gRPC a
reply of another type never counts as a stream, whatever it holds: its own clients refuse them all."""

_OUTCOMES = {
    End.UNREACHABLE: Outcome.DISCONNECTED,
    End.BROKEN: Outcome.DISCONNECTED,
    End.GARBAGE: Outcome.UNDECODABLE,
    End.EXHAUSTED: Outcome.CANCELLED,
    End.TIMEOUT: Outcome.TIMEOUT,
    End.CANCELLED: Outcome.CANCELLED,
    End.CUT_BY_USER: Outcome.CUT_BY_USER,
}
"""Outcome of an exchange that ended otherwise than with a complete response."""

_ENDED: dict[Outcome, Ended] = {
    Outcome.DISCONNECTED: "cut",
    Outcome.UNDECODABLE: "cut",
    Outcome.TIMEOUT: "timeout",
    Outcome.CANCELLED: "cancelled",
    Outcome.CUT_BY_USER: "left",
}


@dataclass(frozen=True, slots=True)
class ReplyReader:
    """Makes records of replies in one dialect. Whatever arrived is kept, however the exchange ended."""

    dialect: Dialect
    phase: Phase = Phase.MEASURE
    count_text: Callable[[str], int] | None = None
    counted_by: TokenSource = TokenSource.REFERENCE_TOKENIZER
    """The tokenizer that ``count_text`` uses."""
    memory: ReplyMemory = field(default_factory=ReplyMemory, compare=False)
    declared: Declared = field(default_factory=Declared)
    model: str = ""
    """The model that is asked for."""
    on_text: Callable[[int, str, float], None] | None = None
    """Called for each request whose reply is read by later turns, however it ended: its index, and text and
    share of the :class:`~pytest_llmbench.wire.reply.Answer`."""

    def steps(self, exchange: Exchange) -> Steps:
        """A generator that does a little at each step and returns the record."""
        record = self.at_once(exchange)
        if record is None:
            record = self._completed((yield from self._read(exchange)), exchange, exchange.bodies)
        return record

    def at_once(self, exchange: Exchange) -> RequestRecord | None:
        """The record of a response that was recognised; None: it must be read, by :meth:`steps`."""
        if exchange.known is None:
            return None
        return self._completed(self._recognised(exchange, exchange.known), exchange, exchange.unparsed)

    def _completed(
        self, record: RequestRecord, exchange: Exchange, received: Sequence[bytes]
    ) -> RequestRecord:
        """The record with what every reply gets: its session, the effect of late reads, the user's cut;
        claims that cannot be true are refused."""
        if (turn := exchange.request.turn) is not None:
            record.session, record.turn, record.session_turns = turn.session, turn.number, turn.turns
        if record.answered_by == (exchange.request.model or self.model):
            record.answered_by = None
        if not is_modest(record):
            refuse_impossible(record, len(exchange.request.wire), sum(map(len, received)))
        if exchange.shared_reads or (exchange.late_reads and record.coalesced_chunks):
            note_late_reads(record, exchange)
        if exchange.request.expected is not None and record.answer_check is None:
            record.answer_check = UNANSWERED
        if (cut_after_ns := exchange.request.cut_after_ns) is not None:
            record.cut_after_ns = cut_after_ns
            record.outcome, record.end_before_cut = of_planned_cut(record.outcome)
        return record

    def _read(self, exchange: Exchange) -> Steps:
        record = _blank(exchange, self.phase)
        status = exchange.status
        if exchange.end is not None and exchange.end is not End.COMPLETE:
            record.outcome, record.error = _OUTCOMES[exchange.end], exchange.error
        if status is None:
            return record
        if 200 <= status < 300:
            headers = _headers(exchange)
            coding = (header(headers, "content-encoding") or "identity").lower()
            if coding != "identity":
                record.outcome = Outcome.UNDECODABLE
                told = f"the reply is compressed ({shorten(coding, 40)})"
                record.error = f"{told} although the client requested identity"
                return record
            if exchange.request.results_asked is None:
                yield from self._read_stream(exchange, headers, record)
            else:
                yield from self._read_document(exchange, record)
        elif exchange.end not in (End.TIMEOUT, End.CANCELLED):
            # A status that has arrived says more about the failure than the connection's end after it.
            body = b"".join(exchange.bodies)
            record.outcome, record.error = classify_status(status, _headers(exchange), body)
        return record

    def _recognised(self, exchange: Exchange, known: KnownReply) -> RequestRecord:
        """The record of a response that was recognised, not parsed."""
        request, stamps, told = exchange.request, exchange.stamps, known.summary
        first_event_ns, reads = stamps[0], 1
        instants: Sequence[int]
        if len(stamps) == 1:
            instants = stamps * known.count
        else:
            ends = list(accumulate(map(len, exchange.unparsed)))
            instants, reads = instants_of(known.line_ends(), known.count, ends, stamps)
            first_event_ns = stamps[bisect_left(ends, known.first_line_end + 1)]
        input_tokens = told.input_tokens
        return RequestRecord(
            index=request.index, request_id=request.request_id, phase=self.phase,
            class_label=request.class_label, scheduled_ns=exchange.scheduled_ns,
            dispatched_ns=exchange.dispatched_ns, submitted_ns=exchange.submitted_ns,
            first_byte_ns=stamps[0], first_event_ns=first_event_ns, first_nonempty_ns=instants[0],
            first_reasoning_ns=None,
            first_content_ns=None if known.visible is None else instants[known.visible],
            chunk_ns=instants, chunk_tokens=_ones(known.count), last_content_ns=instants[-1],
            finished_ns=exchange.finished_ns,
            input_tokens=self._sent_tokens(request) if input_tokens is None else input_tokens,
            output_tokens=told.output_tokens, token_source=told.token_source, attribution=told.attribution,
            requested_input_tokens=request.input_tokens, requested_max_tokens=request.max_tokens,
            cached_tokens=told.cached_tokens, reasoning_tokens=told.reasoning_tokens,
            shared_prefix_tokens=request.shared_prefix_tokens, prefix_id=request.prefix_id,
            outcome=told.outcome, http_status=exchange.status, error=told.error,
            finish_reason=told.finish_reason, coalesced_chunks=known.count - reads,
            stale_retries=exchange.stale_retries, answered_by=told.answered_by,
            contradiction=told.contradiction,
        )  # fmt: skip

    def _read_stream(
        self, exchange: Exchange, headers: dict[str, str], record: RequestRecord
    ) -> Generator[None, None, None]:
        whole = exchange.end is End.COMPLETE
        declared, structured = self.declared, exchange.request.structured
        expected = exchange.request.expected
        if whole and not declared.needs_every_event and structured is None and expected is None:
            # A reply that is known by its bytes is not looked into again.
            teach = None if declared.tells else exchange.teach
            usual = read_uniform(exchange.bodies, exchange.stamps, self.dialect, self.memory, teach=teach)
            if usual is not None:
                self._fill(record, usual, exchange.request)
                if declared.tells:
                    declared.fill(record, (), headers)
                if record.input_tokens is None:
                    yield
                    record.input_tokens = self._sent_tokens(exchange.request)
                return
        held: list[SSEEvent] = []
        chunks = yield from self._chunks(exchange, held)
        protocol = self.dialect.protocol
        if whole and len(chunks) <= _WHOLE.get(protocol, 0) and not is_stream(headers, protocol):
            body = b"".join(exchange.bodies)
            record.outcome, record.error = classify_unstreamed(headers, body, protocol)
            return
        broken = None if whole else (record.outcome, record.error)
        ended: Ended = "eof" if broken is None else _ENDED[broken[0]]
        summary = yield from self._summary(chunks, ended, exchange.request.max_tokens)
        summary.answered_by = self._named_model(exchange)
        self._fill(record, summary, exchange.request, chunks)
        if structured is not None and summary.outcome is Outcome.OK:
            yield
            record.schema_check = checked(structured, summary, chunks)
        if expected is not None and summary.outcome is Outcome.OK:
            yield
            said = answer_of(summary, chunks, declared.inline).text
            record.answer_check = expected.check(said, cut=summary.finish_reason in LENGTH_FINISH)
        if declared.tells:
            yield
            declared.fill(record, held, headers)
        if record.input_tokens is None:
            yield
            record.input_tokens = self._sent_tokens(exchange.request)
        if broken is not None and (exchange.end is End.GARBAGE or summary.outcome is broken[0]):
            record.outcome, record.error = broken  # with the cause that the transport saw

    def _fill(
        self,
        record: RequestRecord,
        summary: StreamSummary,
        request: PreparedRequest,
        chunks: Sequence[Chunk] = (),
    ) -> None:
        """Fill the record from the summary. Its text is not kept: ``on_text`` gets it. ``chunks``: those of
        :func:`answer_of`."""
        summary.fill(record)
        if self.on_text is not None and request.turn is not None and request.turn.live:
            self.on_text(request.index, *answer_of(summary, chunks, self.declared.inline))

    def _read_document(self, exchange: Exchange, record: RequestRecord) -> Generator[None, None, None]:
        """Read a reply that is one JSON document; nothing can be read of one that was broken off."""
        asked = exchange.request.results_asked
        if exchange.end is not End.COMPLETE or asked is None:
            return
        chunks = yield from self._chunks(exchange, [])
        yield
        cast(NonGenerativeDialect, self.dialect).summary(chunks, asked).fill(record)
        record.answered_by = self._named_model(exchange)
        if record.input_tokens is None:
            yield
            record.input_tokens = self._sent_tokens(exchange.request)

    def _summary(self, chunks: list[Chunk], ended: Ended, asked: int) -> Generator[None, None, StreamSummary]:
        inline = self.declared.inline
        limit = asked * max(1, len({chunk.choice for chunk in chunks} - {None}))
        summary = read_stream(chunks, ended=ended, limit=limit, inline=inline)
        length = len(summary.text) + len(summary.reasoning)
        uncounted = summary.token_source is TokenSource.CHUNK_COUNT and length <= MOST_COUNTED
        if self.count_text is not None and uncounted:
            # Only for a server that gave no counts: tokenising takes time that other stamps need.
            yield
            summary = read_stream(
                chunks,
                ended=ended,
                count_text=self.count_text,
                counted_by=self.counted_by,
                limit=limit,
                inline=inline,
            )
        return summary

    def _chunks(self, exchange: Exchange, held: list[SSEEvent]) -> Generator[None, None, list[Chunk]]:
        """The chunks of the reply; the events with declared fields go to ``held``."""
        # A body may lack the parts of reads that were never parsed: then so do its chunks.
        reads = zip(exchange.bodies, exchange.stamps, strict=False)
        events = self.declared.passing(events_of(reads, protocol=self.dialect.protocol), held)
        decoded = chunks_in(events, self.dialect)
        chunks: list[Chunk] = []
        while step := list(islice(decoded, _CHUNKS_PER_STEP)):
            chunks += step
            yield
        if not self.dialect.accumulates:
            without_repetitions(chunks)
        if exchange.end is End.COMPLETE and exchange.error is not None:  # the status of a call
            refused = is_policy_error(exchange.error)
            last = len(exchange.stamps) - 1
            chunks.append(Chunk(exchange.stamps[last], last, error=exchange.error, refused=refused))
        return chunks

    def _named_model(self, exchange: Exchange) -> str | None:
        return None if self.dialect.protocol == "grpc" else named_model(exchange.bodies)

    def _sent_tokens(self, request: PreparedRequest) -> int | None:
        """Input tokens by our own count: the ids as sent, or the prompt by the declared tokenizer (AMB-32);
        None where neither can be counted."""
        prompt = prompt_of(request)
        if request.sent_tokens is not None or self.count_text is None or prompt is None:
            return request.sent_tokens
        return self.count_text(prompt)


@cache
def _ones(count: int) -> tuple[int, ...]:
    return (1,) * count


def _headers(exchange: Exchange) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in exchange.headers}


def _blank(exchange: Exchange, phase: Phase) -> RequestRecord:
    """The record with what the transport knows, before the body has been read."""
    request = exchange.request
    return RequestRecord(
        index=request.index,
        request_id=request.request_id,
        phase=phase,
        class_label=request.class_label,
        scheduled_ns=exchange.scheduled_ns,
        dispatched_ns=exchange.dispatched_ns,
        submitted_ns=exchange.submitted_ns,
        first_byte_ns=exchange.stamps[0] if exchange.stamps else None,
        finished_ns=exchange.finished_ns,
        requested_input_tokens=request.input_tokens,
        requested_max_tokens=request.max_tokens,
        shared_prefix_tokens=request.shared_prefix_tokens,
        prefix_id=request.prefix_id,
        http_status=exchange.status,
        stale_retries=exchange.stale_retries,
    )


def note_late_reads(record: RequestRecord, exchange: Exchange) -> None:
    """Fill ``unresolved_chunks`` and ``first_content_early_ns``.

    A read has the stamp of its last packet. What came before that in the same read has it too, and came at
    some instant after everything that had arrived had been read. Of a read in time that is no more than a
    wake-up of the loop, and chunks that share it were sent together; of a late one it is our own doing, and
    is noted. The last chunk of a read has its own instant: what a server sends behind its last content (the
    finish, the usage) it sends at once. Of a read that was shared with other replies it may have that of
    theirs.
    """
    stamps, instants = exchange.stamps, record.chunk_ns
    own = [(place, since_ns, 1) for place, since_ns in exchange.late_reads]
    shared = [(place, since_ns, 0) for place, since_ns in exchange.shared_reads]
    for place, since_ns, with_own_instant in own + shared:
        stamp_ns = stamps[place]
        first = bisect_left(instants, stamp_ns)
        together = bisect_right(instants, stamp_ns, first) - first - with_own_instant
        if together < 1:
            continue
        record.unresolved_chunks += together
        if record.first_content_ns == stamp_ns:
            before_ns = stamps[place - 1] if place else exchange.submitted_ns
            record.first_content_early_ns = max(0, stamp_ns - max(since_ns, before_ns or 0))


Steps = Generator[None, None, RequestRecord]

_SLICE_NS = 20_000
_SLICE_PER_WAITING_NS = 5_000


class DecodeQueue:
    """Decodes a little at a time, so that a read which comes meanwhile is stamped with little delay.

    Decoding a long reply takes a millisecond; done in one go it would be added to the first-token instants of
    the replies beside it. A slice grows with the queue beyond what may wait, so that the queue stays
    short however fast replies end.
    """

    def __init__(
        self,
        decode: Callable[[Exchange], Steps],
        deliver: Callable[[RequestRecord], None],
        clock: Clock,
        *,
        at_once: Callable[[Exchange], RequestRecord | None] = lambda _: None,
        may_wait: Callable[[], int] = lambda: 0,
        busy: Callable[[], bool] = lambda: False,
    ) -> None:
        """``at_once``: makes the record where that is a single step; for all others ``decode`` makes it.
        ``may_wait``: how many replies may, while there are chunks to read (which run together with those
        behind them if they are not) or, ``busy``, requests to be replaced."""
        self._at_once = at_once
        self._decode = decode
        self._deliver = deliver
        self._now = clock.monotonic_ns
        self._may_wait = may_wait
        self._busy = busy
        self._waiting: deque[Exchange] = deque()
        self._current: Steps | None = None
        self._scheduled = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._loop = asyncio.get_running_loop()

    def put(self, exchange: Exchange) -> None:
        self._waiting.append(exchange)
        if not self._scheduled:
            self._scheduled = True
            self._empty.clear()
            self._loop.call_soon(self._slice)

    async def join(self) -> None:
        """Returns when everything put so far has been delivered."""
        await self._empty.wait()

    def _slice(self) -> None:
        too_many = max(0, len(self._waiting) - self._may_wait())
        if not too_many and self._busy():
            self._loop.call_soon(self._slice)
            return
        until = self._now() + _SLICE_NS + _SLICE_PER_WAITING_NS * too_many
        while self._now() < until:
            if self._current is None and not self._waiting:
                self._scheduled = False
                self._empty.set()
                return
            try:
                record = self._step()
            except BaseException:  # told to the loop, which tells its owner; the other replies are decoded
                self._current = None
                self._loop.call_soon(self._slice)
                raise
            if record is not None:
                self._deliver(record)
        self._loop.call_soon(self._slice)

    def _step(self) -> RequestRecord | None:
        if self._current is None:
            exchange = self._waiting.popleft()
            record = self._at_once(exchange)
            if record is not None:
                return record
            self._current = self._decode(exchange)
        try:
            next(self._current)
        except StopIteration as stop:
            self._current = None
            found: RequestRecord = stop.value
            return found
        return None
