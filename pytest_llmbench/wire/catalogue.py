"""The dialects by name. The module of a dialect is imported when the dialect is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pytest_llmbench.endpoint_urls import OF_HTTP, is_grpc
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.registry import Transport, dialect_called, load, transport_for

if TYPE_CHECKING:
    from pytest_llmbench.wire.dialect import CallDialect, Dialect

_CLASSES: Final = {
    "openai-chat": ("openai_chat", "OpenAIChat"),
    "openai-completions": ("apis.openai_completions", "OpenAICompletions"),
    "openai-responses": ("apis.openai_responses", "OpenAIResponses"),
    "anthropic-messages": ("apis.anthropic_messages", "AnthropicMessages"),
    "ollama-chat": ("apis.ollama", "OllamaChat"),
    "ollama-generate": ("apis.ollama", "OllamaGenerate"),
    "sglang-generate": ("apis.sglang_generate", "SGLangGenerate"),
    "tgi-generate": ("apis.tgi_generate", "TGIGenerate"),
    "triton-generate": ("apis.triton_generate", "TritonGenerate"),
}

_NON_GENERATIVE: Final = {
    "openai-embeddings": ("non_generative.openai_embeddings", "OpenAIEmbeddings"),
    "rerank": ("non_generative.rerank", "Rerank"),
    "score": ("non_generative.score", "Score"),
    "logprobs": ("non_generative.logprobs", "LogProbs"),
}
NON_GENERATIVE: Final = tuple(_NON_GENERATIVE)
"""Names of the dialects that answer with vectors, scores or log-probabilities. ``auto`` never takes one."""

_OVER_GRPC: Final = {
    "vllm-grpc": ("grpc.vllm", "VLLMOverGrpc"),
    "sglang-grpc": ("grpc.sglang", "SGLangOverGrpc"),
    "kserve-grpc": ("grpc.kserve", "KServeOverGrpc"),
}
OVER_GRPC: Final = tuple(_OVER_GRPC)
"""Names of the dialects over gRPC, in the order in which ``auto`` tries them."""
_GRPC_PACKAGES: Final = ("google", "grpc", "h2", "smg_grpc_proto", "tritonclient")


class _Dialects(Mapping[str, "Dialect"]):
    """The dialects that generate, in the order in which ``auto`` tries them."""

    def __getitem__(self, name: str) -> Dialect:
        return _made(name)

    def __contains__(self, name: object) -> bool:
        return name in _CLASSES

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


def _made(name: str) -> Dialect:
    made: Dialect = _instance(*_CLASSES[name])
    return made


@cache
def _instance(module: str, kind: str) -> Any:
    return getattr(import_module(f"pytest_llmbench.wire.{module}"), kind)()


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
    if name in _OVER_GRPC:
        raise SuiteError(
            f"{name} is spoken over gRPC alone",
            where="--llm-api",
            remedy="give the server's gRPC port, --llm-endpoint=grpc://host:port, or another dialect",
        )
    full = _ALIASES.get(name, name)
    found = _instance(*_NON_GENERATIVE[full]) if full in _NON_GENERATIVE else DIALECTS.get(full)
    if found is None and (further := dialect_called(full)) is not None:
        found = _loaded(further)
    if found is None:
        known = [*DIALECTS, *NON_GENERATIVE, *_ALIASES]
        close = get_close_matches(name, known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
        raise SuiteError(f"unknown API dialect {name!r}", remedy=hint)
    return found


def generates(api: str) -> bool:
    """Whether the API called ``api`` generates tokens, as ``auto`` and those over gRPC do."""
    return _ALIASES.get(api, api) not in NON_GENERATIVE


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
    return _loaded(transport.dialects[known])


@cache
def _loaded(part: str) -> Any:
    return load(part)()


def over_grpc(name: str) -> CallDialect:
    """The gRPC dialect called ``name``; for ``auto`` the usual one.

    :raises SuiteError: there is no such dialect, or the packages that it needs are not installed.
    """
    known = OVER_GRPC[0] if name == "auto" else name
    if known not in _OVER_GRPC:
        raise SuiteError(
            f"{known} is not spoken over gRPC",
            where="--llm-api",
            remedy=f"leave it out, or choose one of {', '.join(OVER_GRPC)}; or measure over http:// "
            "(--llm-endpoint)",
        )
    try:
        import_module("pytest_llmbench.wire.http2.client")  # which every call needs
        made: CallDialect = _instance(*_OVER_GRPC[known])
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _GRPC_PACKAGES:
            raise
        raise SuiteError(
            f"{known} needs a package that is not installed: {error.name}",
            where="--llm-endpoint",
            remedy='pip install "pytest-llmbench[grpc]"',
        ) from error
    return made


def require_http2() -> None:
    """Check that HTTP/2 can be spoken.

    :raises SuiteError: the packages that it needs are not installed.
    """
    try:
        import_module("pytest_llmbench.wire.http2.client")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _GRPC_PACKAGES:
            raise
        raise SuiteError(
            f"HTTP/2 needs a package that is not installed: {error.name}",
            where="--llm-http",
            remedy='pip install "pytest-llmbench[http2]"',
        ) from error


def dialect_at(url: str, name: str) -> Dialect:
    """The dialect called ``name`` in its form for an endpoint at ``url``.

    :raises SuiteError: there is none, or it is not spoken there.
    """
    if is_grpc(url):
        return over_grpc(name)
    scheme = urlsplit(url.strip()).scheme
    if scheme in OF_HTTP or "://" not in url:  # replay, sim and python:module:attr are no addresses
        return dialect(name)
    transport = transport_for(scheme)
    if transport is None:
        raise SuiteError(
            f"{scheme}:// is spoken by an extra that this installation lacks",
            where="--llm-endpoint",
            remedy="measure over http:// or https://, or install the package with its extras",
        )
    made: Dialect = over(transport, name)
    return made
