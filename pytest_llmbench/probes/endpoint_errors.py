"""Answers that make a measurement impossible, each as a SUTError with its remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_llmbench.errors import NotReadyError, SUTError
from pytest_llmbench.http_client import http_beside, is_grpc, is_websocket
from pytest_llmbench.model.request import ASKED_LIMIT, CHUNK_TOKEN_FIELDS
from pytest_llmbench.probes.control_plane import Answer, without_query
from pytest_llmbench.registry import load, transport_called
from pytest_llmbench.wire.error_replies import beginning, json_object, read_error_body, shorten

NO_SUCH_PATH = (404, 405, 501)
UPGRADE_REQUIRED = 426

_OVERLOADED = (429, 503)
_LATER = (408, 425)
_NO_SUCH_MODEL = re.compile(
    r"model.{0,120}(not found|not exist|is unknown|not available|not loaded)"
    r"|(unknown|no such|no) model|model_not_found|pinned to",
    re.IGNORECASE | re.DOTALL,
)
"""Texts that say that a model does not exist: servers pinned to one model refuse every other name."""
_REFUSES_FIELD = re.compile(
    r"(unexpected|unknown|unrecogni[sz]ed|unsupported|extra|additional)\W{1,9}(\w{1,40}\W{1,9}){0,3}?"
    r"(key|field|param|argument|input|propert|property|option)"
    r"|not (permitted|allowed|supported|recogni[sz]ed|accepted)"
    r"|unsupported value|does(n't| not) support|deprecated|only .{0,40}(default|allowed|supported|accepted)",
    re.IGNORECASE,
)
_REFUSES_KEY = re.compile(
    r"(no|invalid|incorrect|missing|unknown) api[ _-]?key"
    r"|api[ _-]?key.{0,40}(not valid|invalid|incorrect|missing)|no_db_connection",
    re.IGNORECASE,
)
"""Texts with status 400 that mean a refused key: Gemini calls a wrong key not valid, and LiteLLM without a
database misses one to look it up in."""
_WORDS = {"model", "messages", "prompt", "stream"}
"""Fields that a message may mention without refusing them: "… is not supported with this model"."""


def outright_refusal(answer: Answer, key_source: str) -> SUTError | None:
    """The error for an answer that ends the preflight wherever it comes; ``None`` for any other."""
    if answer.status in (401, 403) or (answer.status == 400 and _REFUSES_KEY.search(_said(answer))):
        what = f"the key from {key_source} is refused" if key_source else "no API key was sent"
        remedy = f"check {key_source}" if key_source else "export LLM_API_KEY (or OPENAI_API_KEY)"
        remedy += ", or name a variable or a file as api_key_env or api_key_file in the SUT file"
        if is_websocket(answer.url):
            remedy += "; some servers say so of a path without a WebSocket: OpenAI's ends in /responses"
        return _error(answer, f"{_status(answer)}; {what}", remedy)
    if 300 <= answer.status < 400:
        target = without_query(answer.headers.get("location", "")) or "nowhere"
        remedy = "give the final URL: the redirect would be measured with every request"
        if target == without_query(answer.url):
            remedy = "it redirects to itself: check the server and what is in front of it"
        return _error(answer, f"{_status(answer)}: the endpoint redirects to {target}", remedy)
    if answer.status in _OVERLOADED:
        remedy = "wait until the server is ready and idle, then run again"
        what = f"{_status(answer)}: the endpoint takes no requests now"
        return NotReadyError(what, where=answer.url, remedy=remedy)
    return None


def says_no_such_model(answer: Answer) -> str:
    """What the answer says about a missing model; ``""`` if it is not about one."""
    said = _said(answer)
    return said if 400 <= answer.status < 500 and _NO_SUCH_MODEL.search(said) else ""


def may_be_the_model(answer: Answer) -> str:
    """The words of an answer with a status by which servers refuse a model that they do not have; ``""`` for
    any other status."""
    return _status(answer) if answer.status in (400, 404, 422) else ""


def wrong_path(answer: Answer, found_at: str | None, example: str | None, other: str = "") -> SUTError:
    """The error for a path that does not exist.

    ``found_at`` is a base URL that does answer, ``example`` one that would be usual; None if it was tried.
    ``other``: the dialect of one engine whose API is there.
    """
    what = f"{_status(answer)}: no OpenAI-compatible API there"
    if found_at is not None:
        return _error(answer, what, f"the API is at {found_at}: --llm-endpoint={found_at}")
    if other:
        return _error(answer, what, f"it looks like {other}: --llm-api={other}")
    if example is None:
        return _error(answer, what, "check host and port, and which path the server's documentation names")
    return _error(answer, what, f"give the base URL of the API; it usually ends in /v1, like {example}")


def no_completions(answer: Answer, tried: list[str], other: str = "") -> SUTError:
    """The error for a server with a model list and no completions. ``other``: a dialect that works, but was
    not asked for."""
    what = f"{_status(answer)}: the endpoint lists models, but has no {' and no '.join(tried)}"
    if other:
        return _error(answer, what, f"it speaks {other}: --llm-api={other}")
    return _error(answer, what, "choose the dialect that it speaks (--llm-api), or another server")


def no_websocket(answer: Answer) -> SUTError:
    """The error for a handshake without a WebSocket."""
    remedy = (
        f"measure its HTTP API: --llm-endpoint={http_beside(answer.url).rpartition('/')[0]}; or correct the "
        "base URL, below which OpenAI's WebSocket is /responses"
    )
    return _error(answer, f"{_status(answer)}: no WebSocket there", remedy)


def no_grpc_service(answer: Answer, tried: Sequence[str], other: str) -> SUTError:
    """The error for a gRPC server without the API of any dialect ``tried``. ``other``: a dialect whose API it
    has."""
    what = f"{_status(answer)}: it has not the API of {', '.join(tried)}"
    if other:
        return _error(answer, what, f"it speaks {other}: --llm-api={other}")
    return _error(answer, what, "check the port; if it has an API over HTTP, measure that (--llm-endpoint)")


def no_model_list(answer: Answer) -> SUTError:
    """The error for an answer to the request for the model list that is none."""
    if not 200 <= answer.status < 300:
        return or_named_model(unusable(answer))
    kind = answer.content_type or "an answer without a content type"
    what = f"not an OpenAI-compatible endpoint: {kind} instead of a model list: {_excerpt(answer)}"
    return or_named_model(_error(answer, what, "check host, port and path"))


def or_named_model(error: SUTError) -> SUTError:
    """The error, with the remedy for an API without a model list."""
    remedy = f"{error.remedy}; if the API has no model list, name the model: --llm-model"
    return type(error)(error.what, where=error.where, remedy=remedy)


def not_streamed(answer: Answer, other: str = "") -> SUTError:
    """The error for a successful answer that is no stream of the dialect. ``other``: a dialect of which it is
    one."""
    if other:
        what = f"the answer is a stream of another dialect, {other}"
        return _error(answer, what, f"choose that one: --llm-api={other}")
    kind = answer.content_type or "an answer without a content type"
    if kind == "text/html":
        what = f"not an OpenAI-compatible endpoint: {kind}: {_excerpt(answer)}"
        return _error(answer, what, "check host, port and path in --llm-endpoint")
    if not answer.body.strip():
        remedy = "look at the server's log; send one such request by hand, with the same model and fields"
        return _error(answer, f"HTTP {answer.status} with an empty body: nothing can be measured", remedy)
    what = f"the endpoint answers without streaming: {kind} in one piece: {_excerpt(answer)}"
    remedy = "every figure is taken from the stream: switch streaming on in the server or the gateway"
    return _error(answer, what, remedy)


def no_completion(
    answer: Answer, events: int, said: str | None, other: str = "", problem: str = ""
) -> SUTError:
    """The error for an event stream with an error in it, or with nothing that the dialect knows; ``other`` as
    above. ``problem``: why its first event that cannot be read cannot."""
    if other:
        return not_streamed(answer, other)
    if said is not None:
        return _error(answer, f"the streamed reply is an error: {said}", "look at the server's log")
    if problem:
        what = f"the streamed reply cannot be read: {problem}"
        return _error(answer, what, "mend the server or the gateway")
    what = f"an event stream without a completion in it ({events} events): {_excerpt(answer)}"
    return _error(answer, what, "check the path, and the dialect (--llm-api)")


def no_results(answer: Answer, dialect: str, why: str) -> SUTError:
    """The error for a reply of a non-generative API without results."""
    remedy = "look at the server's log; check that the model is of this kind, and the dialect (--llm-api)"
    return _error(answer, f"the reply is not of the API {dialect}: {why}", remedy)


def in_one_piece(answer: Answer, events: int) -> SUTError:
    """The error for a complete reply in which no message brought a single token."""
    what = f"the endpoint answers without streaming: no message ({events} in all) brings tokens as they come"
    remedy = "every figure is taken from the stream: switch streaming on in the server or the gateway"
    return _error(answer, what, remedy)


def never_ends(answer: Answer, events: int, asked_tokens: int) -> SUTError:
    """The error for a stream that was still going on when our patience was over."""
    what = f"the streamed reply does not end: still open after {events} events"
    what += f", for {asked_tokens} tokens at most"
    remedy = (
        "mend the server: it has to keep to max_tokens, then to send its end marker or to end the response"
    )
    return _error(answer, what, remedy)


def unfinished(answer: Answer, events: int) -> SUTError:
    """The error for a reply that ends without saying so: it cannot be told from one that broke off."""
    what = f"the streamed reply ends without a finish reason ({events} events): {_excerpt(answer)}"
    remedy = (
        "every measured reply would count as truncated: have the server name one, or send its count of "
        "tokens (usage) and [DONE] behind the text; or choose another "
    )
    return _error(answer, what, f"{remedy}dialect (--llm-api)")


@dataclass(frozen=True, slots=True)
class RefusedField:
    """A refused field of a request, with the answer that refuses it."""

    name: str
    answer: Answer


_CHANGES: Mapping[str, Mapping[str, object]] = {
    "max_tokens": {"max_tokens": None, "max_completion_tokens": ASKED_LIMIT},
    "temperature": {"temperature": None},
}
"""What is sent in place of a field that a model refuses, as extra fields: OpenAI's reasoning models, and
whoever speaks like them, take no ``max_tokens``, and no temperature but their own."""


def sent_instead(refused: Sequence[RefusedField]) -> dict[str, object]:
    """The extra fields with which a request can be tried again; empty where none of the refused ones can be
    left out."""
    return {key: value for field in refused for key, value in _CHANGES.get(field.name, {}).items()}


def refused_fields(answer: Answer, sent: bytes) -> list[RefusedField]:
    """The fields of the body ``sent`` that a refusal of its form (400, 422) names."""
    if answer.status not in (400, 422) or is_grpc(answer.url):  # of protobuf all fields are known to be there
        return []
    said = _said(answer)
    named = set(re.findall(r"\w+", said)) - _WORDS if _REFUSES_FIELD.search(said) else set()
    # FastAPI names the fields that it calls extra apart from its message.
    detail = (json_object(answer.body) or {}).get("detail")
    parts = [part for part in detail if isinstance(part, dict)] if isinstance(detail, list) else []
    places = [part.get("loc") for part in parts if part.get("type") == "extra_forbidden"]
    named |= {str(place[-1]) for place in places if isinstance(place, list) and place}
    return [RefusedField(name, answer) for name in json.loads(sent) if name in named]


def refuses_field(refused: RefusedField, extra_body: Mapping[str, object]) -> SUTError:
    """The error for a refused field, with the key that decides whether it is sent."""
    name = refused.name
    if name == "stream_options":
        remedy = 'do not send it: request.omit = ["stream_options"] in the SUT file (--llm-sut)'
    elif name == "ignore_eos":
        remedy = "this engine has none: take request.ignore_eos out of the SUT file, or of llm_sut"
    elif any(name in fields for fields in CHUNK_TOKEN_FIELDS.values()):
        remedy = f"take {name} out of request.extra_body, or request.chunk_tokens out of the SUT file"
    elif name in extra_body:
        remedy = f"take {name} out of request.extra_body in the SUT file, or of llm_sut"
    else:
        remedy = "the load generator always sends it: a gateway before the engine may translate it"
    return _error(refused.answer, f"{_status(refused.answer)}: it refuses the field {name}", remedy)


def unusable(answer: Answer) -> SUTError:
    """The error for any other refusal, in the words of the server."""
    if "https" in _said(answer).lower() and answer.url.startswith("http:"):
        return _error(answer, _status(answer), f"write {answer.url.replace('http:', 'https:', 1)}")
    remedy = "send one such request by hand, with the same model and fields, and mend what the answer says"
    # Gateways say 502 or 500 while the engine behind them loads, and 408 when a request waited in vain.
    kind = NotReadyError if answer.status >= 500 or answer.status in _LATER else SUTError
    return kind(_status(answer), where=answer.url, remedy=remedy)


def _error(answer: Answer, what: str, remedy: str) -> SUTError:
    return SUTError(what, where=answer.url, remedy=remedy)


def _said(answer: Answer) -> str:
    return read_error_body(answer.body)[1]


def _status(answer: Answer) -> str:
    said = _said(answer)
    code = answer.headers.get("grpc-status")
    spoken = None if code is None else transport_called("grpc")
    status = f"HTTP {answer.status}" if spoken is None else load(spoken.preflight["status"])(code).text
    return status + (f" ({said})" if said else "")


def _excerpt(answer: Answer) -> str:
    return shorten(beginning(answer.body.decode("utf-8", errors="replace"), 480), 120) or "empty"
