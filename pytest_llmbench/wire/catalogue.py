"""The dialects by name. The module of a dialect is imported when the dialect is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.http_client import OF_HTTP
from pytest_llmbench.registry import Transport, load, named, names, transport_for, transport_speaking

if TYPE_CHECKING:
    from pytest_llmbench.wire.dialect import Dialect

_CLASSES: Final = {
    "openai-chat": "openai_chat:OpenAIChat",
    "openai-completions": "openai_chat:OpenAICompletions",
    "openai-responses": "apis.openai_responses:OpenAIResponses",
    "anthropic-messages": "apis.anthropic_messages:AnthropicMessages",
    "ollama-chat": "apis.engines:OllamaChat",
    "ollama-generate": "apis.engines:OllamaGenerate",
    "sglang-generate": "apis.engines:SGLangGenerate",
    "tgi-generate": "apis.engines:TGIGenerate",
    "triton-generate": "apis.engines:TritonGenerate",
}


class _Dialects(Mapping[str, "Dialect"]):
    """The dialects that generate, in the order in which ``auto`` tries them."""

    def __getitem__(self, name: str) -> Dialect:
        made: Dialect = _loaded(f"pytest_llmbench.wire.{_CLASSES[name]}")
        return made

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


DIALECTS: Final[Mapping[str, Dialect]] = _Dialects()
_ALIASES = {
    "chat": "openai-chat",
    "completions": "openai-completions",
    "responses": "openai-responses",
    "messages": "anthropic-messages",
    "embeddings": "openai-embeddings",
}


def dialect(name: str) -> Dialect:
    """The dialect called ``name``; ``chat``, ``completions``, ``responses``, ``messages`` and ``embeddings``
    are short forms.

    :raises SuiteError: there is none, or it is one of gRPC or of WebSockets alone.
    """
    full = _ALIASES.get(name, name)
    found = DIALECTS.get(full)
    if found is None:
        found = _of_extra(full)
    if found is None and (alone := transport_speaking(full)) is not None:
        raise SuiteError(
            f"{full} is spoken over {alone.title} alone",
            where="--llm-api",
            remedy=f"give the server's {alone.title} port, --llm-endpoint={alone.schemes[0]}://host:port, or "
            "another dialect",
        )
    if found is None:
        known = [*DIALECTS, *names("document_dialects"), *_ALIASES]
        close = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise SuiteError(f"unknown API dialect {name!r}", remedy=hint)
    return found


def generates(api: str) -> bool:
    """Whether the API called ``api`` generates tokens, as ``auto`` and those over gRPC do."""
    known = _ALIASES.get(api, api)
    return known in DIALECTS or known == "auto" or known not in names("document_dialects")


def over(transport: Transport, name: str) -> Any:
    """The dialect called ``name`` in its form for a transport; for ``auto`` the usual one.

    :raises SuiteError: it has no such form, or a package that it needs is not installed.
    """
    usual = next(iter(transport.dialects))
    known = usual if name == "auto" else _ALIASES.get(name, name)
    if known not in transport.dialects:
        dialect(known)  # which says so where there is none, or one of another transport alone
        several = ", ".join(transport.dialects)
        one = f"--llm-api={usual}" if several == usual else f"one of {several}"
        raise SuiteError(
            f"{known} is not spoken over {transport.title}",
            where="--llm-api",
            remedy=f"leave it out, or write {one}; or measure over http:// (--llm-endpoint)",
        )
    load(transport.carry)  # whose packages every request needs
    return _loaded(transport.dialects[known])


@cache
def _of_extra(name: str) -> Any | None:
    found = named("dialects", name) or named("document_dialects", name)
    return None if found is None else found()


@cache
def _loaded(part: str) -> Any:
    return load(part)()


def dialect_at(url: str, name: str) -> Dialect:
    """The dialect called ``name`` in its form for an endpoint at ``url``.

    :raises SuiteError: there is none, or it is not spoken there.
    """
    scheme = urlsplit(url.strip()).scheme
    if scheme in OF_HTTP or "://" not in url:  # replay, sim and python:module:attr are no addresses
        return dialect(name)
    transport = transport_for(scheme)
    if transport is None:
        raise SuiteError(
            f"{scheme}:// needs an extra that is not installed",
            where="--llm-endpoint",
            remedy="measure over http:// or https://, or install the package with its extras",
        )
    made: Dialect = over(transport, name)
    return made
