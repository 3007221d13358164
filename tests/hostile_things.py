"""What may lie where an author names a file."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEEP = 100_000
_MIB = 1 << 20


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _of(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 43)


THINGS: dict[str, Callable[[Path], object]] = {
    "a directory": lambda path: path.mkdir(),
    "a pipe": _fifo,
    "a device without end": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "8 TiB": _sparse,
    "nothing": _of(b""),
    "NUL bytes": _of(b"\0" * 4096),
    "no UTF-8": _of(b"\xff\xfe" + "a = 1".encode("utf-16-le")),
    "random": _of(bytes(range(256)) * 16),
    "deep TOML": _of(b"a = " + b"[" * DEEP + b"]" * DEEP),
    "deep tables": _of(b"a = " + b"{a=" * 5000 + b"1" + b"}" * 5000),
    "deep keys": _of(b".".join([b"a"] * 3000) + b" = 1"),
    "deep JSON": _of(b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    "deep list": _of(b"[" * DEEP + b"]" * DEEP),
    "fairly deep": _of(b'{"a":' * 300 + b"1" + b"}" * 300),
    "no number": _of(b'{"timestamp": 1e400, "input_length": 1, "output_length": 1}'),
    "a long number": _of(b'{"timestamp": 1' + b"0" * 5000 + b', "input_length": 1, "output_length": 1}'),
    "a long line": _of(b'{"a": "' + b"x" * (2 * _MIB) + b'"}'),
    "JSON of another kind": _of(b"[1, 2, null]"),
}


@contextmanager
def within(seconds: int, mebibytes: int) -> Iterator[None]:
    """No hang, and no memory to speak of."""

    def late(*_: object) -> None:
        raise TimeoutError(f"took longer than {seconds} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    previous = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < mebibytes * 1024
