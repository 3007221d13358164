"""A line of ``records/*.jsonl.gz``: a record as JSON, written and read.

A whole line names every field. A compact one leaves out what a reader finds by itself, and says instants as
times: ``finished_after_ns`` after ``submitted_ns``, and of the chunks ``chunk_gaps_ns``, the time of the
first after ``submitted_ns`` and of each further one after the one before. Those are short numbers, which
repeat where replies are decoded together; nothing is rounded. No name of a field means two things.

Left out is, with the value that it has then:

- what has the default of :class:`RequestRecord`, and an empty label;
- ``request_id``, where ``id_prefix`` stands: that, and ``index`` behind it;
- ``scheduled_ns`` and ``dispatched_ns``: ``submitted_ns``;
- ``first_byte_ns``, ``first_event_ns``, ``first_nonempty_ns``, ``first_content_ns``: the first chunk;
- ``last_content_ns``, ``finished_ns``: the last chunk;
- ``requested_input_tokens``: ``input_tokens``; ``requested_max_tokens``: ``output_tokens``.

A number for ``chunk_tokens`` is that of every chunk. Where such a field has no value, its name stands there
with ``null``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import lru_cache
from itertools import accumulate, repeat
from operator import attrgetter, sub
from typing import Any

import numpy as np
import orjson

from pytest_llmbench.input_files import parse_json
from pytest_llmbench.model.record import (
    Instant,
    Outcome,
    Phase,
    RequestRecord,
    Several,
    TokenSource,
    of_kind,
)
from pytest_llmbench.model.records import KINDS, IntColumn, Records
from pytest_llmbench.model.records import MISSING as NOT_OBSERVED

RECORDS_SCHEMA = "pytest-llmbench/records/1.9"
READ_SCHEMAS = (*(f"pytest-llmbench/records/1.{minor}" for minor in range(9)), RECORDS_SCHEMA)
"""Schemas that can be read. Earlier ones lack some fields of a line, which get their defaults; their compact
lines have no times."""

RowOf = Callable[[bytes], tuple[RequestRecord, str]]
"""Reads a line; returns the record and its label. Raises ValueError, KeyError or TypeError for an invalid
one."""

_FIELDS = tuple(f.name for f in fields(RequestRecord))
_values = attrgetter(*_FIELDS)
_DEFAULTS = {
    "server_timings": {},
    **{f.name: f.default for f in fields(RequestRecord) if f.default is not MISSING},
}
_DEFAULT_KINDS = {name: _DEFAULTS[name] for name in ("outcome", "token_source")}
_AT_FIRST_CHUNK = ("first_byte_ns", "first_event_ns", "first_nonempty_ns", "first_content_ns")
_AT_LAST_CHUNK = ("last_content_ns", "finished_ns")
_AT_SUBMISSION = ("scheduled_ns", "dispatched_ns")
_INSTANTS = tuple(name for name in of_kind(Instant) if name != "submitted_ns")
"""The instants that a compact line has as times after ``submitted_ns``."""
_TIMES = {name: f"{name.removesuffix('_ns')}_after_ns" for name in _INSTANTS}
_FOLLOWS = {
    **dict.fromkeys(_INSTANTS, 0),
    **dict.fromkeys(_AT_SUBMISSION, 1),
    **dict.fromkeys(_AT_FIRST_CHUNK, 2),
    **dict.fromkeys(_AT_LAST_CHUNK, 3),
}
"""Instant → what it is in most replies: missing (0), that of the submission (1), of the first chunk (2), of
the last (3)."""
_ASKED = {"requested_input_tokens": "input_tokens", "requested_max_tokens": "output_tokens"}
"""Field with what was requested → field that has the same value if the server did as requested."""
_PLAIN = tuple(name for name in _FIELDS if name not in {*_INSTANTS, *_ASKED, *of_kind(Several)})
_STREAMS = ("server_token_gaps_ns", "chunk_tokens", "chunk_gaps_ns")
_AT_ONCE = 1024
"""How many records of columns become lines together: those of a thousand tokens are 4 MiB."""


@lru_cache
def _line_of(record: str, names: tuple[str, ...]) -> Callable[..., dict[str, Any]]:
    """A function that makes the compact line of the object ``record``, or, where that is empty, of its fields
    ``names`` as arguments; the others have what lines leave out. Each field has a statement, in the order of
    the line: a loop over them takes twice as long."""
    of = f"{record}." if record else ""
    told = ["line = {}"]
    for name in (name for name in _PLAIN if name in names):
        default = _DEFAULTS.get(name, MISSING)
        usual = str(default) if isinstance(default, str) else default  # an enumeration's member as its text
        condition = f"{of}{name} {'is not None' if default is None else f'!= {usual!r}'}"
        told.append(f"{'' if default is MISSING else f'if {condition}: '}line[{name!r}] = {of}{name}")
    if not record:
        told.append("if chunk_gaps_ns is not None: line['attribution'] = 'exact'")
    told += [
        "if label: line['label'] = label",
        f"number = str({of}index)",
        f"if {of}request_id.endswith(number): line['id_prefix'] = line.pop('request_id')[: -len(number)]",
        *(f"if {of}{name} != {of}{other}: line[{name!r}] = {of}{name}" for name, other in _ASKED.items()),
        f"submitted_ns = {of}submitted_ns",
    ]
    for name, place in _FOLLOWS.items():
        if name in names:
            usual = ("is not None", "!= submitted_ns", "!= first_ns", "!= last_ns")[place]
            told.append(f"if {of}{name} {usual}: _tell(line, {name!r}, {of}{name}, submitted_ns)")
    told += [f"if {name} is not None: line[{name!r}] = {name}" for name in _STREAMS]
    arguments = ("label", "first_ns", "last_ns", *_STREAMS, *((record,) if record else names))
    made: dict[str, Any] = {}
    exec("\n    ".join((f"def line_of({', '.join(arguments)}):", *told, "return line")), globals(), made)
    return made["line_of"]  # type: ignore[no-any-return]


_TOLD = (*_PLAIN, *_ASKED, *_INSTANTS)
_NEEDED = {"submitted_ns", *_ASKED, *_ASKED.values(), *(name for name, place in _FOLLOWS.items() if place)}
"""Columns without which a line says something else than that they have their defaults."""
_line_of_row = _line_of("record", _TOLD)


def whole_line(record: RequestRecord, label: str) -> dict[str, Any]:
    """The line with every field, as a dictionary."""
    line = dict(zip(_FIELDS, _values(record), strict=True))
    line["label"] = label
    return line


def compact_line(record: RequestRecord, label: str) -> dict[str, Any]:
    """The compact line, as a dictionary; :func:`row_reader` reads the same record from it."""
    chunk_ns, server_ns, tokens = _listed(record.chunk_ns), record.server_token_ns, record.chunk_tokens
    counts: Any = None
    if len(tokens):
        every = _listed(tokens)
        counts = 1 if len(every) == len(chunk_ns) == every.count(1) else every
    return _line_of_row(
        label,
        chunk_ns[0] if chunk_ns else None,
        chunk_ns[-1] if chunk_ns else None,
        _gaps(_listed(server_ns), 0) if len(server_ns) else None,
        counts,
        _gaps(chunk_ns, record.submitted_ns or 0) if chunk_ns else None,
        record,
    )


def compact_lines(records: Records, label: str) -> Iterator[list[dict[str, Any]]]:
    """:func:`compact_line` of each record, in the order in which the requests ended, in batches.

    All chunks have the attribution ``exact``, and there are no server timings: columns tell of neither.
    """
    of_rows = ("attribution", "server_timings")
    columns = {name: getattr(records, name) for name in _TOLD if name not in of_rows}
    names = tuple(name for name, column in columns.items() if name in _NEEDED or _is_told(name, column))
    line_of, order = _line_of("", names), np.argsort(records.finished_ns, kind="stable")
    chunk_ns, tokens, submitted_ns = records.chunk_ns, records.chunk_tokens, records.submitted_ns
    server_gaps = _column_gaps(records.server_token_ns, records.server_token_offsets, 0)
    chunk_gaps = _column_gaps(chunk_ns, records.chunk_offsets, np.maximum(submitted_ns, 0))
    single = bool((tokens == 1).all())
    for start in range(0, len(order), _AT_ONCE):
        places = order[start : start + _AT_ONCE]
        chunks = _bounds(records.chunk_offsets, places)
        yield list(
            map(
                line_of,
                repeat(label),
                [chunk_ns.item(a) if a < b else None for a, b in chunks],
                [chunk_ns.item(b - 1) if a < b else None for a, b in chunks],
                _parts(server_gaps, _bounds(records.server_token_offsets, places)),
                _counts(tokens, chunks, single=single),
                _parts(chunk_gaps, chunks),
                *(_column(name, columns[name], places) for name in names),
            )
        )


def _is_told(name: str, column: Any) -> bool:
    """Whether a column has another value than the one that lines leave out."""
    default = _DEFAULTS.get(name, MISSING)
    if not isinstance(column, np.ndarray):
        return set(column) != {default}
    if name in KINDS:
        return default is MISSING or bool((column != KINDS[name].index(default)).any())
    return bool((column != (NOT_OBSERVED if default is None else default)).any())


def _bounds(offsets: IntColumn, places: IntColumn) -> list[tuple[int, int]]:
    return list(zip(offsets[places].tolist(), offsets[places + 1].tolist(), strict=True))


def _counts(tokens: IntColumn, chunks: Iterable[tuple[int, int]], *, single: bool) -> Iterable[Any]:
    """What lines tell of the tokens of each request's chunks: 1 if each chunk has one."""
    if single:
        return [1 if a < b else None for a, b in chunks]
    own = (tokens[a:b] for a, b in chunks)
    return [None if not len(some) else 1 if (some == 1).all() else some for some in own]


