"""Detects the wire dialect of an endpoint: what to try, in which order, and what an answer looks like.

``auto`` takes OpenAI's chat, else completions. Where the endpoint has neither path, the other dialects that
live below the same base are tried, each with one small request that costs a few tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from pytest_llmbench.errors import SUTError
from pytest_llmbench.http_client import OF_HTTP, numbered_ids
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.probes.access import RequestForm
from pytest_llmbench.probes.control_plane import Answer, ControlPlane
from pytest_llmbench.probes.endpoint_errors import NO_SUCH_PATH
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.probes.model_list import ModelList, below, is_name
from pytest_llmbench.wire.catalogue import DIALECTS, dialect, dialect_at
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.dialect import (
    CallDialect,
    Dialect,
    EncodeOptions,
    PromptForm,
    headers_for,
    path_for,
)
from pytest_llmbench.wire.error_replies import is_stream, json_object
from pytest_llmbench.wire.server_figures import server_figures
from pytest_llmbench.wire.stream import chunks_of

_SMALL = PlannedRequest(0, max_tokens=4, input_tokens=1, text="Hello", token_ids=(300,))
"""The request for trying a dialect. Its id is an ordinary token in small vocabularies too."""
_USUAL = ("openai-chat", "openai-completions")
"""Dialects that ``auto`` always tries, whatever the answer to the one before."""


@dataclass(frozen=True, slots=True)
class _Page:
    """A page below the server's root that names models."""

    path: str
    key: str
    """Key of the model's name on the page."""
    among: str = ""
    """Key of the list of models; ``""``: the page is about a single model."""

    def names(self, answer: Answer) -> list[str]:
        payload = json_object(answer.body) or {}
        given = payload.get(self.among) if self.among else [payload]
        entries = given if isinstance(given, list) else []
        found = [entry.get(self.key) for entry in entries if isinstance(entry, dict)]
        return [name for name in found if is_name(name)]


_PAGES = {
    "ollama-chat": _Page("/api/tags", "name", "models"),
    "ollama-generate": _Page("/api/tags", "name", "models"),
    "sglang-generate": _Page("/get_model_info", "model_path"),
    "tgi-generate": _Page("/info", "model_id"),
}


@dataclass(frozen=True, slots=True)
class ToTry:
    """The dialects to try at an endpoint, in this order. Each is imported when its turn comes, and most
    endpoints speak the first."""

    named: Dialect | None
    """The one that was asked for; None: all that ``auto`` knows of."""
    prompt_form: PromptForm

    def __iter__(self) -> Iterator[Dialect]:
        if self.named is not None:
            yield self.named
            return
        for known in DIALECTS.values():
            if not known.rooted and (self.prompt_form == "text" or known.accepts_token_ids):
                yield known


def to_try(endpoint: str, api: str, asking: RequestForm) -> ToTry:
    """The dialects for an endpoint. Raises SuiteError for a name that is none, or that is not spoken
    there."""
    of_http = api == "auto" and urlsplit(endpoint.strip()).scheme in OF_HTTP
    return ToTry(None if of_http else dialect_at(endpoint, api), asking.prompt_form)


def base_of(spoken: Dialect, base: str) -> str:
    """The URL from which the paths of the dialect start, given the ``base`` of the API.

    A base that holds the first part of the path, as ``http://host/api`` does for Ollama, is given without.
    """
    if not spoken.rooted:
        return base
    parts = urlsplit(server_root(base))
    first = "/" + spoken.path.split("/")[1]
    return parts._replace(path=parts.path.removesuffix(first)).geturl()


def own_model_list(control: ControlPlane, base: str, named: Dialect | None) -> ModelList | None:
    """The models as listed by a page of the engine's own, if only its dialect is asked for; ``None``: there
    is no such page, or the dialect is not that of one engine."""
    page = None if named is None else _PAGES.get(named.name)
    if named is None or page is None:
        return None
    answer = control.get_or_failure(below(base_of(named, base), page.path))
    if isinstance(answer, SUTError) or answer.status != 200:
        return None
    entries = tuple({"id": name} for name in page.names(answer))
    return ModelList(base, entries, answer.headers.get("server", "")) if entries else None


def engine_api_at(control: ControlPlane, base: str) -> str:
    """The dialect of the engine whose own page of models is there; ``""``: none. One request for each
    page."""
    for path in dict.fromkeys(page.path for page in _PAGES.values()):
        name = next(name for name, page in _PAGES.items() if page.path == path)
        if own_model_list(control, base, dialect(name)):
            return name
    return ""


