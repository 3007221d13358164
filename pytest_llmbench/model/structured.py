"""Structured output: the structure that a request asks of its reply, and whether a reply has it.

Schemas are JSON Schema, of which a small part is known (:data:`KEYWORDS`). A schema with anything else is
refused, so no reply passes for want of a check.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
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

        Raises SuiteError with every mistake: nothing asked for, names that are missing or not unique, a
        schema with keywords that are not known here.
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
        """Whether the answer has to be a tool call."""
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
        mistakes.append(f"{where}.additionalProperties has to be true or false")
    if not isinstance(schema.get("enum", []), list):
        mistakes.append(f"{where}.enum has to be a list")
    properties, required = schema.get("properties", {}), schema.get("required", [])
    names = isinstance(required, list) and all(isinstance(name, str) for name in required)
    if not isinstance(properties, Mapping) or not names:
        return [*mistakes, f"{where}.properties has to be an object, and {where}.required a list of names"]
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
