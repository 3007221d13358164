"""Images, sounds and videos of the rows of a data set: files beside it, ``data:`` URLs, and OpenAI's parts.

A row names its pieces in columns (ShareGPT4V's ``image``, MMMU's ``image_1`` …), or in the content of its
first message of a user, as the parts ``image_url``, ``input_audio`` and ``video_url`` of the chat API.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.errors import shown
from pytest_llmbench.model.messages import DATA, SUFFIXES, Modality, Piece
from pytest_llmbench.store.datasets import PROMPT_FIELDS, Told

Columns = Mapping[Modality, Sequence[str]]
"""Modality → the columns that name its pieces."""

_PARTS: Mapping[str, tuple[Modality, str]] = {
    "image_url": ("image", "url"),
    "input_audio": ("audio", "data"),
    "video_url": ("video", "url"),
}
_BEGINNINGS: Mapping[Modality, tuple[bytes, ...]] = {
    "image": (rb"\x89PNG\r\n\x1a\n", rb"\xff\xd8\xff", rb"GIF8", rb"RIFF....WEBP"),
    "audio": (rb"RIFF....WAVE", rb"ID3", rb"\xff[\xe0-\xff]", rb"fLaC", rb"OggS"),
    "video": (rb"....ftyp", rb"....moov", rb"\x1a\x45\xdf\xa3"),
}
"""Modality → what files of its formats begin with."""
_Part = tuple[Modality | None, str, Any]
"""The modality of a part of a message, its kind, and what it holds; None: it is of another kind."""
_UNKNOWN = f"it cannot be sent; known types are text, {', '.join(_PARTS)}"
_HEAD_BYTES = 16
_OTHER_NAMES = {"jpg": "jpeg", "mpeg": "mp3", "x-wav": "wav", "wave": "wav", "mov": "quicktime"}
_PLACES = re.compile(r"<(?:image|audio|video)(?: \d{1,3})?>\n?")
"""What stands in a prompt where a data set's own template puts a piece; the API has parts instead."""
_FIRST_TURN = "first message of the user as prompt, length of the answer to it as output limit"
_TAKEN_OUT = "places of images, sounds and videos taken out of the prompts"


class MediaRows(NamedTuple):
    """Rows with a prompt, and what goes with it."""

    rows: list[Mapping[str, Any]]
    pieces: list[tuple[Piece, ...]]
    """The pieces of each row."""
    steps: tuple[str, ...]
    """What was done to the rows, for the report."""
    mistakes: list[Told]
    """What is wrong with the pieces."""


def rows_with_media(
    rows: Iterable[Mapping[str, Any]], path: Path, columns: Columns, prompt_field: str = ""
) -> MediaRows:
    """The rows and the pieces of each; messages of rows without a prompt became ``prompt`` and ``answer``.

    A piece is a path relative to the file, or a ``data:`` URL. A mistake is a row that has none in any of the
    columns asked for, or one that is missing or of no known format.
    """
    plain: list[Mapping[str, Any]] = []
    pieces: list[tuple[Piece, ...]] = []
    mistakes: list[Told] = []
    steps: dict[str, None] = {}
    prompts = (prompt_field,) if prompt_field else PROMPT_FIELDS
    for number, row in enumerate(rows):
        found: list[Piece] = []
        key = next((name for name in prompts if isinstance(row.get(name), str)), "")
        told, parts = (row, []) if key else _without_messages(row, prompts[0])
        steps |= {_FIRST_TURN: None} if told is not row else {}
        named: list[_Part] = [
            (modality, column, value)
            for modality, names in columns.items()
            for column in names
            for value in _several(row.get(column))
        ]
        if any(columns.values()) and not named:
            asked = ", ".join(column for names in columns.values() for column in names)
            mistakes.append((number, f"row {number} has nothing under {asked}"))
        for modality, place, value in (*named, *parts):
            piece = _UNKNOWN if modality is None else _piece(modality, value, path.parent)
            if isinstance(piece, str):
                mistakes.append((number, f"row {number}, {place}: {piece}"))
            else:
                found.append(piece)
        key = key or prompts[0]
        prompt = told.get(key)
        if found and isinstance(prompt, str):
            bare = _PLACES.sub("", prompt).strip()
            steps |= {_TAKEN_OUT: None} if bare != prompt.strip() else {}
            told = {**told, key: bare}
        plain.append(told)
        pieces.append(tuple(found))
    return MediaRows(plain, pieces, tuple(steps), mistakes)


