"""The dialects by name. The module of a dialect is imported when the dialect is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.wire.dialect import Dialect

_CLASSES: Final = {
    "openai-chat": ("openai_chat", "OpenAIChat"),
    "openai-completions": ("openai_completions", "OpenAICompletions"),
    "openai-responses": ("apis.openai_responses", "OpenAIResponses"),
    "anthropic-messages": ("apis.anthropic_messages", "AnthropicMessages"),
    "ollama-chat": ("apis.ollama", "OllamaChat"),
    "ollama-generate": ("apis.ollama", "OllamaGenerate"),
    "sglang-generate": ("apis.sglang_generate", "SGLangGenerate"),
    "tgi-generate": ("apis.tgi_generate", "TGIGenerate"),
    "triton-generate": ("apis.triton_generate", "TritonGenerate"),
}


class _Dialects(Mapping[str, Dialect]):
    """The dialects, in the order in which ``auto`` tries them."""

    def __getitem__(self, name: str) -> Dialect:
        return _made(name)

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


@cache
def _made(name: str) -> Dialect:
    module, kind = _CLASSES[name]
    made: Dialect = getattr(import_module(f"pytest_llmbench.wire.{module}"), kind)()
    return made


DIALECTS: Final[Mapping[str, Dialect]] = _Dialects()
_ALIASES = {
    "chat": "openai-chat",
    "completions": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
}


def dialect(name: str) -> Dialect:
    """The dialect called ``name``; ``chat``, ``completions``, ``responses`` and ``messages`` are short.

    :raises SuiteError: there is none.
    """
    found = DIALECTS.get(_ALIASES.get(name, name))
    if found is None:
        known = [*DIALECTS, *_ALIASES]
        close = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise SuiteError(f"unknown API dialect {name!r}", remedy=hint)
    return found
