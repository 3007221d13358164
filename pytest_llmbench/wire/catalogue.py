"""The dialects by name."""

from __future__ import annotations

from difflib import get_close_matches

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.wire.apis.anthropic_messages import AnthropicMessages
from pytest_llmbench.wire.apis.ollama import OllamaChat, OllamaGenerate
from pytest_llmbench.wire.apis.openai_responses import OpenAIResponses
from pytest_llmbench.wire.apis.sglang_generate import SGLangGenerate
from pytest_llmbench.wire.apis.tgi_generate import TGIGenerate
from pytest_llmbench.wire.apis.triton_generate import TritonGenerate
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.wire.openai_completions import OpenAICompletions

_KNOWN: tuple[Dialect, ...] = (
    OpenAIChat(),
    OpenAICompletions(),
    OpenAIResponses(),
    AnthropicMessages(),
    OllamaChat(),
    OllamaGenerate(),
    SGLangGenerate(),
    TGIGenerate(),
    TritonGenerate(),
)
DIALECTS = {known.name: known for known in _KNOWN}
"""In the order in which ``auto`` tries them."""
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
