"""Compact record lines from columns: the bytes of :func:`record_line.compact_line` for each request, without
a row or a dictionary for each.

Most fields are in every line of a load or in none, and many say the same in all. So requests whose lines have
the same fields share a template, and a line is that with its numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np
import orjson

from pytest_llmbench.model.records import (
    KINDS,
    MISSING,
    BoolColumn,
    IntColumn,
    Records,
)
from pytest_llmbench.store.record_line import (
    ASKED,
    DEFAULTS,
    FOLLOWS,
    PLAIN,
    TIMES,
)

_NO_DEFAULT = object()
_AT_ONCE = 1024
"""How many lines are made together: those of a thousand tokens are 4 MiB."""


class _Field(NamedTuple):
    """A field of the lines, for all requests."""

    name: str
    there: BoolColumn
    """For each request, whether its line has the field."""
    values: bytes | Sequence[Any]
    """The JSON of the field if all have the same; else for each request its number or JSON."""


def compact_lines(records: Records, label: str) -> Iterator[list[bytes]]:
    """The lines in the order in which the requests ended, in batches.

    All chunks have the attribution ``exact``, and there are no server timings: columns tell of neither.
    TypeError, before any line, for text that is no Unicode.
    """
    if not len(records):
        return iter(())
    fields = [field for field in _fields(records, label) if field.there.any()]
    order = np.argsort(records.finished_ns, kind="stable")
    return (_lines_of(fields, order[first : first + _AT_ONCE]) for first in range(0, len(order), _AT_ONCE))


def _lines_of(fields: Sequence[_Field], places: IntColumn) -> list[bytes]:
    """The lines of the requests with these indices."""
    shape = np.zeros(len(places), dtype=np.int64)
    for field in (field for field in fields if not field.there.all()):
        shape = np.unique(2 * shape + field.there[places], return_inverse=True)[1]
    lines: list[bytes] = [b""] * len(places)
    for one in range(int(shape.max()) + 1):
        alike = np.flatnonzero(shape == one).tolist()
        own = places[alike].tolist()
        for at, line in zip(alike, _filled([f for f in fields if f.there[own[0]]], own), strict=True):
            lines[at] = line
    return lines


def _filled(fields: Sequence[_Field], places: Sequence[int]) -> Iterable[bytes]:
    """The lines of requests that have exactly these fields."""
    template, columns = [], []
    for name, _, values in fields:
        if isinstance(values, bytes):
            form = values.replace(b"%", b"%%")
        else:
            form = b"%b" if isinstance(values[places[0]], bytes) else b"%d"
            columns.append([values[place] for place in places])
        template.append(b'"%b":%b' % (name.encode(), form))
    line = b"{%b}\n" % b",".join(template)
    return map(line.__mod__, zip(*columns, strict=True) if columns else repeat((), len(places)))


def _fields(records: Records, label: str) -> Iterable[_Field]:
    """The fields in the order of a line."""
    everywhere = np.ones(len(records), dtype=bool)
    counts = np.diff(records.chunk_offsets)
    prefixes = [
        text[: -len(number)] if text.endswith(number) else None
        for text, number in zip(records.request_id, map(str, records.index.tolist()), strict=True)
    ]
    implied = np.array([prefix is not None for prefix in prefixes], dtype=bool)
    for name in PLAIN:
        if name == "request_id":
            yield _texts(name, ~implied, list(records.request_id))
        elif name == "attribution":
            yield _texts(name, counts > 0, ["exact"] * len(records))
        elif name != "server_timings":
            yield _plain(name, getattr(records, name))
    if label:
        yield _texts("label", everywhere, [label] * len(records))
    yield _texts("id_prefix", implied, prefixes)
    for name, follows in ASKED.items():
        column = getattr(records, name)
        yield _numbers(name, column != getattr(records, follows), column)
    yield from _instants(records, counts > 0)
    yield from _streams(records, counts > 0)


def _plain(name: str, column: Any) -> _Field:
    """A field that is in a line unless it has its default."""
    default = DEFAULTS.get(name, _NO_DEFAULT)
    if name in KINDS:
        kinds = KINDS[name]
        there = np.ones(len(column), dtype=bool) if default is _NO_DEFAULT else column != kinds.index(default)
        told = [b'"%b"' % str(kind).encode() for kind in kinds]
        alike = bool((column == column[0]).all())
        return _Field(name, there, told[column[0]] if alike else [told[code] for code in column.tolist()])
    if isinstance(column, np.ndarray):
        if default is _NO_DEFAULT:
            return _numbers(name, np.ones(len(column), dtype=bool), column)
        return _numbers(name, column != (MISSING if default is None else default), column)
    if set(column) == {default}:
        return _Field(name, np.zeros(len(column), dtype=bool), b"")
    return _texts(name, np.array([text != default for text in column], dtype=bool), column)


def _instants(records: Records, answered: BoolColumn) -> Iterable[_Field]:
    """The instants that do not follow from others, as times after the submission."""
    submitted_ns, chunk_ns = records.submitted_ns, records.chunk_ns
    first_ns = np.full(len(records), MISSING, dtype=np.int64)
    last_ns = first_ns.copy()
    first_ns[answered] = chunk_ns[records.chunk_offsets[:-1][answered]]
    last_ns[answered] = chunk_ns[records.chunk_offsets[1:][answered] - 1]
    usual = (MISSING, submitted_ns, first_ns, last_ns)
    for name, place in FOLLOWS.items():
        column = getattr(records, name)
        differs = column != usual[place]
        as_time = differs & (column != MISSING) & (submitted_ns != MISSING)
        yield _numbers(name, differs & ~as_time, column)
        yield _numbers(TIMES[name], as_time, column - submitted_ns)


def _streams(records: Records, answered: BoolColumn) -> Iterable[_Field]:
    server, offsets, tokens = records.server_token_offsets, records.chunk_offsets, records.chunk_tokens
    gaps_ns = _gaps(records.server_token_ns, server, 0)
    yield _Field("server_token_gaps_ns", np.diff(server) > 0, _Lists(gaps_ns, server))
    told = b"1" if (tokens == 1).all() else _Counts(tokens, offsets)
    yield _Field("chunk_tokens", answered, told)
    gaps_ns = _gaps(records.chunk_ns, offsets, np.maximum(records.submitted_ns, 0))
    yield _Field("chunk_gaps_ns", answered, _Lists(gaps_ns, offsets))


def _gaps(instants: IntColumn, offsets: IntColumn, base_ns: IntColumn | int) -> IntColumn:
    """Each instant less the one before it; the first of a request less its ``base_ns``."""
    gaps = np.diff(instants, prepend=0)
    some = offsets[:-1] < offsets[1:]
    firsts = offsets[:-1][some]
    gaps[firsts] = instants[firsts] - np.broadcast_to(base_ns, some.shape)[some]
    return gaps


class _Lists(Sequence[bytes]):
    """The JSON list of each request's part of a ragged column, made when it is asked for."""

    def __init__(self, values: IntColumn, offsets: IntColumn) -> None:
        self._values, self._bounds = values, offsets.tolist()

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, at: Any) -> Any:
        return self._told(self._values[self._bounds[at] : self._bounds[at + 1]])

    def _told(self, own: IntColumn) -> bytes:
        return orjson.dumps(own, option=orjson.OPT_SERIALIZE_NUMPY)


class _Counts(_Lists):
    """The JSON of each request's token counts per chunk: a single 1 if all are 1."""

    def _told(self, own: IntColumn) -> bytes:
        return b"1" if (own == 1).all() else super()._told(own)


def _numbers(name: str, there: BoolColumn, column: IntColumn) -> _Field:
    """A field with a column of numbers, ``null`` for missing ones."""
    own = column[there]
    if not len(own):
        return _Field(name, there, b"")
    if (own == own[0]).all():
        return _Field(name, there, _number(own.item(0)))
    numbers = column.tolist()
    return _Field(name, there, list(map(_number, numbers)) if (own == MISSING).any() else numbers)


def _number(number: int) -> bytes:
    return b"null" if number == MISSING else b"%d" % number


def _texts(name: str, there: BoolColumn, texts: Sequence[str | None]) -> _Field:
    if not there.any():
        return _Field(name, there, b"")
    told = {text: orjson.dumps(text) for text in set(texts)}
    return _Field(name, there, told[texts[0]] if len(told) == 1 else [told[text] for text in texts])
