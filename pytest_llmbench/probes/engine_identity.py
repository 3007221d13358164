"""The serving software that answers, as far as it says so itself.

Everything here is a hint, never a guess.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.errors import SUTError
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.probes.control_plane import Answer
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.probes.model_list import below

_OWNERS = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "llamacpp": "llama.cpp",
    "tensorrt_llm": "TensorRT-LLM",
    "library": "Ollama",
}
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


@dataclass(frozen=True, slots=True)
class _Page:
    """Where an engine tells its version, beside the API."""

    engine: str
    path: str
    key: str
    marks: tuple[str, ...] = ()
    """Keys that no other engine has there; without them the page proves nothing about who answers."""


_PAGES = (
    _Page("vLLM", "/version", "version"),
    _Page("TensorRT-LLM", "/version", "version"),
    _Page("Ollama", "/api/version", "version"),
    _Page("llama.cpp", "/props", "build_info", ("build_info", "default_generation_settings")),
    _Page("SGLang", "/get_server_info", "version", ("version", "tp_size", "mem_fraction_static")),
    _Page("SGLang", "/server_info", "version", ("version", "tp_size", "mem_fraction_static")),
    _Page("TGI", "/info", "version", ("version", "model_id", "max_total_tokens")),
)
_LONGEST_VERSION = 80


def told_by_pages(get: Callable[[str], Answer | SUTError], base_url: str, known: Mapping[str, Any]) -> Facts:
    """Engine and version as a page of the engine has them, with the URL of that page as their source.

    Asked is only what ``known`` lacks: of an engine that is known, its own page; of one that is not, those
    pages that prove whose they are. Five requests at most; a server that fails is asked no more.
    """
    if "sut.software.version" in known:
        return Facts()
    engine = known.get("sut.software.engine")
    for page in _PAGES:
        if page.engine != engine if engine is not None else not page.marks:
            continue
        url = below(server_root(base_url), page.path)
        try:
            answer = get(url)
        except SUTError as error:
            answer = error
        if isinstance(answer, SUTError):
            break
        said = _told(answer)
        version = said.get(page.key)
        if set(page.marks) <= set(said) and _is_version(version):
            values = {"sut.software.engine": page.engine, "sut.software.version": version}
            return Facts.of(Origin.DETECTED, values, url)
    return Facts()


def _told(answer: Answer) -> Mapping[str, Any]:
    try:
        payload = json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        return {}
    return payload if isinstance(payload, dict) else {}


def _is_version(said: object) -> bool:
    return isinstance(said, str) and said.isprintable() and 0 < len(said) <= _LONGEST_VERSION
