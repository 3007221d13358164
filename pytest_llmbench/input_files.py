"""Reading of files that somebody hands us: only regular files are opened, they are read up to a size, nested
up to a depth.

A named pipe waits for ever, ``/dev/zero`` has no end, and a list in a hundred thousand lists ends the
interpreter's stack. Who reads a file that an author named reads it through here; a file that cannot be is an
``OSError`` with a reason in ``strerror``, and text that cannot be a ``ValueError``.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import tomllib
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
        found = os.fstat(descriptor)
        for holds, code, reason in _KINDS:
            if holds(found.st_mode):
                raise OSError(code, reason)
        if most is not None and found.st_size > most:
            raise _too_long(most)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a file. Raises OSError, also for one that is longer than ``most`` bytes."""
    with open_file(path, most) as file:
        return read_at_most(file, most)


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


def parse_json(raw: bytes | str) -> Any:
    """A JSON value. Raises ValueError for broken JSON, and for what the interpreter cannot nest."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise _too_deep() from None


def parse_json_object(raw: bytes | str) -> Any:
    """Parse JSON as :func:`parse_json` does, at most :data:`MOST_LEVELS` deep, so that it can be walked."""
    return _within_depth(parse_json(raw))


def _within_depth(value: Value) -> Value:
    level: list[Any] = [value]
    for _ in range(MOST_LEVELS + 1):
        level = [
            entry
            for each in level
            if isinstance(each, dict | list)
            for entry in (each.values() if isinstance(each, dict) else each)
            if isinstance(entry, dict | list)
        ]
        if not level:
            return value
    raise _too_deep()


def _too_deep() -> ValueError:
    return ValueError(f"lists or tables within each other, more than {MOST_LEVELS} deep")


def _too_long(most: int) -> OSError:
    return OSError(errno.EFBIG, f"it is longer than {_size(most)}, which is the most that is read")


def _size(count: int) -> str:
    return f"{count >> 30} GiB" if count >= 1 << 30 else f"{count >> 20} MiB"
