"""Reading of files that somebody hands us: only regular files are opened, they are read up to a size, nested
up to a depth.

A named pipe waits for ever, ``/dev/zero`` has no end, and a list in a hundred thousand lists ends the
interpreter's stack. Who reads a file that an author named reads it through here; a file that cannot be is an
``OSError`` with a reason in ``strerror``, and text that cannot be a ``ValueError``.
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import re
import stat
import tomllib
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Protocol, TypeVar

MOST_BYTES: Final = 1 << 30
"""The most bytes of a data set, a report, a baseline. They are read whole, and what is made of them takes
more."""
SMALL_BYTES: Final = 4 << 20
"""The most bytes of what people write by hand: a SUT file, workloads, a key, certificates."""
LONGEST_LINE: Final = 64 << 20
"""The longest line of a file of records. A request with a million chunks takes a third of it."""
MOST_LEVELS: Final = 64
"""The most levels of tables within tables. Our own files have about ten."""

_KINDS: Final = (
    (stat.S_ISDIR, errno.EISDIR, "it is a directory"),
    (stat.S_ISFIFO, errno.EINVAL, "it is a pipe, and files are read more than once: give a file"),
    (stat.S_ISCHR, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISBLK, errno.EINVAL, "it is a device, not a file"),
    (stat.S_ISSOCK, errno.EINVAL, "it is a socket, not a file"),
)


_WHITE = re.compile(r"\s*")
_PACKED_BYTES, _PACKED_TIMES = 16 << 20, 100
"""A packed file may hold so many bytes, or so many times its own size: text is packed to a tenth, JSON of
repeated rows to a fiftieth, and what is made of JSON takes up to thirty times its bytes."""

Value = TypeVar("Value")


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def open_file(path: Path, most: int | None = None) -> BinaryIO:
    """Open a regular file for reading, without waiting. Raises OSError for anything else, and for a file
    whose stated size is more than ``most`` bytes."""
    try:
        # Opening a pipe waits for its other end, unless it is told not to.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a path with a NUL byte, or with characters that no file name can have
        raise OSError(errno.EINVAL, f"it is no path of a file: {error}") from error
    try:
        refuse_no_file(descriptor)
        if most is not None and os.fstat(descriptor).st_size > most:
            raise _too_long(most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def refuse_no_file(descriptor: int) -> None:
    """Raise OSError for a descriptor of anything but a regular file."""
    mode = os.fstat(descriptor).st_mode
    for holds, code, reason in _KINDS:
        if holds(mode):
            raise OSError(code, reason)


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file. Raises OSError, also for one that is longer than ``most`` bytes."""
    with open_file(path, most) as file:
        return read_at_most(file, most)


def read_unpacked(path: Path) -> bytes:
    """All of a file, unpacked if its name ends in ``.gz``. Raises OSError, also for one that is too long, and
    ValueError for a packed one that is damaged."""
    with open_file(path, MOST_BYTES) as file:
        if not path.name.lower().endswith(".gz"):
            return read_at_most(file, MOST_BYTES)
        # Piece by piece: a thousand packed zeros are a million, and nobody says so beforehand.
        most = min(MOST_BYTES, max(_PACKED_BYTES, _PACKED_TIMES * os.fstat(file.fileno()).st_size))
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return read_at_most(unpacked, most)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ValueError(f"it cannot be decompressed: {error}") from error


def lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of an open file. Raises OSError for one longer than :data:`LONGEST_LINE` bytes."""
    while line := file.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise OSError(errno.EFBIG, f"a line of it is longer than {_size(LONGEST_LINE)}")
        yield line


def read_at_most(file: Readable, most: int) -> bytes:
    """The rest of an open file. Raises OSError if that is more than ``most`` bytes.

    Files under ``/proc`` state no size, and a packed one that of what is packed.
    """
    pieces, left = [], most
    while piece := file.read(min(left + 1, 1 << 20)):
        pieces.append(piece)
        left -= len(piece)
        if left < 0:
            raise _too_long(most)
    return b"".join(pieces)


def parse_toml(raw: bytes) -> dict[str, Any]:
    """The tables of a TOML file. Raises UnicodeDecodeError for text that is not UTF-8, ValueError for broken
    TOML and for tables more than :data:`MOST_LEVELS` deep."""
    text = raw.decode("utf-8-sig")  # editors on Windows begin a file with a mark
    try:
        return _within_depth(tomllib.loads(text))
    except RecursionError:
        raise _too_deep() from None


def parse_yaml(raw: bytes) -> Any:
    """The plain values of a YAML document. Raises ValueError for broken YAML and for values more than
    :data:`MOST_LEVELS` deep."""
    import yaml  # few files are YAML

    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in Python takes seconds for a MiB
        return _within_depth(yaml.load(raw, loader))
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    except RecursionError:
        raise _too_deep() from None


def parse_json(raw: bytes | str) -> Any:
    """A JSON value that can be walked. Raises ValueError for broken JSON, for one more than
    :data:`MOST_LEVELS` deep, and for a whole number of more digits than the interpreter reads."""
    try:
        value = json.loads(raw)
    except RecursionError:
        raise _too_deep() from None
    opened = raw.count(b"[") + raw.count(b"{") if isinstance(raw, bytes) else raw.count("[") + raw.count("{")
    return value if opened <= MOST_LEVELS else _within_depth(value)  # a line of records has a few


def parse_json_values(text: str) -> Iterator[Any]:
    """The JSON values of a text in which several may stand one after another. Raises as :func:`parse_json`
    does."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _WHITE.match(text, at).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing too
        try:
            value, at = decoder.raw_decode(text, at)
        except RecursionError:
            raise _too_deep() from None
        yield _within_depth(value)


def _within_depth(value: Value) -> Value:
    level: dict[int, Any] = {0: value}  # by identity: an alias of YAML is looked at once a level
    for _ in range(MOST_LEVELS + 1):
        level = {
            id(entry): entry
            for each in level.values()
            if isinstance(each, dict | list)
            for entry in (each.values() if isinstance(each, dict) else each)
            if isinstance(entry, dict | list)
        }
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"lists or tables within each other, more than {MOST_LEVELS} deep")


def _too_long(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is longer than {_size(most)}, which is the most that is read")


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"
