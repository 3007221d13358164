"""Reads the table ``json_messages`` of a SUT file as the dialect that it describes, with all its mistakes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from pytest_llmbench.wire.websocket.json_messages import (
    PLACEHOLDERS,
    PLACES,
    JsonMessages,
    Path,
    Place,
    Scalar,
    placeholders_in,
)

TABLE = "json_messages"
_PATH = re.compile(r"[^\s.]+(?:\.[^\s.]+)*")
_WITHOUT_PLACE = ("end", "error")
"""Keys whose table may have conditions without a place."""
_PROMPTS = ("prompt", "messages")


def read_description(table: Mapping[str, Any], mistakes: list[str]) -> JsonMessages | None:
    """The dialect of the table; mistakes are added to ``mistakes``, each with its key. None if there are
    any.

    Values of other types than the keys have are passed over: the schema of the file tells those.
    """
    before = len(mistakes)
    request = _request(table, mistakes)
    places = {name: place for name in PLACES if (place := _place(name, table, mistakes)) is not None}
    if table.get("text") is None:
        mistakes.append(f"{TABLE}.text is missing: where in a message is what it adds to the reply?")
    if table.get("accumulates") is True and "reasoning" in places:
        mistakes.append(f"{TABLE}.accumulates is of text alone: leave out {TABLE}.reasoning, or both")
    if "reasoning" in places and places["reasoning"] == places.get("text"):
        mistakes.append(f"{TABLE}.reasoning and {TABLE}.text are the same place: tell them apart by when")
    if len(mistakes) > before or request is None or "text" not in places:
        return None
    return JsonMessages(
        request, path=str(table.get("path") or ""), accumulates=table.get("accumulates") is True, **places
    )


def _request(table: Mapping[str, Any], mistakes: list[str]) -> str | None:
    """The message for a request, as compact JSON."""
    key, given = f"{TABLE}.request", table.get("request")
    if given is None:
        mistakes.append(f'{key} is missing: the message that asks for a reply, with "{{prompt}}" in it')
        return None
    try:
        message = json.loads(given) if isinstance(given, str) else given
        written = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        written.encode()
    except (ValueError, TypeError, RecursionError) as error:
        mistakes.append(f"{key} is no JSON: {error}")
        return None
    if not isinstance(message, dict | list):
        mistakes.append(f"{key} is neither an object nor a list")
    named = _named(message)
    unknown = [name for name in dict.fromkeys(named) if name not in PLACEHOLDERS]
    mistakes += [f"{key} has {{{name}}}, {_suggestion(name, PLACEHOLDERS)}" for name in unknown]
    prompts = [name for name in named if name in _PROMPTS]
    if not prompts:
        mistakes.append(
            f'{key} does not hold the prompt: put "{{prompt}}" or "{{messages}}" where it belongs'
        )
    elif len(prompts) > 1:
        mistakes.append(f"{key} holds the prompt {len(prompts)} times: put it in once")
    if in_keys := [name for key_ in _keys(message) for name in placeholders_in(key_)]:
        mistakes.append(f"{key} has {{{in_keys[0]}}} in a key: placeholders stand in values")
    return written


def _named(value: Any) -> list[str]:
    """The names in braces in all texts of ``value``, each as often as it occurs."""
    if isinstance(value, dict):
        return [name for each in value.values() for name in _named(each)]
    if isinstance(value, list):
        return [name for each in value for name in _named(each)]
    return re.findall(r"\{(\w+)\}", value, re.ASCII) if isinstance(value, str) else []


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*map(str, value), *(key for each in value.values() for key in _keys(each))]
    return [key for each in value for key in _keys(each)] if isinstance(value, list) else []


def _place(name: str, table: Mapping[str, Any], mistakes: list[str]) -> Place | None:
    """The place in a key: given as text, or as a table of ``at`` and ``when``. None where there is none."""
    key, given = f"{TABLE}.{name}", table.get(name)
    if isinstance(given, str):
        return Place(_path(key, given, mistakes))
    if not isinstance(given, dict):
        return None
    for other in (other for other in given if other not in ("at", "when")):
        mistakes.append(f"{key}.{other}: unknown key, {_suggestion(other, ('at', 'when'))}")
    at, when = given.get("at"), given.get("when", {})
    if at is not None and not isinstance(at, str):
        mistakes.append(f"{key}.at is {at!r}: give a path in quotes, such as delta.text")
    elif at is None and (name not in _WITHOUT_PLACE or not when):
        mistakes.append(f"{key}.at is missing: the path of the place")
    path = _path(f"{key}.at", at, mistakes) if isinstance(at, str) else ()
    if not isinstance(when, dict):
        mistakes.append(f"{key}.when is {when!r}: give a table of paths and their values")
        return Place(path)
    conditions = [_condition(f"{key}.when", other, values, mistakes) for other, values in _flat(when)]
    return Place(path, tuple(conditions))


def _flat(when: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Paths with their values. TOML makes tables of a dotted path, unless it is in quotes."""
    for name, value in when.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _condition(key: str, at: str, given: Any, mistakes: list[str]) -> tuple[Path, tuple[Scalar, ...]]:
    values = given if isinstance(given, list) else [given]
    if not values or not all(isinstance(value, Scalar) for value in values):
        mistakes.append(
            f"{key}.{at} is {given!r}: give a value (text, a number, true, false), or a list of them"
        )
        return (), ()
    return _path(key, at, mistakes), tuple(values)


def _path(key: str, written: str, mistakes: list[str]) -> Path:
    if written.startswith(("field:", "header:")):
        mistakes.append(f"{key} is {written!r}: write the path alone, without {written.partition(':')[0]}:")
    elif not _PATH.fullmatch(written):
        mistakes.append(
            f"{key} is {written!r}: write keys and numbers with dots between, such as choices.0.text"
        )
    return tuple(written.split("."))


def _suggestion(seen: str, known: tuple[str, ...]) -> str:
    close = get_close_matches(seen, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
