"""Structured output: schemas that can be asked for, and what breaks them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.reply_checks import VALID, VIOLATIONS, Call, StructuredOutput, compact, is_strict

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "days": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def check(text: str, *, cut: bool = False, schema: Any = None) -> str:
    return StructuredOutput.of(schema=schema or SCHEMA).check(text, [], cut=cut)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"city":"Ulm","unit":"C"}', VALID),
        (' {"city":"Ulm","unit":"C","days":2.0,"tags":["a"]}\n ', VALID),
        ("", "not_json"),
        ('{"city":"Ulm","unit":"C"', "not_json"),
        ('{"city":"Ulm","unit":"C"} so', "not_json"),
        ('{"city":"Ulm","unit":"C","days":NaN}', "not_json"),
        ("[" * 100_000, "not_json"),
        ('["Ulm"]', "wrong_type"),
        ('{"city":7,"unit":"C"}', "wrong_type"),
        ('{"city":"Ulm","unit":"C","days":true}', "wrong_type"),
        ('{"city":"Ulm","unit":"C","days":1.5}', "wrong_type"),
        ('{"city":"Ulm","unit":"C","days":1e999}', "wrong_type"),
        ('{"city":"Ulm","unit":"C","tags":["a",1]}', "wrong_type"),
        ('{"city":"Ulm"}', "missing_key"),
        ('{"city":"Ulm","unit":"C","wind":3}', "unknown_key"),
        ('{"city":"Ulm","unit":"K"}', "unknown_enum"),
    ],
)
def test_a_text_is_held_against_its_schema(text: str, found: str) -> None:
    assert check(text) == found
    assert check(text, cut=True) == (VALID if found == VALID else "cut_by_limit")


def test_an_enum_takes_no_other_type_for_its_own() -> None:
    schema = {"type": "boolean", "enum": [True]}
    assert (check("true", schema=schema), check("1", schema=schema)) == (VALID, "wrong_type")
    assert check("1", schema={"type": "number", "enum": [True]}) == "unknown_enum"


@pytest.mark.parametrize(
    ("calls", "found"),
    [
        ([], "no_call"),
        ([Call("wether", "{}")], "unknown_tool"),
        ([Call("weather", '{"city":"Ulm","unit":"C"}')], VALID),
        ([Call("weather", '{"city":"Ulm","unit":"C"}'), Call("weather", '{"city":"Ulm"}')], "missing_key"),
    ],
)
def test_a_call_is_held_against_its_tool(calls: list[Call], found: str) -> None:
    asked = StructuredOutput.of([WEATHER])
    assert asked.check("words", calls, cut=False) == found
    assert found in (VALID, *VIOLATIONS)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda e: st.lists(e) | st.dictionaries(st.text(), e),
        max_leaves=12,
    )
)
def test_whatever_a_model_writes_has_one_name(value: Any) -> None:
    assert check(json.dumps(value)) in (VALID, *VIOLATIONS)


def test_all_mistakes_of_what_is_asked_for_are_told() -> None:
    bad = {"type": "object", "properties": {"a": {"type": "date"}, "b": {"type": "string", "pattern": "x"}}}
    with pytest.raises(SuiteError) as caught:
        StructuredOutput.of(
            [WEATHER, WEATHER, {"type": "function"}, {"function": {"name": "no_schema"}}],
            schema=bad,
        )
    for told in (
        "two tools are called 'weather'",
        "tool 2 has no function with a name",
        "no_schema.parameters is None",
        "schema.a.type is 'date'",
        "schema.b has the keyword 'pattern'",
    ):
        assert told in str(caught.value)
    for unusable in ("city", [["city"]]):
        with pytest.raises(SuiteError, match="required a list of names"):
            StructuredOutput.of(schema={"type": "object", "required": unusable})
    with pytest.raises(SuiteError, match="neither tools nor a schema"):
        StructuredOutput.of()
    with pytest.raises(SuiteError, match="give one of object"):
        StructuredOutput.of(schema={"type": ["string", "null"]})


def test_it_is_kept_as_compact_json() -> None:
    asked = StructuredOutput.of([WEATHER], SCHEMA)
    assert (json.loads(asked.tools), json.loads(asked.schema)) == ([WEATHER], SCHEMA)
    assert asked.schema == compact(SCHEMA)
    assert (asked.calls, StructuredOutput.of([WEATHER]).calls) == (False, True)


def test_strict_is_what_leaves_nothing_open() -> None:
    text = {"type": "string"}
    closed = {"type": "object", "properties": {"a": text}, "required": ["a"], "additionalProperties": False}
    assert is_strict(text)
    assert is_strict({"type": "array", "items": closed})
    for change in (
        {"additionalProperties": True},
        {"required": []},
        {"properties": {"a": {"type": "object"}}},
    ):
        assert not is_strict(closed | change)
    assert not is_strict(SCHEMA)