def attempts(bases: Sequence[str], dialects: ToTry) -> Iterator[tuple[str, Dialect]]:
    """Base and dialect of each attempt; unusual dialects are tried at the most likely base only."""
    for base in bases:
        for spoken in dialects:
            if base == bases[0] or spoken.name in _USUAL or (spoken is dialects.named and not spoken.rooted):
                yield base_of(spoken, base), spoken


def is_worth_trying(spoken: Dialect, failures: Sequence[Answer]) -> bool:
    """Whether a dialect should be tried. An unusual one only where those before it have no path: any other
    refusal says what is wrong, and a model should not be run four times to learn it."""
    return spoken.name in _USUAL or all(answer.status in NO_SUCH_PATH for answer in failures)


def ask(control: ControlPlane, base: str, spoken: Dialect, options: EncodeOptions) -> Answer:
    """The answer to one small request."""
    return send(control, below(base, path_for(spoken, options.model)), spoken, small_body(spoken, options))


def send(control: ControlPlane, url: str, spoken: Dialect, body: bytes) -> Answer:
    """The answer to a request with the encoded ``body``, sent as the dialect requires."""
    headers, request_id = headers_for(spoken, control.headers), numbered_ids()(0)
    if isinstance(spoken, CallDialect):
        return control.invoke(url, spoken.message(body, request_id), headers)
    if urlsplit(url).scheme in OF_HTTP:
        return control.post(url, body, headers)
    return control.ask_over(url, spoken, body, request_id, headers)


def small_body(spoken: Dialect, options: EncodeOptions) -> bytes:
    """The encoded body of the small request."""
    return spoken.encode(replace(_SMALL, max_tokens=most_tokens(spoken)), options)


def most_tokens(spoken: Dialect) -> int:
    """The most output tokens that the small request asks for."""
    return max(_SMALL.max_tokens, spoken.least_tokens)


def chunks_in(spoken: Dialect, answer: Answer) -> list[Chunk]:
    """The chunks that the dialect reads in the answer."""
    return list(chunks_of([(answer.body, 0)], spoken))


def is_completion(chunks: Sequence[Chunk]) -> bool:
    """Whether the chunks contain any part of a reply."""
    return any(chunk.choice is not None for chunk in chunks)


def is_streamed(spoken: Dialect, chunks: Sequence[Chunk]) -> bool:
    """Whether an answer of another content type is a stream all the same: several events for lines of JSON,
    of which a whole document is one, any otherwise. With gRPC its own clients refuse such an answer."""
    least = {"ndjson": 2}.get(spoken.protocol, 1)
    return spoken.protocol != "grpc" and len(chunks) >= least and is_completion(chunks)


def model_load_ms(chunks: Sequence[Chunk]) -> float | None:
    """How long the server took to load the model, in ms; None where it does not report that (Ollama does).

    Seconds are a cold start, which the first request of a session often is.
    """
    load_ns = server_figures(chunks).get("model_load_ns")
    return None if load_ns is None else load_ns / 1e6


def looks_like(answer: Answer, but: Dialect) -> str:
    """The dialect other than ``but`` that reads a reply in this answer without fault; ``""``: there is
    none.

    None of messages over WebSocket: only this one has a form there.
    """
    for known in (DIALECTS[name] for name in DIALECTS if name != but.name and but.protocol != "websocket"):
        if not is_stream(answer.headers, known.protocol):
            continue
        chunks = chunks_in(known, answer)
        faultless = not any(chunk.problem or chunk.error for chunk in chunks)
        if faultless and any(chunk.text or chunk.reasoning for chunk in chunks):
            return known.name
    return ""


def other_that_answers(control: ControlPlane, base: str, tried: ToTry, options: EncodeOptions) -> str:
    """The first untried dialect below the same base that streams a reply; ``""``: there is none.

    One request for each.
    """
    already = tuple(tried)
    for known in DIALECTS.values():
        fits = options.prompt_form == "text" or known.accepts_token_ids
        if known in already or known.rooted or not fits:
            continue
        try:
            # Without the fields that were meant for another dialect.
            answer = ask(control, base, known, replace(options, ignore_eos=False, extra_body={}))
        except SUTError:  # the error that led here is the one to tell
            return ""
        if 200 <= answer.status < 300 and is_completion(chunks_in(known, answer)):
            return known.name
    return ""
