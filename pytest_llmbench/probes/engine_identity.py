"""The serving software that answers, as far as it says so itself.

Everything here is a hint, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_OWNERS = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
"""``owned_by`` of a model list entry → engine."""

_VLLM_FINGERPRINT = re.compile(r"vllm-(\d[\w.+]*)-")
_LLAMA_CPP_FINGERPRINT = re.compile(r"(b\d+)-[0-9a-f]+")


def engine_facts(entry: Mapping[str, Any], server: str, fingerprint: str) -> dict[str, Any]:
    """Facts about the engine, by their dotted names.

    ``entry`` is the model's entry in the model list (may be empty), ``server`` the header of that name,
    ``fingerprint`` the ``system_fingerprint`` of a chunk. vLLM and llama.cpp write their version into it.
    """
    facts: dict[str, Any] = {}
    engine = _OWNERS.get(str(entry.get("owned_by", "")).lower())
    if engine is None and server.lower().startswith("llama.cpp"):
        engine = "llama.cpp"
    if engine is not None:
        facts["sut.software.engine"] = engine
    pattern = {"vLLM": _VLLM_FINGERPRINT, "llama.cpp": _LLAMA_CPP_FINGERPRINT}.get(engine or "")
    if pattern is not None and (match := pattern.match(fingerprint)):
        facts["sut.software.version"] = match[1]
    limit = entry.get("max_model_len")
    if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0:
        facts["sut.context_limit_tokens"] = limit
    return facts
