"""OpenAI's embeddings: ``POST …/embeddings``, a vector for each input.

Source: OpenAI's API reference, "Create embeddings"; vLLM, SGLang, llama.cpp and TEI serve the same form.
Vectors come as lists of numbers or, with ``encoding_format: base64`` among the extra fields, as little-endian
float32.
"""

from __future__ import annotations

import binascii
import math
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from pytest_llmbench.extras.non_generative.document import DocumentDialect, read_results
from pytest_llmbench.extras.non_generative.inputs import one_result_each, texts_or_ids
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.dialect import EncodeOptions, ResultsAsked, refuse_ignore_eos
from pytest_llmbench.wire.openai_chat import write_body
from pytest_llmbench.wire.sse import SSEEvent

_FLOAT32_BYTES = 4


class OpenAIEmbeddings(DocumentDialect):
    """The input is the prompt, as text or token ids."""

    name = "openai-embeddings"
    path = "/embeddings"
    accepts_token_ids = True

    def encode(self, request: PlannedRequest, options: EncodeOptions) -> bytes:
        refuse_ignore_eos(self.name, options)
        given = texts_or_ids(request, options)
        body = {"model": options.model, "input": given, "encoding_format": "float"}
        return write_body(body, request, options)

    def results_asked(self, body: bytes) -> ResultsAsked:
        return one_result_each(orjson.loads(body)["input"])

    def decode(self, event: SSEEvent) -> Chunk:
        return read_results(event, "data", _wrong_with)


def _wrong_with(result: Mapping[str, Any]) -> str:
    vector = result.get("embedding")
    if vector.__class__ is str:
        return _wrong_with_packed(vector)
    if vector.__class__ is not list:
        return "without an embedding"
    if not vector:
        return "with an embedding of no numbers"
    if not set(map(type, vector)) <= {int, float}:
        return "with an embedding that holds something other than numbers"
    try:
        whole = all(map(math.isfinite, vector))
    except OverflowError:
        whole = False
    return "" if whole else "with an embedding that is not finite"


def _wrong_with_packed(text: str) -> str:
    try:
        packed = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return "with an embedding that is no base64"
    if not packed or len(packed) % _FLOAT32_BYTES:
        return f"with an embedding of {len(packed)} bytes, which are no vector of float32"
    return "" if np.isfinite(np.frombuffer(packed, "<f4")).all() else "with an embedding that is not finite"
