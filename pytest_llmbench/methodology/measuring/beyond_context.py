"""Requests that the server refused since they are longer than the context of its model."""

from __future__ import annotations

import re

from pytest_llmbench.model.judgement import Finding
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records

_REFUSED = re.compile(
    # llama.cpp; OpenAI and gateways that have its code; Anthropic; TensorRT-LLM; TGI
    r"exceed_context_size|context_length_exceeded|prompt is too long|exceeds max(?:imum)? input length"
    r"|inputs.{0,40}must be <= \d+"
    # vLLM, the embedded engine; SGLang; others that say it in words
    r"|maximum context length|longer than the model's context"
    r"|exceeds? the.{0,30}context (?:size|length|window)",
    re.IGNORECASE,
)
"""What the error texts of engines say, as of 2026."""
REMEDY = "take a workload of shorter prompts, or have the server allow a longer context"


def says_so(error: str | None) -> bool:
    """Whether the error text of a request says that it was longer than the context."""
    return bool(error and _REFUSED.search(error))


def beyond_context(records: Records) -> Finding | None:
    """How many requests were refused for their length; None where none was."""
    refused = records.has_outcome(Outcome.HTTP_ERROR) | records.has_outcome(Outcome.IN_BAND_ERROR)
    if not refused.any():
        return None
    found = sum(says_so(error) for error, bad in zip(records.error, refused, strict=True) if bad)
    if not found:
        return None
    return Finding(
        "beyond_context",
        ok=False,
        voids=False,
        message=f"{found} of {len(records)} requests were refused as longer than the model's context, "
        f"and count as failures: {REMEDY}",
        value=found,
        limit=0,
    )
