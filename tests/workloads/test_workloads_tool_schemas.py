"""Tools with JSON schemas as the beginning of prompts: of exact lengths, seeded, shared."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.reply_checks import StructuredOutput, is_strict, parameters_of, schema_of
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import Prefixes, Salted, SharedPrefix
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.profiles import profile_workload
from pytest_llmbench.workloads.readable import FEWEST_TOOL_TOKENS, tools_of_length
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.stream import BulkRandom
from pytest_llmbench.workloads.synthetic import NO_SHARING

FUNC = profile_workload("profile:FUNC")


@pytest.mark.parametrize("tokens", [FEWEST_TOOL_TOKENS, 161, 384, 1000, 3072])
def test_a_set_of_tools_has_exactly_its_tokens_and_can_be_asked_for(tokens: int) -> None:
    for seed in range(4):
        text = tools_of_length(BulkRandom(seed), tokens)
        assert reference_tokenizer().count(text) == tokens
        assert StructuredOutput.of(json.loads(text)).tools == text
        assert tools_of_length(BulkRandom(seed), tokens) == text
    with pytest.raises(SuiteError, match="cannot have 159 tokens"):
        tools_of_length(BulkRandom(1), FEWEST_TOOL_TOKENS - 1)


def test_prompts_of_func_begin_with_tools_that_many_share() -> None:
    tokenizer = reference_tokenizer()
    requests = FUNC.requests(60, 3)
    for request in requests:
        assert request.structured is not None
        text = tokenizer.decode(list(request.token_ids or ()))
        assert text.startswith(request.structured.tools)
        assert tokenizer.count(request.structured.tools) == request.shared_prefix_tokens
    assert 1 < len({r.structured.tools for r in requests if r.structured}) <= 16
    assert sum(r.structured.calls for r in requests if r.structured) == 30
    forms = [r.structured for r in requests if r.structured and not r.structured.calls]
    assert all(schema_of(form.schema) in parameters_of(form.tools).values() for form in forms)
    assert all(
        is_strict(schema_of(form.schema)) for form in forms
    )  # others are refused by OpenAI's own service


def test_what_is_asked_for_is_a_part_of_the_identity_of_a_sequence() -> None:
    def digest(structured: StructuredOutput | None) -> str:
        return sequence_sha256([PlannedRequest(0, 8, 1, text="[]", structured=structured)])

    schema = {"type": "string"}
    assert (
        len({digest(None), digest(StructuredOutput("[]")), digest(StructuredOutput.of(schema=schema))}) == 3
    )


def test_a_salt_stands_in_the_first_description_and_is_counted() -> None:
    tokenizer = reference_tokenizer()
    for plain, salted in zip(FUNC.requests(5, 1), Salted(FUNC, "x").requests(5, 1), strict=True):
        assert plain.structured is not None
        assert salted.structured is not None
        text = tokenizer.decode(list(salted.token_ids or ()))
        assert text.startswith(salted.structured.tools)
        assert (salted.prefix_id, salted.input_tokens) == (None, len(salted.token_ids or ()))
        own = tokenizer.decode(list(plain.token_ids or ())).removeprefix(plain.structured.tools)
        assert text.removeprefix(salted.structured.tools) == own
        told = json.loads(salted.structured.tools)[0]["function"]["description"]
        assert told.startswith(f"{plain.index} ")


@dataclass(frozen=True)
class WithTools:
    """A workload of an author."""

    name: str = "with-tools"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        tools = tools_of_length(BulkRandom(seed), 200)
        asked = StructuredOutput(tools)
        return [PlannedRequest(i, 8, 201, text=f"{tools} {i}", structured=asked) for i in range(count)]

    def specification(self) -> Mapping[str, Any]:
        return {**FUNC.specification(), "prefix_sharing": dict(NO_SHARING)}


def test_a_prefix_cannot_be_put_ahead_of_tools() -> None:
    with pytest.raises(SuiteError, match="begin with tool schemas"):
        SharedPrefix("p", WithTools(), Fixed(8), 1.0).requests(1, 1)


def test_a_text_with_tools_can_be_salted() -> None:
    (salted,) = Salted(WithTools(), "x").requests(1, 1)
    assert salted.structured is not None
    assert salted.text == salted.structured.tools + " 0"
    assert salted.input_tokens == reference_tokenizer().count(salted.text)


def test_a_cache_is_filled_with_the_tools_and_one_word_to_ask_with() -> None:
    tokenizer = reference_tokenizer()
    for request in Prefixes(FUNC, 20).requests(20, 3):
        assert request.structured is not None
        text = tokenizer.decode(list(request.token_ids or ()))
        own = text.removeprefix(request.structured.tools)
        assert (tokenizer.count(own), text != own) == (1, True)
        assert request.input_tokens == request.shared_prefix_tokens + 1 == len(request.token_ids or ())
