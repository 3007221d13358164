"""Records of a replay: flights become columns, and columns rows. No work per token in Python: timestamps are
slices of step ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain, islice, repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from pytest_llmbench.columns import RecordLog
from pytest_llmbench.model.record import OnRecord, Outcome, Phase, RequestRecord, TokenSource, of_planned_cut
from pytest_llmbench.model.records import (
    KINDS,
    MISSING,
    NUMBERS,
    OUTCOMES,
    PHASES,
    TEXTS,
    TOKEN_SOURCES,
    BoolColumn,
    IntColumn,
    OnRecords,
    Records,
    offsets_of,
)
from pytest_llmbench.model.reply_checks import UNANSWERED
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.engine.faults import FaultKind, StreamOptions
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import Scenario

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.answers import QuestionAnswer, StructuredAnswer
    from pytest_llmbench.simulator.engine.cheats import Conduct


_WHOLE = (Outcome.OK, Outcome.EMPTY)


@dataclass(slots=True, eq=False)
class InFlight:
    """A request from its submission to its end. Instants are of the virtual clock, in nanoseconds."""

    planned: PlannedRequest
    submitted_ns: int
    """Instant of submission, which is also its scheduled and its dispatched instant: nothing is late in
    virtual time."""
    received_ns: int
    """Instant at which the engine has read the request."""
    accepted_ns: int = MISSING
    """Instant at which the engine sends the headers of the response."""
    admitted_ns: int = MISSING
    """Start of the step that admits it into the batch for the first time."""
    sequence: EngineSequence | None = None
    """The engine's sequence for it; ``None`` if the request was turned away."""
    read_ns: IntColumn | None = None
    """Instants at which the client reads each token, where that is not just after the step that made it; None
    elsewhere."""
    replica: int = 0
    """Number of the engine that accepted it."""
    fate: FaultKind | None = None
    """The fault that happens to it; None: none."""
    outcome: Outcome = Outcome.CANCELLED
    http_status: int = MISSING
    """HTTP status: 200 as soon as the request is accepted."""
    error: str | None = None
    finish_reason: str | None = None
    answer: StructuredAnswer | QuestionAnswer | None = None
    """The answer to a request for structured output, or to a question; None for any other."""
    conduct: Conduct | None = None
    """How the engine deals with it, where that is not the usual way or its words are wanted."""
    media_tokens: int = 0
    """Tokens of its images and sounds."""
    schema_check: str | None = None
    answer_check: str | None = None
    finished_ns: int = MISSING
    """Instant at which the client has read the end of the response, or has given up."""

    @property
    def session(self) -> int | None:
        """The session that it is a turn of."""
        turn = self.planned.turn
        return None if turn is None else turn.session

    @property
    def ended(self) -> bool:
        return self.finished_ns != MISSING

    @property
    def whole(self) -> bool:
        """Whether the reply came to its own end, usage included; it may hold thoughts alone."""
        return self.outcome in _WHOLE

    @property
    def cut_ns(self) -> int | None:
        """Instant at which its user goes away; None: the user waits."""
        after_ns = self.planned.cut_after_ns
        return None if after_ns is None else self.submitted_ns + after_ns

    def end(
        self, outcome: Outcome, at_ns: int, *, error: str | None = None, finish_reason: str | None = None
    ) -> None:
        self.outcome, self.finished_ns, self.error, self.finish_reason = outcome, at_ns, error, finish_reason

    def spans(self, first_step: int) -> list[tuple[int, int]]:
        """First and last step of each uninterrupted run of its tokens, counted from ``first_step``.

        Rows are complete once the engine has nothing more to do with the sequence.
        """
        if self.sequence is None or self.sequence.hands_over:
            return []
        return [(run.start - first_step, run.stop - 1 - first_step) for run in self.sequence.spans]


