"""Reranking: ``POST …/rerank``, a score for each document, best first.

The form is that of Cohere's API, which Jina's and vLLM's share: ``results`` with ``index`` and
``relevance_score``. TEI's own ``/rerank`` answers with a bare list and is another one. Usage is vLLM's and
Jina's; Cohere tells tokens in ``meta`` or not at all.
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


class Rerank(DocumentDialect):
    """The prompt is a query and its documents, see :mod:`~pytest_llmbench.extras.non_generative.inputs`."""

    name = "rerank"
    path = "/rerank"

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        require_text(self.name, request, options)
        refuse_ignore_eos(self.name, options)
        query, documents = query_and_documents(request)
        return write_body({"model": options.model, "query": query, "documents": documents}, request, options)

    def results_asked(self, body: bytes) -> ResultsAsked:
        """How many results a request asks for; ``top_n`` among the extra fields asks for only the best
        ones."""
        asked = orjson.loads(body)
        documents, most = len(asked["documents"]), asked.get("top_n")
        results = min(documents, most) if most.__class__ is int and most > 0 else documents
        return ResultsAsked(results, documents)

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "results", _wrong_with)


def _wrong_with(result: Mapping[str, Any]) -> str:
    if "index" not in result:
        return "without an index"
    return "" if finite(result.get("relevance_score")) else "without a finite relevance_score"
