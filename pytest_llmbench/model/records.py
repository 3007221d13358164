"""Measured requests as columns: read-only NumPy arrays, one entry per request; and the figures of a closed
loop's slots that follow from them.

Columns of text do not hold one Python object per request: they are codes into a table, or packed bytes. Both
are read-only sequences and stand where a list of strings stands in short runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass, field, fields
from itertools import chain, pairwise, repeat
from operator import attrgetter
from typing import Any, NamedTuple, Protocol, overload, runtime_checkable

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.plan import Load
from pytest_llmbench.model.record import (
    Instant,
    Number,
    Outcome,
    OutcomeOf,
    Phase,
    PhaseOf,
    RequestColumns,
    RequestRecord,
    Several,
    SourceOf,
    Text,
    TokenSource,
    Whole,
    Words,
    of_kind,
)

_AT_ONCE = 65_536


class CodedTexts(Sequence[Any]):
    """Texts with few different values, ``None`` among them, as codes: labels, errors, finish reasons."""

    __slots__ = ("codes", "table")

    def __init__(self, codes: npt.NDArray[np.int32], table: Sequence[str | None]) -> None:
        self.codes = codes
        self.table = tuple(table)

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, at: int) -> Any: ...
    @overload
    def __getitem__(self, at: slice) -> CodedTexts: ...
    def __getitem__(self, at: int | slice) -> Any:
        if isinstance(at, slice):
            return CodedTexts(self.codes[at], self.table)
        return self.table[self.codes[at]]

    def __iter__(self) -> Iterator[Any]:
        for first in range(0, len(self.codes), _AT_ONCE):
            yield from map(self.table.__getitem__, self.codes[first : first + _AT_ONCE].tolist())

    def take(self, places: npt.NDArray[np.int64]) -> CodedTexts:
        return CodedTexts(self.codes[places], self.table)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        values = np.array([*self.table, None], dtype=object)[:-1][self.codes]
        return values if dtype is None else values.astype(dtype, copy=False)


class PackedTexts(Sequence[str]):
    """Texts that are all different, as one UTF-8 buffer; the i-th ends where the next begins."""

    __slots__ = ("data", "offsets")

    def __init__(self, offsets: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> None:
        self.offsets = offsets
        self.data = data

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[str]: ...
    def __getitem__(self, at: int | slice) -> str | Sequence[str]:
        if isinstance(at, slice):
            first, last, step = at.indices(len(self))
            if step == 1:
                return PackedTexts(self.offsets[first : max(first, last) + 1], self.data)
            return [self[place] for place in range(first, last, step)]
        place = at + len(self) if at < 0 else at
        if not 0 <= place < len(self):
            raise IndexError("there is no such request")
        return self.data[self.offsets[place] : self.offsets[place + 1]].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        for first in range(0, len(self), _AT_ONCE):
            bounds = self.offsets[first : first + _AT_ONCE + 1]
            base = int(bounds[0])
            data = self.data[base : int(bounds[-1])].tobytes()
            ends = (bounds - base).tolist()
            yield from (data[start:end].decode() for start, end in pairwise(ends))

    def take(self, places: npt.NDArray[np.int64]) -> PackedTexts:
        starts, counts = self.offsets[:-1][places], np.diff(self.offsets)[places]
        offsets = offsets_of(counts)
        entries = np.repeat(starts - offsets[:-1], counts) + np.arange(offsets[-1])
        return PackedTexts(offsets, self.data[entries])


Texts = CodedTexts | PackedTexts


IntColumn = npt.NDArray[np.int64]
BoolColumn = npt.NDArray[np.bool_]


class Ragged(NamedTuple):
    """A column of several numbers per request: how many each has, and all of them one after another."""

    counts: IntColumn
    entries: IntColumn

    @classmethod
    def of(cls, values: Sequence[Sequence[int]]) -> Ragged:
        counts = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        entries = np.fromiter(chain.from_iterable(values), dtype=np.int64, count=int(counts.sum()))
        return cls(counts, entries)

    def times(self, count: int) -> Ragged:
        """The column repeated ``count`` times."""
        return Ragged(np.tile(self.counts, count), np.tile(self.entries, count))


MISSING = -1
"""A value that was not observed. Never a legal instant or count, so it cannot pass for a measurement."""

OUTCOMES: tuple[Outcome, ...] = tuple(Outcome)
PHASES: tuple[Phase, ...] = tuple(Phase)
TOKEN_SOURCES: tuple[TokenSource, ...] = tuple(TokenSource)

BLOCK = 65_536
"""Most requests that are worked on at once, where a run is too long to be worked on as a whole."""
BLOCK_ENTRIES = 1 << 20
"""Most content chunks of a block: 8 MiB per vector."""

NUMBERS = of_kind(Whole, Instant, Number)
"""Columns with one number for each request."""
TEXTS = of_kind(Text, Words)
KINDS: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(of_kind(PhaseOf), PHASES),
    **dict.fromkeys(of_kind(SourceOf), TOKEN_SOURCES),
    **dict.fromkeys(of_kind(OutcomeOf), OUTCOMES),
}
"""Column of codes → the members that the codes stand for."""
_CODES = {name: {member: code for code, member in enumerate(kinds)} for name, kinds in KINDS.items()}
RAGGED = {
    "chunk_offsets": ("chunk_ns", "chunk_tokens"),
    "server_token_offsets": ("server_token_ns",),
}
IN_RAGGED = {name for offsets, names in RAGGED.items() for name in (offsets, *names)}
_ROW_FIELDS = tuple(column.name for column in fields(RequestColumns))
_row_values = attrgetter(*_ROW_FIELDS)
_DEFAULTS = {column.name: column.default for column in fields(RequestColumns)}
_Codes = npt.NDArray[np.int8]


@dataclass(eq=False, init=False)
class Records(
    RequestColumns[
        IntColumn,
        IntColumn,
        IntColumn,
        Sequence[str],
        Sequence[str | None],
        _Codes,
        _Codes,
        _Codes,
        IntColumn,
    ]
):
    """n requests with m content chunks in all. Integer columns hold ``MISSING`` where nothing was observed.

    ``chunk_ns`` and ``chunk_tokens`` are ragged: request i owns ``[chunk_offsets[i], chunk_offsets[i + 1])``.
    ``chunk_tokens`` is ``MISSING`` for chunks of requests without an attribution. ``server_token_ns`` is
    ragged in the same way by ``server_token_offsets``, and empty where the server gives no instants.
    Order: as submitted.

    The columns of a long run may lie in a file that is mapped into memory (``pytest_llmbench.columns``); its
    texts are then no lists but other sequences. :meth:`blocks` is how to go through such a run.
    """

    chunk_offsets: IntColumn = field(kw_only=True)
    server_token_offsets: IntColumn = field(kw_only=True)

    def __init__(self, **columns: Any) -> None:
        """All columns, by their names."""
        if columns.keys() != _COLUMNS:
            raise TypeError(f"columns that are missing, or unknown: {sorted(columns.keys() ^ _COLUMNS)}")
        for value in columns.values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        self.__setstate__(columns)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _NAMES}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def ok(self) -> BoolColumn:
        """Mask of the requests that ended as ``Outcome.OK``."""
        return self.has_outcome(Outcome.OK)

    @property
    def judged(self) -> BoolColumn:
        """Mask of the requests that enter shares: all but those that their users were to cut."""
        return ~self.has_outcome(Outcome.CUT_BY_USER)

    @property
    def failed(self) -> BoolColumn:
        """Mask of the requests that count as failed: neither ended as ``Outcome.OK`` nor to be cut."""
        return self.judged & ~self.ok

    @property
    def given_up(self) -> BoolColumn:
        """Mask of the requests that were sent and that the load generator itself ended: at a deadline, or
        with the load. How long they would have taken is not known."""
        ours = self.has_outcome(Outcome.TIMEOUT) | self.has_outcome(Outcome.CANCELLED)
        return np.asarray(ours & (self.dispatched_ns != MISSING))

    @property
    def ok_share(self) -> float | None:
        """The requests that ended as ``Outcome.OK``, as a share of the judged ones; None without any."""
        judged = self.ok[self.judged]
        return float(judged.mean()) if len(judged) else None

    def has_outcome(self, outcome: Outcome) -> BoolColumn:
        return np.asarray(self.outcome == OUTCOMES.index(outcome))

    def counts(self) -> dict[str, int]:
        """``submitted`` (all requests) and the number of each outcome, zero included."""
        by_outcome = np.bincount(self.outcome, minlength=len(OUTCOMES))
        return {"submitted": len(self)} | {
            str(outcome): int(count) for outcome, count in zip(OUTCOMES, by_outcome, strict=True)
        }

    def select(self, mask: BoolColumn) -> Records:
        """The requests where ``mask`` is true, with their chunks."""
        mask = np.asarray(mask, dtype=bool)
        keep = np.flatnonzero(mask)
        first, last = (int(keep[0]), int(keep[-1]) + 1) if len(keep) else (0, 0)
        if len(keep) == last - first:
            return self.part(first, last)
        columns: dict[str, Any] = {}
        for name in _OF_REQUESTS:
            value = getattr(self, name)
            columns[name] = value[mask] if isinstance(value, np.ndarray) else _taken(value, keep)
        for offsets_name, names in RAGGED.items():
            counts = np.diff(getattr(self, offsets_name))
            columns[offsets_name] = offsets_of(counts[mask])
            entries = np.repeat(mask, counts)
            columns |= {name: getattr(self, name)[entries] for name in names}
        return Records(**columns)

    def of_class(self, label: str) -> Records:
        """The requests with this class label."""
        labels = (each == label for each in self.class_label)
        return self.select(np.fromiter(labels, dtype=bool, count=len(self)))

    def part(self, first: int, last: int) -> Records:
        """Requests ``first`` to ``last - 1`` as they stand, without copying more than offsets."""
        columns: dict[str, Any] = {name: getattr(self, name)[first:last] for name in _OF_REQUESTS}
        for offsets_name, names in RAGGED.items():
            offsets = getattr(self, offsets_name)[first : last + 1]
            start, end = int(offsets[0]), int(offsets[-1])
            if start:
                offsets = offsets - start
                offsets.setflags(write=False)
            columns[offsets_name] = offsets
            columns |= {name: getattr(self, name)[start:end] for name in names}
        return self._sharing(columns)

    def blocks(self, size: int = BLOCK, entries: int = BLOCK_ENTRIES) -> Iterator[Records]:
        """The requests in order, at most ``size`` at a time, and with more than one at most ``entries``
        chunks; the records themselves if they are no more than that."""
        first = 0
        while first < len(self):
            last = min(first + size, len(self))
            for name in RAGGED:
                offsets = getattr(self, name)
                within = int(np.searchsorted(offsets, offsets[first] + entries, side="right")) - 1
                last = min(last, max(within, first + 1))
            yield self if last - first == len(self) else self.part(first, last)
            first = last
        if not len(self):
            yield self

    def _sharing(self, columns: dict[str, Any]) -> Records:
        """Records whose columns are views of ours, and read-only as these are."""
        part = object.__new__(Records)
        part.__setstate__(columns)
        return part

    def without_streams(self) -> Records:
        """The requests without chunks and server instants, which take little memory to keep."""
        empty = np.empty(0, dtype=np.int64)
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        for offsets_name, names in RAGGED.items():
            columns[offsets_name] = np.zeros(len(self) + 1, dtype=np.int64)
            columns |= dict.fromkeys(names, empty)
        return Records(**columns)

    def without_output_counts(self) -> Records:
        """The requests as if nobody had counted their output tokens."""
        columns = {name: getattr(self, name) for name in _NAMES}
        columns |= {
            name: np.full_like(columns[name], MISSING)
            for name in ("output_tokens", "reasoning_tokens", "chunk_tokens")
        }
        return self._sharing(columns)

    @property
    def nbytes(self) -> int:
        """Approximate number of bytes that the columns take in memory."""
        values = [getattr(self, column.name) for column in fields(self)]
        return sum(value.nbytes if isinstance(value, np.ndarray) else 8 * len(value) for value in values)

    @classmethod
    def from_rows(cls, rows: Iterable[RequestRecord]) -> Records:
        """Columns from rows, ordered by submission (requests that never reached the wire: by schedule)."""
        values = list(map(_row_values, sorted(rows, key=_place_in_order)))
        by_name = dict(zip(_ROW_FIELDS, zip(*values, strict=True) if values else repeat(()), strict=False))
        for name, codes in _CODES.items():
            by_name[name] = tuple(map(codes.__getitem__, by_name[name]))
        return cls.from_columns(by_name | {name: Ragged.of(by_name[name]) for name in of_kind(Several)})

    @classmethod
    def from_columns(cls, by_name: Mapping[str, Any]) -> Records:
        """Records from the values of each field, as :meth:`from_rows` makes them, in the order in which they
        stand.

        Of enumerations the places of their members, of several numbers per request a :class:`Ragged`.
        """
        columns: dict[str, Any] = {name: _int_column(by_name[name]) for name in NUMBERS}
        columns |= {name: np.array(by_name[name], dtype=np.int8) for name in _CODES}
        columns |= {name: list(by_name[name]) for name in TEXTS}
        return cls(**(columns | _ragged_columns(by_name)))

    @classmethod
    def filled(cls, count: int, known: Mapping[str, Any]) -> Records:
        """``count`` records with these columns. Nothing was observed of the others; counts from 0 are 0."""
        none, never = np.full(count, MISSING, dtype=np.int64), np.zeros(count, dtype=np.int64)
        columns: dict[str, Any] = dict.fromkeys(of_kind(Instant, Number), none)
        columns |= dict.fromkeys(of_kind(Whole), never) | dict.fromkeys(of_kind(Words), [None] * count)
        columns |= {
            name: np.full(count, _CODES[name][_DEFAULTS[name]], dtype=np.int8)
            for name in of_kind(SourceOf, OutcomeOf)
        }
        columns |= dict.fromkeys(RAGGED, np.zeros(count + 1, dtype=np.int64))
        columns |= dict.fromkeys(of_kind(Several), np.empty(0, dtype=np.int64))
        return cls(**{**columns, **known})

    @classmethod
    def concatenate(cls, parts: Sequence[Records]) -> Records:
        """All requests of several runs, one after another."""
        if not parts:
            return cls.from_rows(())
        if len(parts) == 1:
            return parts[0]
        return next((part for part in parts if type(part) is not Records), parts[0])._joined(parts)

    def _joined(self, parts: Sequence[Records]) -> Records:
        """:meth:`concatenate` for several parts, this one included."""
        return Records(**{name: _joined_column(parts, name) for name in _NAMES})


class JoinedRecords(Records):
    """Several runs, one after another. A column is joined only when it is asked for: a look at a few columns
    of a long test needs no copy of its chunks. Go through them by :meth:`blocks`."""

    _parts: tuple[Records, ...]

    def __init__(self, parts: Iterable[Records]) -> None:
        object.__setattr__(self, "_parts", tuple(parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedRecords, (self._parts,)

    def __getattr__(self, name: str) -> Any:
        if name not in _COLUMNS:
            raise AttributeError(name)
        column = _joined_column(self._parts, name)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
        object.__setattr__(self, name, column)
        return column

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def select(self, mask: BoolColumn) -> Records:
        mask = np.asarray(mask, dtype=bool)
        return JoinedRecords(part.select(mask[first:last]) for part, first, last in self._placed())

    def part(self, first: int, last: int) -> Records:
        within = [
            part.part(max(first - begin, 0), min(last, end) - begin)
            for part, begin, end in self._placed()
            if begin < last and end > first
        ]
        return JoinedRecords(within) if within else self._parts[0].part(0, 0)

    def blocks(self, size: int = BLOCK, entries: int = BLOCK_ENTRIES) -> Iterator[Records]:
        for part in [part for part in self._parts if len(part)] or self._parts[:1]:
            yield from part.blocks(size, entries)

    def without_streams(self) -> Records:
        return JoinedRecords(part.without_streams() for part in self._parts)

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self._parts)

    def _placed(self) -> Iterator[tuple[Records, int, int]]:
        """The parts, each with the index of its first request and of that after its last."""
        begin = 0
        for part in self._parts:
            yield part, begin, begin + len(part)
            begin += len(part)

    def _joined(self, parts: Sequence[Records]) -> Records:
        return JoinedRecords(parts)


_NAMES = tuple(column.name for column in fields(Records))
_OF_REQUESTS = tuple(name for name in _NAMES if name not in IN_RAGGED)
_COLUMNS = frozenset(_NAMES)


def _joined_column(parts: Sequence[Records], name: str) -> Any:
    values = [getattr(part, name) for part in parts]
    if name in RAGGED:
        return offsets_of(np.concatenate(list(map(np.diff, values))))
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else [*chain.from_iterable(values)]


def _taken(texts: Sequence[Any], keep: IntColumn) -> Sequence[Any]:
    if isinstance(texts, CodedTexts | PackedTexts):
        return texts.take(keep)
    return [texts[i] for i in keep.tolist()]


def _place_in_order(row: RequestRecord) -> tuple[int, int]:
    """The sort key of a row: its :func:`submission_keys`, and its index."""
    instants = row.submitted_ns, row.dispatched_ns, row.scheduled_ns
    return next((instant for instant in instants if instant is not None), 0), row.index


def submission_keys(columns: Mapping[str, Any]) -> IntColumn:
    """The instant that orders each request: submitted, else dispatched, else scheduled, else 0."""
    instants = np.where(
        columns["dispatched_ns"] != MISSING, columns["dispatched_ns"], columns["scheduled_ns"]
    )
    instants = np.where(columns["submitted_ns"] != MISSING, columns["submitted_ns"], instants)
    found: IntColumn = np.where(instants != MISSING, instants, 0)
    return found


def _int_column(values: Sequence[int | None]) -> IntColumn:
    first = values[0] if values else None
    if values.count(first) == len(values):  # as most columns are
        # Not ``np.full``, which makes a number of infinity in a broken file.
        one = np.array([MISSING if first is None else first][: len(values)], dtype=np.int64)
        return np.repeat(one, len(values))
    unknown = values.count(None)
    known = [MISSING if value is None else value for value in values] if unknown else values
    return np.array(known, dtype=np.int64)


def offsets_of(counts: IntColumn | BoolColumn) -> IntColumn:
    """Where the entries of each request begin, and where those of the last end, by how many each has."""
    return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)


def _ragged_columns(by_name: Mapping[str, Ragged]) -> dict[str, IntColumn]:
    chunks, tokens, server = by_name["chunk_ns"], by_name["chunk_tokens"], by_name["server_token_ns"]
    alike, chunk_tokens = tokens.counts == chunks.counts, tokens.entries
    if not alike.all():
        chunk_tokens = np.full(len(chunks.entries), MISSING, dtype=np.int64)
        chunk_tokens[np.repeat(alike, chunks.counts)] = tokens.entries[np.repeat(alike, tokens.counts)]
    return {
        "chunk_offsets": offsets_of(chunks.counts),
        "chunk_ns": chunks.entries,
        "chunk_tokens": chunk_tokens,
        "server_token_offsets": offsets_of(server.counts),
        "server_token_ns": server.entries,
    }


@runtime_checkable
class OnRecords(Protocol):
    """An ``OnRecord`` that also takes many records at once."""

    def __call__(self, record: RequestRecord) -> None: ...

    def columns(self, records: Records) -> bool:
        """Take these records, in the order in which they ended. False, with nothing taken, if they can only
        be taken as rows. All chunks have the attribution ``exact``, and there are no server timings."""
        ...


def split_by_class(runs: Sequence[Records]) -> dict[str, list[Records]]:
    """Class label → its requests in each run, labels in order; empty where there are not two classes."""
    labels = sorted({label for run in runs for label in run.class_label} - {""})
    return {label: [run.of_class(label) for run in runs] for label in labels} if len(labels) > 1 else {}


def replacement_lags_ns(load: Load, records: Records) -> IntColumn:
    """Dispatched - due in nanoseconds; a request is due when the one before it in the slot ended. Empty for
    an open loop, which has no slots."""
    if load.requests_in_flight is None:
        return np.empty(0, dtype=np.int64)
    known = (records.scheduled_ns != MISSING) & (records.dispatched_ns != MISSING)
    lags: IntColumn = np.maximum(records.dispatched_ns[known] - records.scheduled_ns[known], 0)
    return lags


def empty_slot_share(load: Load, records: Records) -> float:
    """Σ (dispatched - due) / Σ (end - due): the share of the slots' time in which they waited for us."""
    empty_ns = float(replacement_lags_ns(load, records).sum())
    due_ns, ended_ns = records.scheduled_ns, records.finished_ns
    known = (due_ns != MISSING) & (ended_ns > due_ns)
    took_ns = float((ended_ns - due_ns)[known].sum())
    return min(1.0, empty_ns / took_ns) if took_ns > 0 else 0.0
