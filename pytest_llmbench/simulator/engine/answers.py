"""Answers of the embedded engine to questions and to requests for structured output, right or deliberately
wrong. Pure.

Served, the engine can do sums (:func:`sum_in`); in replay it knows the answer that is expected. A token is
one of cl100k_base. A reply has as many as the engine gives it: a text in it grows with them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, Final

from pytest_llmbench.model.reply_checks import (
    CUT,
    RIGHT,
    WRONG,
    Call,
    StructuredOutput,
    compact,
    parameters_of,
    schema_of,
)
from pytest_llmbench.tokens import reference_tokenizer

OPERATIONS: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
}
_SUM = re.compile(r"What is (-?\d{1,9}) ([-+*]) (-?\d{1,9})\?")
_LOOKED_AT = 200
"""Characters at the end of a prompt in which a sum is looked for, so that a long one costs nothing."""


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """The model's answer to a question, before it is known how many tokens it gets."""

    text: str
    right: bool

    @property
    def least_tokens(self) -> int:
        """The tokens that the whole answer takes; the model says no more."""
        return reference_tokenizer().count(self.text)

    def reply(self, tokens: int, *, limited: bool) -> StructuredReply:
        """The reply of ``tokens`` visible tokens: the answer, and white space behind it. ``limited``: it ends
        at its limit."""
        tokenizer = reference_tokenizer()
        ids: Sequence[int] = tokenizer.encode(self.text)
        pieces = [tokenizer.decode([token]) for token in ids[:tokens]]
        pieces += [" "] * (tokens - len(pieces))
        whole = len(ids) <= tokens
        check = CUT if limited and not whole else RIGHT if self.right else WRONG
        return StructuredReply("", tuple(pieces), whole, check)


def sum_in(texts: Sequence[str]) -> str | None:
    """The answer to the last sum that a prompt asks for; None: it asks for none."""
    found = _SUM.findall(texts[-1][-_LOOKED_AT:]) if texts else []
    if not found:
        return None
    left, sign, right = found[-1]
    return str(OPERATIONS[sign](int(left), int(right)))


def wrong_answer(answer: str, choice: int) -> str:
    """An answer that is not ``answer``, of its kind. ``choice``: from 1 to 9, which."""
    try:
        return str(int(answer) + choice)
    except ValueError:
        letters = "ABCDEFGHIJ"
        if answer in letters and len(answer) == 1:
            return letters[(letters.index(answer) + choice) % len(letters)]
        return "that is not known"


BREAKS: Final = ("missing_key", "wrong_type", "unknown_enum", "not_json", "unknown_tool")
"""Ways in which a reply is deliberately broken, drawn in turn as far as its schema has room for them."""
_TEXT = "the sea is wide and a small boat can cross it when wind is kind"
_WORDS = tuple(_TEXT.split())
_PLAIN: Mapping[str, Any] = {"integer": 7, "number": 1.5, "boolean": True, "null": None, "array": []}


@dataclass(frozen=True, slots=True)
class StructuredReply:
    """One reply: the text of each of its visible tokens, and what a reader will find in it."""

    tool: str
    """Name of the tool that is called; empty: the text is the answer."""
    pieces: tuple[str, ...]
    whole: bool
    """Whether the reply is complete: the model ended it, it was not cut short."""
    check: str
    """The result that :meth:`StructuredOutput.check` will give for this reply."""

    def finish_reason(self, reason: str) -> str:
        """The finish reason of the reply: of a whole one it is the model's own, even at the limit."""
        if not self.whole or reason not in ("length", "stop"):
            return reason
        return "tool_calls" if self.tool else "stop"


