"""vLLM's scores: ``POST …/score``, a similarity for each pair of texts.

Source: vLLM's online serving, "Score API": ``text_1`` against ``text_2``, one text or a list of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from pytest_llmbench.extras.non_generative.document import DocumentDialect, finite, read_results
from pytest_llmbench.extras.non_generative.inputs import query_and_documents
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.dialect import (
    EncodeOptions,
    ResultsAsked,
    refuse_ignore_eos,
    require_text,
)
from pytest_llmbench.wire.openai_chat import write_body
from pytest_llmbench.wire.sse import SSEEvent


class Score(DocumentDialect):
    """The prompt is a text and those that it is compared with, cut as a query and its documents are."""

    name = "score"
    path = "/score"

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        refuse_ignore_eos(self.name, options)
        text, others = query_and_documents(request)
        against: Any = others[0] if len(others) == 1 else others
        return write_body({"model": options.model, "text_1": text, "text_2": against}, request, options)

    def results_asked(self, body: bytes) -> ResultsAsked:
        asked = orjson.loads(body)
        lengths = [len(asked[key]) for key in ("text_1", "text_2") if asked[key].__class__ is list]
        pairs = max(lengths, default=1)
        return ResultsAsked(pairs, pairs)

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "data", _wrong_with)


def _wrong_with(result: Mapping[str, Any]) -> str:
    return "" if finite(result.get("score")) else "without a finite score"