def _parts(values: IntColumn, bounds: Iterable[tuple[int, int]]) -> Iterable[IntColumn | None]:
    return [values[a:b] if a < b else None for a, b in bounds] if len(values) else repeat(None)


def _column(name: str, column: Any, places: IntColumn) -> Iterable[Any]:
    """The values of these requests as a row has them."""
    if not isinstance(column, np.ndarray):
        return [column[place] for place in places.tolist()]
    own = column[places]
    values: list[int] = own.tolist()
    if name in KINDS:
        return [KINDS[name][code] for code in values]
    return [None if v == NOT_OBSERVED else v for v in values] if (own == NOT_OBSERVED).any() else values


def _column_gaps(instants: IntColumn, offsets: IntColumn, base_ns: IntColumn | int) -> IntColumn:
    """:func:`_gaps` of each request's instants."""
    gaps = np.diff(instants, prepend=0)
    some = offsets[:-1] < offsets[1:]
    firsts = offsets[:-1][some]
    gaps[firsts] = instants[firsts] - np.broadcast_to(base_ns, some.shape)[some]
    return gaps


def _tell(line: dict[str, Any], name: str, value: int | None, submitted_ns: int | None) -> None:
    if value is None or submitted_ns is None:
        line[name] = value
    else:
        line[_TIMES[name]] = value - submitted_ns


