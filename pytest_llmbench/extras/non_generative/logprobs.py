"""Log-probabilities of a prompt: ``POST …/completions`` with ``echo`` and no output.

Source: OpenAI's API reference, "Completions" (``echo``, ``logprobs``); vLLM serves the same form, and
lm-evaluation-harness asks it. The first token of a prompt has no predecessor, so its entry is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from pytest_llmbench.extras.non_generative.document import DocumentDialect, finite, read_results
from pytest_llmbench.extras.non_generative.inputs import one_result_each, texts_or_ids
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk, as_count
from pytest_llmbench.wire.dialect import EncodeOptions, ResultsAsked, refuse_ignore_eos
from pytest_llmbench.wire.openai_chat import write_body
from pytest_llmbench.wire.sse import SSEEvent

_ROUNDED = 1e-3
"""Tolerance for a log-probability above 0, which rounding may cause."""


class LogProbs(DocumentDialect):
    """The input is the prompt, as text or token ids. A result is an entry for each of its tokens."""

    name = "logprobs"
    path = "/completions"
    accepts_token_ids = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        refuse_ignore_eos(self.name, options)
        given = texts_or_ids(request, options)
        asked = {"max_tokens": 0, "echo": True, "logprobs": 1, "temperature": 0.0}
        return write_body({"model": options.model, "prompt": given, **asked}, request, options)

    def results_asked(self, body: bytes) -> ResultsAsked:
        return one_result_each(orjson.loads(body)["prompt"])

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "choices", _wrong_with, _wrong_with_all)


def _wrong_with(result: Mapping[str, Any]) -> str:
    entries = _entries(result)
    if not entries:
        return "without log-probabilities of its prompt"
    if not all(map(finite, entries[1:])) or not (entries[0] is None or finite(entries[0])):
        return "with a log-probability that is no finite number"
    most = max(entries[1:], default=0.0)
    return f"with a log-probability of {most:g}, which is above 0" if most > _ROUNDED else ""


def _wrong_with_all(payload: Mapping[str, Any], results: list[Any]) -> str:
    """What is wrong with all entries together: there has to be one for each input token that the server
    counts."""
    usage = payload.get("usage")
    if usage.__class__ is not dict:
        return ""
    tokens, generated = as_count(usage.get("prompt_tokens")), as_count(usage.get("completion_tokens"))
    found = sum(len(_entries(result)) for result in results)
    if tokens is None or found in (tokens, tokens + (generated or 0)):
        return ""
    return f"log-probabilities of {found} tokens where the server counts {tokens} in the prompt"


def _entries(result: Mapping[str, Any]) -> list[Any]:
    said = result.get("logprobs")
    entries = said.get("token_logprobs") if said.__class__ is dict else None
    return entries if entries.__class__ is list else []