def _several(value: Any) -> list[Any]:
    if value in (None, "", []):
        return []
    return value if isinstance(value, list) else [value]


def _without_messages(row: Mapping[str, Any], prompt_field: str) -> tuple[Mapping[str, Any], list[_Part]]:
    """The row with the first message of a user as its prompt and the answer to it, and the parts of that
    message that are no text."""
    turns = row.get("messages") or row.get("conversations")
    if not isinstance(turns, list):
        return row, []
    said: dict[str, str] = {}
    parts: list[_Part] = []
    for turn in turns:
        if not isinstance(turn, Mapping):
            continue
        speaker, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        key = "prompt" if speaker in ("user", "human") else "answer"
        if key in said or (key == "answer" and "prompt" not in said):
            continue
        if isinstance(content, list):
            texts = [part.get("text") for part in content if isinstance(part, Mapping)]
            if key == "prompt":
                parts = list(_parts(content))
            content = "\n".join(text for text in texts if isinstance(text, str))
        if isinstance(content, str):
            said[key] = content
        if key == "answer":
            break
    answer = {"answer": said["answer"]} if "answer" in said else {}
    return {**answer, **row, prompt_field: said.get("prompt", "")}, parts


def _parts(content: Sequence[Any]) -> Iterator[_Part]:
    for part in content:
        kind = str(part.get("type")) if isinstance(part, Mapping) else ""
        if kind in ("", "text"):
            continue
        if kind not in _PARTS:
            yield None, f"a part of type {shown(kind)}", None
            continue
        modality, member = _PARTS[kind]
        own = part.get(kind)
        value = own.get(member) if isinstance(own, Mapping) else own
        if kind == "input_audio" and isinstance(value, str) and isinstance(own, Mapping):
            value = f"{DATA}audio/{own.get('format', 'wav')};base64,{value}"
        yield modality, kind, value


def _piece(modality: Modality, value: Any, folder: Path) -> Piece | str:
    """The piece, or what is wrong with it."""
    if not isinstance(value, str):
        return f"{shown(value)} is not a text: give a path or a data: URL"
    if value.startswith(DATA):
        return _of_url(modality, value)
    if re.match(r"[a-z][a-z0-9+.-]*://", value) and not value.startswith("file://"):
        return f"{shown(value)} is not fetched: save the file and give its path"
    file = folder / Path(value.removeprefix("file://")).expanduser()
    if file.suffix.lower() not in SUFFIXES[modality]:
        return f"{shown(str(file))} must end with one of {', '.join(SUFFIXES[modality])}"
    try:
        if not file.is_file():
            return f"there is no file {shown(str(file))}"
        with file.open("rb") as opened:
            head = opened.read(_HEAD_BYTES)
    except (OSError, ValueError) as error:
        return f"{shown(str(file))} cannot be read: {error}"
    return (
        Piece(modality, path=str(file))
        if _is_of(modality, head)
        else f"{shown(str(file))} is not {modality} data"
    )


def _of_url(modality: Modality, url: str) -> Piece | str:
    head, comma, text = url.partition(",")
    kind, _, encoding = head.removeprefix(DATA).partition(";")
    of, _, name = kind.partition("/")
    name = _OTHER_NAMES.get(name, name)
    if not comma or of != modality or encoding != "base64" or name not in SUFFIXES[modality].values():
        known = ", ".join(dict.fromkeys(SUFFIXES[modality].values()))
        return f"{shown(head)}: give data:{modality}/FORMAT;base64,…, FORMAT one of {known}"
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        return f"{shown(head)} is not base64: {error}"
    if not _is_of(modality, data[:_HEAD_BYTES]):
        return f"{shown(head)} is not {modality} data"
    return Piece(modality, path=f"{DATA}{modality}/{name};base64,{text}")


def _is_of(modality: Modality, head: bytes) -> bool:
    return any(re.match(beginning, head, re.DOTALL) for beginning in _BEGINNINGS[modality])