@dataclass(frozen=True)
class Chunks:
    """The chunks of all requests, one request after another."""

    offsets: IntColumn
    """Request i has the chunks ``[offsets[i], offsets[i + 1])``."""
    stamps_ns: IntColumn
    tokens: IntColumn
    reasoning_counts: IntColumn
    """Number of reasoning chunks of each request; they come first."""
    output_tokens: IntColumn
    """Number of output tokens of each request."""
    think_tokens: IntColumn
    """Number of these tokens that are reasoning."""
    server_ns: IntColumn
    """Instants at which the engine made each token, request after request; empty if nobody asked."""

    @property
    def counts(self) -> IntColumn:
        return np.diff(self.offsets)

    def at(self, positions: IntColumn, there: BoolColumn) -> IntColumn:
        """The timestamp of the chunk at each position, MISSING where ``there`` is false."""
        column = np.full(len(positions), MISSING, dtype=np.int64)
        column[there] = self.stamps_ns[positions[there]]
        return column


@dataclass(frozen=True)
class Steps:
    """The steps of a plan, as the client could observe them."""

    firsts: tuple[int, ...]
    """For each replica, the number of the step that would be at place 0 of ``read_ns``; for a single engine
    that is the plan's first step."""
    read_ns: IntColumn
    """Instants at which the client reads what each step made, replica after replica."""
    to_client_ns: int
    """Nanoseconds from the making of a token until the client reads it."""


def chunks_of(flights: Sequence[InFlight], steps: Steps, stream: StreamOptions) -> Chunks:
    """The chunks of all flights that were read."""
    made_in, offsets = _token_steps(flights, steps.firsts)
    stamps_ns, lengths = steps.read_ns[made_in], np.diff(offsets)
    server_ns = stamps_ns - steps.to_client_ns if stream.server_timestamps else np.empty(0, dtype=np.int64)
    held = [(i, flight.read_ns) for i, flight in enumerate(flights) if flight.read_ns is not None]
    if held:  # replies that were held back, and read in part it may be, have instants of their own
        stamps, server = np.split(stamps_ns, offsets[1:-1]), np.split(server_ns, offsets[1:-1])
        for i, read_ns in held:
            stamps[i], server[i] = read_ns, server[i][: len(read_ns)]
        stamps_ns, server_ns = np.concatenate(stamps), np.concatenate(server)
        lengths = np.array(list(map(len, stamps)))
        offsets = offsets_of(lengths)
    sequences = _values(flights, "sequence")
    thinks = [0 if own is None else own.think_tokens for own in sequences]
    think_tokens = np.minimum(np.array(thinks, dtype=np.int64), lengths)
    made = [None if own is None else own.made for own in sequences]
    drafted = any(steps is not None for steps in made)
    if stream.tokens_per_chunk == 1 and not drafted:
        ones = np.broadcast_to(np.int64(1), len(stamps_ns))  # takes no memory, however many tokens
        return Chunks(offsets, stamps_ns, ones, think_tokens, lengths, think_tokens, server_ns)
    by: StreamOptions | BoolColumn = stream
    if drafted:
        last_of_step = [
            np.isin(np.arange(1, length + 1), own or (), assume_unique=True)
            for own, length in zip(made, lengths.tolist(), strict=True)
        ]
        by = np.concatenate(last_of_step)
    closes = _closes(lengths, think_tokens, by)
    ends = np.flatnonzero(closes)
    closed_before = offsets_of(closes)
    chunk_offsets = closed_before[offsets]
    return Chunks(
        offsets=chunk_offsets,
        stamps_ns=stamps_ns[ends],
        tokens=np.diff(ends, prepend=-1),
        reasoning_counts=closed_before[offsets[:-1] + think_tokens] - chunk_offsets[:-1],
        output_tokens=lengths,
        think_tokens=think_tokens,
        server_ns=server_ns,
    )


