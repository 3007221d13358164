"""What a request asks of its reply, and whether the reply has it: a structure, or the answer to a question.

Structured output: schemas are JSON Schema, of which a small part is known (:data:`KEYWORDS`). A schema with
anything else is refused, so no reply passes for want of a check.

Questions with a known answer: a reply is scored where it is read, so that no report has to keep the texts of
replies. What a scorer took for the answer is kept in short (:data:`SHOWN_CHARS`), since a wrong scorer looks
like a wrong model.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_llmbench.errors import SuiteError, shown

VALID: Final = "valid"
VIOLATIONS: Final = (
    "cut_by_limit",
    "no_call",
    "unknown_tool",
    "not_json",
    "missing_key",
    "unknown_key",
    "wrong_type",
    "unknown_enum",
)
"""The reasons by which a reply is invalid. The first that applies counts, in this order; among the last four,
that which comes first in the reply."""
KEYWORDS: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "description", "title"}
)
"""The keywords that a schema may have: the part that servers enforce alike."""
TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_REMEMBERED = 256
"""How many sets of tools are remembered, as requests share them."""


class Call(NamedTuple):
    """A tool call as it was received; its arguments are text."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The structure that a request asks of its reply. Make it by :meth:`of`, which checks it."""

    tools: str = ""
    """The tools as compact JSON, in the shape of OpenAI's chat API; the prompt begins with this very text,
    which a dialect that has tools sends as such. Empty: none."""
    schema: str = ""
    """The schema of the answer, as compact JSON. Empty: the answer is a call of one of the tools."""

    @classmethod
    def of(
        cls, tools: Sequence[Mapping[str, Any]] = (), schema: Mapping[str, Any] | None = None
    ) -> StructuredOutput:
        """``tools``: ``{"type": "function", "function": {"name", "description", "parameters"}}`` each.

        Raises SuiteError with every mistake: neither tools nor schema, names that are missing or not unique,
        a schema with unknown keywords.
        """
        mistakes = [] if tools or schema is not None else ["neither tools nor a schema are given"]
        names = [_name_of(tool) for tool in tools]
        mistakes += [f"tool {at} has no function with a name" for at, name in enumerate(names) if not name]
        mistakes += [f"two tools are called {name!r}" for name in sorted(set(names)) if names.count(name) > 1]
        for name, tool in zip(names, tools, strict=True):
            if name:
                mistakes += schema_mistakes(tool["function"].get("parameters"), f"{name}.parameters")
        mistakes += [] if schema is None else schema_mistakes(schema, "schema")
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where="structured output")
        return cls(compact(list(tools)) if tools else "", "" if schema is None else compact(schema))

    @property
    def calls(self) -> bool:
        """Whether the answer must be a tool call."""
        return not self.schema

    def check(self, text: str, calls: Sequence[Call], *, cut: bool) -> str:
        """Check a reply: :data:`VALID`, or the first of :data:`VIOLATIONS` that applies.

        ``text``: its visible text without its calls. ``cut``: whether it ended at its limit. Such a reply may
        be complete; if it is not, the limit is the reason.
        """
        found = self._calls_check(calls) if self.calls else _json_check(text, schema_of(self.schema))
        return "cut_by_limit" if cut and found != VALID else found

    def _calls_check(self, calls: Sequence[Call]) -> str:
        if not calls:
            return "no_call"
        schemas = parameters_of(self.tools)
        for call in calls:
            if call.name not in schemas:
                return "unknown_tool"
            found = _json_check(call.arguments, schemas[call.name])
            if found != VALID:
                return found
        return VALID


@lru_cache(_REMEMBERED)
def tools_of(text: str) -> tuple[Mapping[str, Any], ...]:
    """The tools in :attr:`StructuredOutput.tools`. Not to be changed."""
    return tuple(json.loads(text)) if text else ()


@lru_cache(_REMEMBERED)
def parameters_of(text: str) -> Mapping[str, Mapping[str, Any]]:
    """Name of each tool → the schema of its arguments."""
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools_of(text)}


def schema_of(text: str) -> Mapping[str, Any]:
    """The schema in :attr:`StructuredOutput.schema`; a new object each time, since extra fields are merged
    into bodies."""
    found: Mapping[str, Any] = json.loads(text)
    return found


def is_strict(schema: Mapping[str, Any]) -> bool:
    """Whether OpenAI's strict mode accepts the schema: every object has all its properties and no others."""
    properties = schema.get("properties", {})
    closed = schema["type"] != "object" or schema.get("additionalProperties") is False
    inner = [*properties.values(), *([schema["items"]] if "items" in schema else [])]
    return closed and properties.keys() <= {*schema.get("required", ())} and all(map(is_strict, inner))