def encoded_line(line: Mapping[str, Any]) -> bytes:
    try:
        # Records are written while load is running: a third of what the standard library takes. The line end
        # is added here: as an option of orjson it would make each line keep the 16 KiB it was written into.
        return orjson.dumps(line, default=_numpy_as_list, option=orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    except TypeError:  # integers beyond 64 bits, halves of surrogate pairs in a server's message
        return json.dumps(line, separators=(",", ":"), default=_numpy_as_list).encode() + b"\n"


def row_reader(header: Mapping[str, Any]) -> RowOf:
    """The reader for the lines of a file with this header."""
    if not header.get("compact"):
        return row_of
    return _earlier_compact_row if header["schema"] in READ_SCHEMAS[:7] else _compact_row


def row_of(line: bytes) -> tuple[RequestRecord, str]:
    """Read a whole line; see :data:`RowOf`."""
    return _row(_given(line))


def _compact_row(line: bytes) -> tuple[RequestRecord, str]:
    given = _given(line)
    submitted_ns = given.get("submitted_ns")
    if (prefix := given.pop("id_prefix", None)) is not None:
        given["request_id"] = f"{prefix}{given['index']}"
    if (gaps := given.pop("chunk_gaps_ns", None)) is not None:
        given["chunk_ns"] = _instants(gaps, submitted_ns or 0)
        if given.get("chunk_tokens") == 1:
            given["chunk_tokens"] = [1] * len(gaps)
    if (gaps := given.pop("server_token_gaps_ns", None)) is not None:
        given["server_token_ns"] = _instants(gaps, 0)
    for name, time_name in _TIMES.items():
        if time_name in given:
            given[name] = submitted_ns + given.pop(time_name)
    chunk_ns = given.get("chunk_ns") or (None,)
    usual = None, submitted_ns, chunk_ns[0], chunk_ns[-1]
    implied = {name: usual[place] for name, place in _FOLLOWS.items()}
    asked = {name: given.get(follows) for name, follows in _ASKED.items()}
    return _row({"label": "", **_DEFAULT_KINDS, **implied, **asked, **given})


def _earlier_compact_row(line: bytes) -> tuple[RequestRecord, str]:
    """Read a compact line of a schema up to 1.6: all instants are whole."""
    given = _given(line)
    chunk_ns = given.get("chunk_ns", ())
    implied = (
        dict.fromkeys(_AT_FIRST_CHUNK, chunk_ns[0]) | {"last_content_ns": chunk_ns[-1]} if chunk_ns else {}
    )
    return _row({"label": "", **_DEFAULT_KINDS, **implied, **given})


def _given(line: bytes) -> dict[str, Any]:
    # An empty list is the default of its field; in the file it is there for readers of other languages.
    given = parse_json(line)
    if not isinstance(given, dict):
        raise TypeError(f"expected a JSON object, got a {type(given).__name__}")
    return {name: value for name, value in given.items() if value != []}


def _row(values: dict[str, Any]) -> tuple[RequestRecord, str]:
    label = values.pop("label")
    values["phase"] = Phase(values["phase"])
    values["outcome"] = Outcome(values["outcome"])
    values["token_source"] = TokenSource(values["token_source"])
    if "reasoning_token_source" in values:
        values["reasoning_token_source"] = TokenSource(values["reasoning_token_source"])
    return RequestRecord(**values), label


def _gaps(instants: Sequence[int], base_ns: int) -> list[int]:
    if instants[0] == instants[-1] and instants.count(instants[0]) == len(instants):  # one read brought all
        return [instants[0] - base_ns, *repeat(0, len(instants) - 1)]
    return list(map(sub, instants, (base_ns, *instants)))


def _instants(gaps: Sequence[int], base_ns: int) -> list[int]:
    return list(accumulate(gaps, initial=base_ns))[1:]


def _listed(values: Any) -> Sequence[int]:
    listed: Sequence[int] = values.tolist() if isinstance(values, np.ndarray) else values
    return listed


def _numpy_as_list(value: object) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")