def _token_steps(flights: Sequence[InFlight], firsts: Sequence[int]) -> tuple[IntColumn, IntColumn]:
    """The step of every token, request after request, and where each request begins in that list."""
    rows = [flight.spans(firsts[flight.replica]) for flight in flights]
    spans = list(chain.from_iterable(rows))
    begin = np.array([first for first, _ in spans], dtype=np.int64)
    lengths = np.array([last for _, last in spans], dtype=np.int64) + 1 - begin
    ends = np.cumsum(lengths)
    steps = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(begin - (ends - lengths), lengths)
    rows_before = np.cumsum(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)))
    return steps, np.concatenate(([0], np.concatenate(([0], ends))[rows_before]))


def _closes(lengths: IntColumn, think_tokens: IntColumn, by: StreamOptions | BoolColumn) -> BoolColumn:
    """For each token, whether it is the last of its chunk.

    The first token goes out at once; so do the last of the thoughts and the last of all. ``by``: what decides
    on the others, a size or whether it is the last of its step.
    """
    begins = np.cumsum(lengths) - lengths
    place = np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(begins, lengths)
    if not isinstance(by, StreamOptions):
        closes = by
    else:
        size = by.tokens_per_chunk
        thinks = np.repeat(think_tokens, lengths)
        after_thoughts = (thinks > 0) & (place >= thinks)
        closes = np.where(after_thoughts, (place - thinks) % size == size - 1, place % size == 0)
    closes[(begins + lengths - 1)[lengths > 0]] = True
    closes[(begins + think_tokens - 1)[think_tokens > 0]] = True
    return closes


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What the records of a plan need beside its flights."""

    phase: Phase
    name: str
    """Prefix of the request ids."""
    scenario: Scenario
    generates: bool = True
    """Whether tokens are generated; False: the replies are documents, without tokens or their instants."""


def records_of(flights: Sequence[InFlight], steps: Steps, recording: RecordOptions) -> Records:
    """The records of a plan as columns, in order of submission. A chunk has the timestamp of its last
    token."""
    flights = sorted(flights, key=attrgetter("submitted_ns", "planned.index"))
    chunks = chunks_of(flights, steps, recording.scenario.stream)
    submitted_ns, index = _column(flights, "submitted_ns"), _column(flights, "planned.index")
    turns = _values(flights, "planned.turn")
    unknown = [turn is not None and bool(turn.reads) for turn in turns]
    columns: dict[str, Any] = {
        "index": index,
        "request_id": [f"{recording.name}-{number}" for number in index.tolist()],
        "phase": np.full(len(flights), PHASES.index(recording.phase), dtype=np.int8),
        "class_label": _values(flights, "planned.class_label"),
        "scheduled_ns": submitted_ns,
        "dispatched_ns": submitted_ns,
        "submitted_ns": submitted_ns,
        "requested_input_tokens": _column(flights, "planned.input_tokens"),
        "requested_max_tokens": _column(flights, "planned.max_tokens"),
        "finished_ns": _column(flights, "finished_ns"),
        "http_status": _column(flights, "http_status"),
        "error": _values(flights, "error"),
        "finish_reason": _values(flights, "finish_reason"),
        "schema_check": _values(flights, "schema_check"),
        "answer_check": [
            None if flight.planned.expected is None else flight.answer_check or UNANSWERED
            for flight in flights
        ],
        "shared_prefix_tokens": np.where(unknown, MISSING, _column(flights, "planned.shared_prefix_tokens")),
        "prefix_id": _optional(_values(flights, "planned.prefix_id")),
    }
    columns |= _of_ends(flights)
    if any(turns):
        places = [
            (MISSING,) * 3 if turn is None else (turn.session, turn.number, turn.turns) for turn in turns
        ]
        session, turn, session_turns = np.array(places, dtype=np.int64).T.copy()
        columns |= {"session": session, "turn": turn, "session_turns": session_turns}
    columns |= _of_engine(flights, steps, recording)
    if not recording.generates:  # documents, which are read as they end
        ok = np.array([flight.outcome is Outcome.OK for flight in flights], dtype=bool)
        answered = ok | (columns["http_status"] >= 400)
        columns |= {
            "first_byte_ns": np.where(answered, columns["finished_ns"], MISSING),
            "input_tokens": np.where(ok, columns["requested_input_tokens"], MISSING),
            "cached_tokens": _cached(flights, ok, recording),
        }
        return Records.filled(len(flights), columns)
    columns |= _of_thinking(flights, chunks) | _of_chunks(chunks)
    return Records.filled(len(flights), columns | _of_reply(flights, chunks, steps, recording))


def _of_ends(flights: Sequence[InFlight]) -> dict[str, Any]:
    """The columns of outcomes, including how requests that a user was to cut had ended before that."""
    after_ns, outcomes = _values(flights, "planned.cut_after_ns"), _values(flights, "outcome")
    before: list[str | None] = [None] * len(flights)
    for i, after in enumerate(after_ns):
        if after is not None:
            outcomes[i], before[i] = of_planned_cut(outcomes[i])
    return {
        "outcome": np.array(list(map(OUTCOMES.index, outcomes)), dtype=np.int8),
        "end_before_cut": before,
        "cut_after_ns": _optional(after_ns),
    }


def _of_chunks(chunks: Chunks) -> dict[str, Any]:
    """The columns of first and last chunks: reasoning is output, but no content."""
    first_ns = chunks.at(chunks.offsets[:-1], chunks.counts > 0)
    none = np.zeros_like(chunks.output_tokens)
    return {
        "first_event_ns": first_ns,
        "first_nonempty_ns": first_ns,
        "first_reasoning_ns": np.where(chunks.reasoning_counts > 0, first_ns, MISSING),
        "first_content_ns": chunks.at(
            chunks.offsets[:-1] + chunks.reasoning_counts, chunks.counts > chunks.reasoning_counts
        ),
        "last_content_ns": chunks.at(chunks.offsets[1:] - 1, chunks.counts > 0),
        "chunk_offsets": chunks.offsets,
        "chunk_ns": chunks.stamps_ns,
        "chunk_tokens": chunks.tokens,
        "server_token_offsets": offsets_of(chunks.output_tokens if len(chunks.server_ns) else none),
        "server_token_ns": chunks.server_ns,
    }


def _of_thinking(flights: Sequence[InFlight], chunks: Chunks) -> dict[str, Any]:
    """The columns of thinking: its end, and what the engine states about it at the end of a reply."""
    thought = chunks.reasoning_counts > 0
    last = chunks.offsets[:-1] + chunks.reasoning_counts - 1
    answers = chunks.counts > chunks.reasoning_counts
    last_ns, visible_ns = chunks.at(last, thought), chunks.at(last + 1, answers)
    ends_ns = np.where(answers, last_ns, MISSING)
    for i in np.flatnonzero(thought & answers & (last_ns == visible_ns)).tolist():
        earlier = chunks.stamps_ns[chunks.offsets[i] : last[i]]  # one read brought both: as on the wire
        earlier = earlier[earlier < visible_ns[i]]
        ends_ns[i] = earlier[-1] if len(earlier) else MISSING
    ok = [flight.whole and flight.sequence is not None for flight in flights]
    counted = chunks.think_tokens > 0
    return {
        "thinking_end_ns": ends_ns,
        "last_reasoning_ns": last_ns,
        "thinking_end_reason": [
            flight.sequence.think_reason if told and flight.sequence is not None else None
            for flight, told in zip(flights, ok, strict=True)
        ],
        "reasoning_token_source": _sources(np.array(ok, dtype=bool) & counted, counted & False),
    }


def _of_engine(flights: Sequence[InFlight], steps: Steps, recording: RecordOptions) -> dict[str, Any]:
    """The columns of what the engine notes about each request that it accepted, however that ended."""
    admitted_ns, accepted_ns = _column(flights, "admitted_ns"), _column(flights, "accepted_ns")
    first_step = np.array(
        [
            MISSING
            if (own := flight.sequence) is None or own.first_step is None or own.hands_over
            else own.first_step - steps.firsts[flight.replica]
            for flight in flights
        ],
        dtype=np.int64,
    )
    # Ctrl-C may have come before the end of the step was noted.
    begun = (first_step != MISSING) & (first_step < len(steps.read_ns))
    first_ns = np.full(len(flights), MISSING, dtype=np.int64)
    first_ns[begun] = steps.read_ns[first_step[begun]] - steps.to_client_ns
    in_engine = [flight.sequence if flight.http_status == 200 else None for flight in flights]
    counted = {"preemptions": "preemptions", "preempted_tokens": "lost_tokens"}
    if recording.generates and recording.scenario.engine.scheduler == "phase":
        counted["critical_evictions"] = "critical_evictions"
    found = {
        "queue_wait_ns": np.where(admitted_ns != MISSING, admitted_ns - accepted_ns, MISSING),
        "prefill_ns": np.where(begun, first_ns - admitted_ns, MISSING),
        **{column: _of_sequences(in_engine, name) for column, name in counted.items()},
    }
    if guessed := recording.scenario.engine.speculative_tokens:  # whole replies tell of drafts
        told = [flight.sequence if flight.whole else None for flight in flights]
        drafts = [(MISSING, MISSING) if s is None else s.drafts(s.steps_before, guessed) for s in told]
        found["draft_tokens"], found["accepted_draft_tokens"] = np.array(drafts, dtype=np.int64).T.copy()
    return found


def _of_reply(
    flights: Sequence[InFlight], chunks: Chunks, steps: Steps, recording: RecordOptions
) -> dict[str, Any]:
    """The columns of what the headers, and the usage at the end of a reply, state."""
    ok = np.array([flight.whole for flight in flights], dtype=bool)
    status = _column(flights, "http_status")
    # Headers leave as the request is accepted; a refusal, and a buffered reply, comes in one piece.
    headers_ns = np.where(
        status == 200, _column(flights, "accepted_ns") + steps.to_client_ns, _column(flights, "finished_ns")
    )
    for i, flight in enumerate(flights):
        if flight.fate == "buffering" and flight.read_ns is not None and flight.http_status == 200:
            headers_ns[i] = flight.read_ns[0] if len(flight.read_ns) else MISSING
    some = chunks.counts > 0
    # As served: cached tokens are told where there is a cache, reasoning tokens where there are any.
    return {
        "first_byte_ns": np.where(status != MISSING, headers_ns, MISSING),
        "input_tokens": np.where(
            status == 200,
            np.asarray(_column(flights, "planned.input_tokens") + _column(flights, "media_tokens")),
            MISSING,
        ),
        "output_tokens": np.where(some | ok, chunks.output_tokens, MISSING),
        "cached_tokens": _cached(flights, ok, recording),
        "reasoning_tokens": np.where(ok & (chunks.think_tokens > 0), chunks.think_tokens, MISSING),
        "token_source": _sources(ok, some),
    }


def rows_of(records: Records) -> Iterator[RequestRecord]:
    """The records as rows, in the order in which the requests ended."""
    order = np.argsort(records.finished_ns, kind="stable")
    places, rows = order.tolist(), len(order)
    columns: dict[str, Iterable[Any]] = {name: repeat(value) for name, value in _BY_DEFAULT.items()}
    columns |= {name: _told(getattr(records, name)[order]) for name in NUMBERS}
    columns |= {name: [getattr(records, name)[i] for i in places] for name in TEXTS}
    columns |= {name: [of[i] for i in getattr(records, name)[order].tolist()] for name, of in KINDS.items()}
    counts = np.diff(records.chunk_offsets)[order]
    columns |= {
        "chunk_ns": _parts(records.chunk_ns, records.chunk_offsets, places),
        "chunk_tokens": _parts(records.chunk_tokens, records.chunk_offsets, places),
        "server_token_ns": _parts(records.server_token_ns, records.server_token_offsets, places),
        "attribution": ["exact" if some else "none" for some in (counts > 0).tolist()],
        "server_timings": ({} for _ in range(rows)),
    }
    for values in islice(zip(*(columns[name] for name in _ROW), strict=False), rows):
        yield RequestRecord(*values)


def _told(column: IntColumn) -> Iterable[int | None]:
    missing = column == MISSING
    if not missing.any():
        return cast("list[int | None]", column.tolist())
    return repeat(None) if missing.all() else [None if v == MISSING else v for v in column.tolist()]


def _parts(values: IntColumn, offsets: IntColumn, places: Sequence[int]) -> Iterator[list[int]]:
    bounds = offsets.tolist()
    if (values == 1).all():  # mostly so of tokens, and a copy of a list is quick
        return ([1] * (bounds[i + 1] - bounds[i]) for i in places)
    return (values[bounds[i] : bounds[i + 1]].tolist() for i in places)


_ROW = tuple(each.name for each in fields(RequestRecord))
_BY_DEFAULT = {each.name: each.default for each in fields(RequestRecord)}
"""Default value of each field of a record, for the fields that a replay does not know."""


def _values(flights: Sequence[InFlight], name: str) -> list[Any]:
    return list(map(attrgetter(name), flights))


def _optional(values: list[int | None]) -> IntColumn:
    if values.count(None) == len(values):
        return np.full(len(values), MISSING, dtype=np.int64)
    return np.array([MISSING if value is None else value for value in values], dtype=np.int64)


def _of_sequences(sequences: Sequence[EngineSequence | None], name: str) -> IntColumn:
    return np.array([MISSING if own is None else getattr(own, name) for own in sequences], dtype=np.int64)


def _cached(flights: Sequence[InFlight], ok: BoolColumn, recording: RecordOptions) -> IntColumn:
    """Cached tokens of those that are ``ok``, where the engine has a prefix cache."""
    cached = _of_sequences(_values(flights, "sequence"), "cached_tokens")
    return np.where(ok & recording.scenario.engine.prefix_caching, cached, MISSING)


def _column(flights: Sequence[InFlight], name: str) -> IntColumn:
    return np.fromiter(map(attrgetter(name), flights), dtype=np.int64, count=len(flights))


def _sources(ok: BoolColumn, some: BoolColumn) -> npt.NDArray[np.int8]:
    """Source of the token counts: the usage at the end of a reply; where it was broken off only the chunks
    can be counted."""
    usage, counted, none = (
        TOKEN_SOURCES.index(source)
        for source in (TokenSource.SERVER_USAGE, TokenSource.CHUNK_COUNT, TokenSource.NONE)
    )
    return np.where(ok, usage, np.where(some, counted, none)).astype(np.int8)


class ReplayLog:
    """Collects the records of one plan."""

    def __init__(self, recording: RecordOptions, on_record: OnRecord | None) -> None:
        self._recording = recording
        self._on_record = on_record
        self._log = RecordLog()
        self._first: Records | None = None
        """All records, as long as they came at once: most replays are short."""

    def keep(self, flights: Sequence[InFlight], steps: Steps) -> Records:
        """Turn flights that have ended into records, and keep these; ``steps`` has all that their tokens came
        from."""
        records = records_of(flights, steps, self._recording)
        if self._first is None:
            self._first = records
        else:
            if not len(self._log):
                self._log.extend(self._first)
            self._log.extend(records)
        taken = isinstance(self._on_record, OnRecords) and self._on_record.columns(records)
        if self._on_record is not None and not taken:
            for row in rows_of(records):
                self._on_record(row)
        return records

    def records(self) -> Records:
        """The records of all flights, in order of submission."""
        if self._first is not None and not len(self._log):
            return self._first
        found = self._log.records()
        self._log.close()
        return found