@dataclass(frozen=True, slots=True)
class StructuredAnswer:
    """The model's answer to a request, before it is known how many tokens it gets."""

    asked: StructuredOutput
    number: int
    """Number of the request among those for structured output; it picks tool and values."""
    broken: str = ""
    """How the answer is broken, one of :func:`breaks_of`; empty: it is valid."""

    @property
    def least_tokens(self) -> int:
        """The fewest tokens that the whole answer takes."""
        return reference_tokenizer().count(self._text(0))

    def reply(self, tokens: int, *, limited: bool) -> StructuredReply:
        """The reply of ``tokens`` visible tokens. ``limited``: it ends at its limit."""
        tokenizer = reference_tokenizer()
        ids: Sequence[int] = tokenizer.encode(self._text(0))
        whole = len(ids) <= tokens
        if len(ids) < tokens:
            ids = tokenizer.encode(self._text(tokens - len(ids)))
            if len(ids) > tokens:
                ids = tokenizer.encode(self._text(0))
        pieces = tokenizer.decode_each([[token] for token in ids[:tokens]])
        pieces += [" "] * (tokens - len(pieces))  # behind JSON, white space means nothing
        text, tool = "".join(pieces), ""
        if self.asked.calls:
            names = list(parameters_of(self.asked.tools))
            tool = names[self.number % len(names)] + ("_" if self.broken == "unknown_tool" else "")
        calls = [Call(tool, text)] if tool else []
        check = self.asked.check("" if tool else text, calls, cut=limited and not whole)
        return StructuredReply(tool, tuple(pieces), whole, check)

    def _text(self, more_words: int) -> str:
        """The whole answer, the first of its texts longer by ``more_words``."""
        schema = _schema(self.asked, self.number)
        words = iter([1 + more_words])
        value = _value(schema, self.number, lambda: " ".join(islice(cycle(_WORDS), next(words, 1))))
        if self.broken in ("missing_key", "wrong_type", "unknown_enum"):
            value = _broken(value, schema, self.broken)
        text = compact(value)
        return text[:-1] if self.broken == "not_json" else text


def breaks_of(asked: StructuredOutput, number: int) -> list[str]:
    """The ways of :data:`BREAKS` that the schema of this answer has room for."""
    schema = _schema(asked, number)
    required = schema.get("required", ())
    enums = [key for key in required if "enum" in schema["properties"].get(key, {})]
    possible = {
        "missing_key": bool(required),
        "wrong_type": bool(required),
        "unknown_enum": any(schema["properties"][key]["type"] == "string" for key in enums),
        "not_json": schema["type"] in ("object", "array"),
        "unknown_tool": asked.calls,
    }
    return [name for name in BREAKS if possible[name]]


def _schema(asked: StructuredOutput, number: int) -> Mapping[str, Any]:
    if not asked.calls:
        return schema_of(asked.schema)
    every = list(parameters_of(asked.tools).values())
    return every[number % len(every)]


def _value(schema: Mapping[str, Any], number: int, text: Callable[[], str]) -> Any:
    """A value that conforms to the schema: required keys alone, or all where none is required. ``text``:
    makes its texts."""
    if schema.get("enum"):
        return schema["enum"][number % len(schema["enum"])]
    kind = schema["type"]
    if kind == "string":
        return text()
    if kind != "object":
        return _PLAIN[kind]
    properties = schema.get("properties", {})
    keys = schema.get("required") or list(properties)
    return {key: _value(properties.get(key, {"type": "string"}), number, text) for key in keys}


def _broken(value: dict[str, Any], schema: Mapping[str, Any], how: str) -> dict[str, Any]:
    """The value with one thing made wrong. Keys keep their order, so texts stay where they are."""
    last = schema["required"][-1]
    if how == "missing_key":
        return {key: each for key, each in value.items() if key != last}
    if how == "wrong_type":
        other = "many" if schema["properties"].get(last, {}).get("type") == "integer" else {}
        return value | {last: [] if isinstance(value[last], dict) else other}
    key = next(each for each in schema["required"] if "enum" in schema["properties"].get(each, {}))
    return value | {key: "".join(map(str, schema["properties"][key]["enum"])) + "?"}