def compact(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def schema_mistakes(schema: Any, where: str) -> list[str]:
    """Mistakes in a schema, by which no reply could be checked."""
    if not isinstance(schema, Mapping):
        return [f"{where} is {shown(schema)}: give a schema"]
    mistakes = [
        f"{where} has the keyword {shown(key)}; known are {', '.join(sorted(KEYWORDS))}"
        for key in schema
        if key not in KEYWORDS
    ]
    if not isinstance(schema.get("type"), str) or schema["type"] not in TYPES:
        mistakes.append(f"{where}.type is {shown(schema.get('type'))}: give one of {', '.join(TYPES)}")
    if not isinstance(schema.get("additionalProperties", True), bool):
        mistakes.append(f"{where}.additionalProperties must be true or false")
    if not isinstance(schema.get("enum", []), list):
        mistakes.append(f"{where}.enum must be a list")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    names = isinstance(required, list) and all(isinstance(name, str) for name in required)
    if not isinstance(properties, Mapping) or not names:
        return [*mistakes, f"{where}.properties must be an object, and {where}.required a list of names"]
    for name, each in properties.items():
        mistakes += schema_mistakes(each, f"{where}.{name}")
    return mistakes + (schema_mistakes(schema["items"], f"{where}[]") if "items" in schema else [])


def _name_of(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) else ""


def _json_check(text: str, schema: Mapping[str, Any]) -> str:
    try:
        value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return "not_json"
    return next(_broken(value, schema), VALID)


def _no_constant(name: str) -> Any:
    """Raise for NaN and infinities, which are Python's, not JSON's."""
    raise ValueError(name)


def _broken(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """The reasons by which a value breaks its schema, from the outside in."""
    if not _has_type(value, schema["type"]):
        yield "wrong_type"
        return
    if "enum" in schema and not any(value == one and type(value) is type(one) for one in schema["enum"]):
        yield "unknown_enum"
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if any(key not in value for key in schema.get("required", ())):
            yield "missing_key"
        if not schema.get("additionalProperties", True) and not value.keys() <= properties.keys():
            yield "unknown_key"
        for key, each in properties.items():
            if key in value:
                yield from _broken(value[key], each)
    elif isinstance(value, list) and "items" in schema:
        for each in value:
            yield from _broken(each, schema["items"])


def _has_type(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if not isinstance(value, TYPES[name]):
        return False
    whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return name != "integer" or whole  # 2.0 is an integer to JSON Schema


RIGHT: Final = "right"
WRONG: Final = "wrong"
NO_ANSWER: Final = "no_answer"
"""The scorer found no answer in the reply."""
CUT: Final = "cut_by_limit"
"""The reply ended at its limit, and is not right as far as it goes."""
SCORER_FAILED: Final = "scorer_failed"
"""The author's scorer raised, or gave no truth value."""
UNANSWERED: Final = "unanswered"
"""The request failed, or its reply had no text."""
CHECKS: Final = (RIGHT, WRONG, NO_ANSWER, CUT, UNANSWERED, SCORER_FAILED)
SHOWN_CHARS: Final = 200
"""Most characters of a wrong answer that a record keeps."""
LETTERS: Final = "ABCDEFGHIJ"
"""The letters of choices."""

FINGERPRINT: Final = "fingerprint"
"""The scorer of requests without a known answer whose replies are compared with one another. Not for
authors."""
SAID: Final = "said"
"""What it gives instead of one of :data:`CHECKS`: :func:`fingerprint` behind a colon."""
_PREFIXES: Final = (1, 8)
"""Words of the beginnings that a fingerprint tells apart."""

_NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?|[-+]?\.\d+")
_STATED = re.compile(r"\b(?i:answer)(?:\s+(?i:is))?[\s:*(\[]*([A-J])(?![A-Za-z0-9'])")
_ALONE = re.compile(r"(?<![A-Za-z0-9])([A-J])(?![A-Za-z0-9'])")


@dataclass(frozen=True, slots=True)
class ExpectedAnswer:
    """The answer that a reply should give. Make it by :meth:`of`, which checks it.

    ``scorer``: ``exact`` (the reply without the white space around it), ``number`` (the last number in the
    reply, as for GSM8K), ``choice`` (the letter from A to J after the last "answer is" or "Answer:", else
    the last that stands alone, as for MMLU), ``contains`` (the answer stands in the reply),
    ``regex:PATTERN`` (the first group of the last match, or the whole match), ``python:MODULE:FUNCTION``
    (called with reply and answer; gives a truth value).
    """

    answer: str
    scorer: str = "exact"
    row: str = ""
    """Where its file has the question, in words; empty where it is of no file."""

    @classmethod
    def of(cls, answer: str, scorer: str = "exact", row: str = "") -> ExpectedAnswer:
        """Raises SuiteError for an unknown scorer, and for an answer that no reply could give by it."""
        if mistakes := scorer_mistakes(scorer) or _answer_mistakes(answer, scorer):
            raise SuiteError.from_mistakes(mistakes, where="expected answer")
        return cls(answer, scorer, row)

    def check(self, reply: str, *, cut: bool) -> str:
        """One of :data:`CHECKS`; after a colon, of one that is not right, what was taken for the answer.

        ``cut``: the reply ended at its limit.
        """
        if self.scorer == FINGERPRINT:
            return f"{SAID}: {fingerprint(reply)}"
        try:
            said, right = _scorer(self.scorer)(reply, self.answer)
        except Exception as error:  # noqa: BLE001 - an author's function may raise anything
            where = f"{self.row}: " if self.row else ""
            return _told(SCORER_FAILED, f"{where}{type(error).__name__}: {error}")
        if right:
            return RIGHT
        if cut:
            return CUT
        return NO_ANSWER if said is None else _told(WRONG, said)


def check_of(told: str) -> str:
    """Which of :data:`CHECKS` a record tells."""
    return told.partition(":")[0]


def fingerprint(reply: str) -> str:
    """The number of characters, and digests of its first word, its first eight and the whole: what tells
    whether two replies are alike, and where the text itself is not kept."""
    words = reply.split()
    parts = [*(" ".join(words[:count]) for count in _PREFIXES), reply]
    return " ".join([str(len(reply)), *(f"{zlib.crc32(part.encode()):08x}" for part in parts)])


def scorer_mistakes(scorer: str) -> list[str]:
    """What is wrong with the name of a scorer, in words; empty: nothing."""
    kind, _, rest = scorer.partition(":")
    if scorer in SCORERS:
        return []
    if kind == "regex" and rest:
        try:
            re.compile(rest)
        except re.error as error:
            return [f"scorer {shown(scorer)} is no regular expression: {error}"]
        return []
    if kind == "python" and rest.count(":") == 1 and all(rest.split(":")):
        return []
    forms = f"{', '.join(SCORERS)}, regex:PATTERN or python:MODULE:FUNCTION"
    return [f"scorer is {shown(scorer)}; it must be {forms}"]


def _answer_mistakes(answer: str, scorer: str) -> list[str]:
    if scorer.startswith(("python:", "regex:")):
        return []
    if not answer.strip():
        return ["the answer is empty"]
    if scorer == "number" and _last_number(answer) is None:
        return [f"the answer {shown(answer)} holds no number, for scorer number"]
    if scorer == "choice" and not re.fullmatch(r"\(?[A-J]\)?", answer.strip()):
        return [f"the answer {shown(answer)} is no letter from A to J, for scorer choice"]
    return []


_Scored = tuple[str | None, bool]
_Scorer = Callable[[str, str], _Scored]


@lru_cache(maxsize=16)
def _scorer(name: str) -> _Scorer:
    kind, _, rest = name.partition(":")
    if kind == "regex":
        pattern = re.compile(rest)

        def by_pattern(reply: str, answer: str) -> _Scored:
            found = [match.group(1 if pattern.groups else 0) for match in pattern.finditer(reply)]
            said = found[-1] if found else None
            return said, said is not None and said.strip() == answer.strip()

        return by_pattern
    if kind == "python":
        module, _, function = rest.partition(":")
        if (here := str(Path.cwd())) not in sys.path:
            sys.path.append(here)  # a process that measures does not have what pytest's rootdir adds
        judge: Callable[[str, str], Any] = getattr(import_module(module), function)

        def by_function(reply: str, answer: str) -> _Scored:
            right = judge(reply, answer)
            if not isinstance(right, bool | int):
                raise TypeError(f"it gave {shown(right)}, not True or False")
            return reply.strip(), bool(right)

        return by_function
    return _SCORERS[name]


def _number(reply: str, answer: str) -> _Scored:
    said = _last_number(reply)
    return said, said is not None and float(said) == float(_last_number(answer) or "nan")


def _last_number(text: str) -> str | None:
    found = _NUMBER.findall(text)
    return found[-1].replace(",", "") if found else None


def _choice(reply: str, answer: str) -> _Scored:
    found = _STATED.findall(reply) or _ALONE.findall(reply)
    return (found[-1], found[-1] == answer.strip("() ")) if found else (None, False)


_SCORERS: Final[Mapping[str, _Scorer]] = {
    "exact": lambda reply, answer: (reply.strip(), reply.strip() == answer.strip()),
    "number": _number,
    "choice": _choice,
    "contains": lambda reply, answer: (reply.strip(), answer.strip() in reply),
}
SCORERS: Final = tuple(_SCORERS)


def _told(check: str, said: str) -> str:
    text = " ".join(said.split())
    return f"{check}: {text[:SHOWN_CHARS]}{'…' if len(text) > SHOWN_CHARS else ''}"
