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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from itertools import accumulate, repeat, starmap
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

RECORDS_SCHEMA = "pytest-llmbench/records/1.9"
READ_SCHEMAS = (*(f"pytest-llmbench/records/1.{minor}" for minor in range(9)), RECORDS_SCHEMA)
"""Schemas that can be read. Earlier ones lack some fields of a line, which get their defaults; their compact
lines have no times."""

RowOf = Callable[[bytes], tuple[RequestRecord, str]]
"""Reads a line; returns the record and its label. Raises ValueError, KeyError or TypeError for an invalid
one."""

_FIELDS = tuple(f.name for f in fields(RequestRecord))
_values = attrgetter(*_FIELDS)
DEFAULTS = {
    "server_timings": {},
    **{f.name: f.default for f in fields(RequestRecord) if f.default is not MISSING},
}
_NO_DEFAULT = object()
_DEFAULT_KINDS = {name: DEFAULTS[name] for name in ("outcome", "token_source")}
AT_FIRST_CHUNK = ("first_byte_ns", "first_event_ns", "first_nonempty_ns", "first_content_ns")
AT_LAST_CHUNK = ("last_content_ns", "finished_ns")
AT_SUBMISSION = ("scheduled_ns", "dispatched_ns")
INSTANTS = tuple(name for name in of_kind(Instant) if name != "submitted_ns")
"""The instants that a compact line has as times after ``submitted_ns``."""
TIMES = {name: f"{name.removesuffix('_ns')}_after_ns" for name in INSTANTS}
FOLLOWS = {
    **dict.fromkeys(INSTANTS, 0),
    **dict.fromkeys(AT_SUBMISSION, 1),
    **dict.fromkeys(AT_FIRST_CHUNK, 2),
    **dict.fromkeys(AT_LAST_CHUNK, 3),
}
"""Instant → place of the one that it has in most replies, in :func:`_usual`."""
ASKED = {"requested_input_tokens": "input_tokens", "requested_max_tokens": "output_tokens"}
"""Field with what was requested → field that has the same value if the server did as requested."""
_BY_RULE = frozenset((*INSTANTS, *ASKED, *of_kind(Several)))
PLAIN = tuple(name for name in _FIELDS if name not in _BY_RULE)


def _compiled(arguments: str, statements: Iterable[str]) -> Callable[..., None]:
    """A function of these statements, of which each column has one: a loop over the columns takes twice as
    long."""
    made: dict[str, Any] = {}
    exec(f"def told({arguments}):\n    " + "\n    ".join(statements), globals(), made)
    return made["told"]  # type: ignore[no-any-return]


def _plain(name: str) -> str:
    """Tells a plain field unless it has its default."""
    default = DEFAULTS.get(name, _NO_DEFAULT)
    if default is _NO_DEFAULT:
        return f"line[{name!r}] = record.{name}"
    usual = str(default) if isinstance(default, str) else default  # an enumeration's member as its text
    told = "is not None" if default is None else f"!= {usual!r}"
    return f"if record.{name} {told}: line[{name!r}] = record.{name}"


def _instant(name: str, place: int) -> str:
    """Tells an instant that follows neither from the submission nor from the chunks."""
    usual = ("is not None", "!= submitted_ns", "!= first_ns", "!= last_ns")[place]
    return f"if record.{name} {usual}: _tell(line, {name!r}, record.{name}, submitted_ns)"


_tell_plain = _compiled("line, record", map(_plain, PLAIN))
_tell_instants = _compiled(
    "line, record, submitted_ns, first_ns, last_ns", starmap(_instant, FOLLOWS.items())
)


def whole_line(record: RequestRecord, label: str) -> dict[str, Any]:
    """The line with every field, as a dictionary."""
    line = dict(zip(_FIELDS, _values(record), strict=True))
    line["label"] = label
    return line


def compact_line(record: RequestRecord, label: str) -> dict[str, Any]:
    """The compact line, as a dictionary; :func:`row_reader` reads the same record from it."""
    line: dict[str, Any] = {}
    _tell_plain(line, record)
    if label:
        line["label"] = label
    if record.request_id.endswith(number := str(record.index)):
        line["id_prefix"] = line.pop("request_id")[: -len(number)]
    for name, follows in ASKED.items():
        if (asked := getattr(record, name)) != getattr(record, follows):
            line[name] = asked
    chunk_ns = _listed(record.chunk_ns)
    _tell_instants(line, record, *_usual(record.submitted_ns, chunk_ns)[1:])
    if len(record.server_token_ns):
        line["server_token_gaps_ns"] = _gaps(_listed(record.server_token_ns), 0)
    if len(tokens := record.chunk_tokens):
        every = _listed(tokens)
        line["chunk_tokens"] = 1 if len(every) == len(chunk_ns) == every.count(1) else every
    if chunk_ns:
        line["chunk_gaps_ns"] = _gaps(chunk_ns, record.submitted_ns or 0)
    return line


def _tell(line: dict[str, Any], name: str, value: int | None, submitted_ns: int | None) -> None:
    if value is None or submitted_ns is None:
        line[name] = value
    else:
        line[TIMES[name]] = value - submitted_ns


def _usual(submitted_ns: int | None, chunk_ns: Sequence[int]) -> tuple[int | None, ...]:
    """Nothing, and the instants of the submission, of the first chunk and of the last."""
    return (None, submitted_ns, chunk_ns[0], chunk_ns[-1]) if chunk_ns else (None, submitted_ns, None, None)


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
    for name, time_name in TIMES.items():
        if time_name in given:
            given[name] = submitted_ns + given.pop(time_name)
    usual = _usual(submitted_ns, given.get("chunk_ns", ()))
    implied = {name: usual[place] for name, place in FOLLOWS.items()}
    asked = {name: given.get(follows) for name, follows in ASKED.items()}
    return _row({"label": "", **_DEFAULT_KINDS, **implied, **asked, **given})


def _earlier_compact_row(line: bytes) -> tuple[RequestRecord, str]:
    """Read a compact line of a schema up to 1.6: all instants are whole."""
    given = _given(line)
    chunk_ns = given.get("chunk_ns", ())
    implied = (
        dict.fromkeys(AT_FIRST_CHUNK, chunk_ns[0]) | {"last_content_ns": chunk_ns[-1]} if chunk_ns else {}
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
