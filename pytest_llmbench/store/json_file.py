"""Files written whole or not at all, and JSON objects read back with their damage told."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_llmbench.errors import StoreError
from pytest_llmbench.input_files import parse_json_object, read_bytes

_SPACE = "check that its directory exists, is writable and has space left"


def write_text(path: Path, text: str, *, remedy: str = _SPACE) -> None:
    """Writes ``path`` atomically: a reader sees the old file or the whole new one. Makes parent directories.

    Raises StoreError with the path and the cause; the old file, if there is one, is left as it was.
    """
    with (
        whole_file(path, remedy=remedy) as temporary,
        temporary.open("w", encoding="utf-8", newline="\n") as file,
    ):
        file.write(text)


@contextlib.contextmanager
def whole_file(path: Path, *, remedy: str = _SPACE) -> Iterator[Path]:
    """Gives a path beside ``path`` to write to, which takes its place once the block has ended, and on disk.

    Where it does not end well nothing of it is left. An OSError in the block becomes a StoreError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise StoreError(
            f"cannot write the file: {error.strerror or error}", where=str(path), remedy=remedy
        ) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def remove_unfinished(directory: Path) -> None:
    """Removes what a killed :func:`whole_file` has left. Nobody else may be writing there."""
    for path in directory.glob(".*.tmp"):
        if re.fullmatch(r"\..+\.\d+\.tmp", path.name):
            with contextlib.suppress(OSError):
                path.unlink()


def read_object(path: Path, what: str, *, absent: str, damaged: str) -> dict[str, Any]:
    """The JSON object in ``path``, which holds ``what`` (``report``).

    Raises StoreError for a file that cannot be read or holds another thing, with the remedy ``absent``, and
    for one that is no whole JSON, with ``damaged``.
    """
    try:
        content = parse_json_object(read_bytes(path))
    except OSError as error:
        raise StoreError(
            f"cannot read the {what}: {error.strerror or error}", where=str(path), remedy=absent
        ) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, or nested too deep
        raise StoreError(
            f"not a whole JSON file, perhaps truncated: {error}", where=str(path), remedy=damaged
        ) from error
    if isinstance(content, dict):
        return content
    raise StoreError(
        f"no {what}: a JSON {type(content).__name__} where an object is expected",
        where=str(path),
        remedy=absent,
    )
