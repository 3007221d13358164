"""Before a load over gRPC: the server's description of itself (which API it has, its models, its engine,
whether it is ready), and one call that is not measured.

Methods that cost no tokens, asked once each. They are those of the services whose dialects we have; the
standard ``grpc.health.v1.Health`` says nothing of an API and is not asked.

A call, the counterpart of a POST over HTTP, goes over a socket and a TLS context like those of every other
request, so that certificates, deadlines and errors are the same. There are no retries, and no proxies.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
from google.protobuf.message import DecodeError, Message
from smg_grpc_proto.generated import sglang_scheduler_pb2 as sglang
from smg_grpc_proto.generated import vllm_engine_pb2 as vllm
from tritonclient.grpc import service_pb2 as kserve

from pytest_llmbench.errors import SUTError
from pytest_llmbench.extras.grpc import OVER_GRPC
from pytest_llmbench.extras.grpc.messages import MessageDecoder, prefixed, status_of
from pytest_llmbench.extras.http2.client import Http2Client, Stream, request_bytes
from pytest_llmbench.http_client import call_headers
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.probes import endpoint_errors as errors
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import (
    Answer,
    ControlPlane,
    CutOffError,
    PlainSocket,
    TransportReply,
)
from pytest_llmbench.probes.model_list import ModelList, below, is_name, unknown_model
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import Dialect

_LONGEST_VERSION = 80
_INPUT, _OUTPUT = "text_input", "text_output"


@dataclass(frozen=True, slots=True)
class Introduced:
    """A server that has described itself."""

    dialect: Dialect
    listed: ModelList
    facts: Mapping[str, Any]
    """The facts by their dotted names, as the server states them."""
    source: str
    """The URL of the method that the facts are from."""


@dataclass(frozen=True, slots=True)
class _Service:
    """One API, with two methods that every server of it has."""

    introduction: str
    """Name of a method whose request is empty: a server without it does not have this API."""
    read: Callable[[_Asked, Answer], tuple[ModelList, dict[str, Any]]]
    readiness: str
    """Name of the method that tells whether the server is ready."""
    is_ready: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A server, with what is asked of it."""

    control: ControlPlane
    base: str
    model: str | None
    service: str = field(default="")
    """Beginning of the paths of its methods."""

    def answer(self, method: str, message: bytes = b"") -> Answer:
        return self.control.invoke(below(self.base, f"{self.service}/{method}"), message)

    def told(self, method: str, kind: type[Message], message: bytes = b"") -> Any:
        """The message that the method returns; an empty one if there is no such method, or it returns
        something else."""
        answer = self.answer(method, message)
        return _read(answer.body, kind) if answer.status == 200 else kind()


def introduced(control: ControlPlane, base: str, api: str, model: str | None) -> Introduced:
    """The server's description of itself: its API is ``api``, or with ``auto`` the first that it knows.

    Raises SuiteError for a dialect that is none of gRPC, SUTError for a server without this API or the model.
    """
    wanted = OVER_GRPC if api == "auto" else (dialect_at(base, api).name,)
    refused: Answer | None = None
    for name in wanted:
        spoken, service, asked = dialect_at(base, name), _SERVICES[name], _asked(control, base, name, model)
        answer = asked.answer(service.introduction)
        if answer.status in errors.NO_SUCH_PATH:
            refused = refused or answer
            continue
        refusal = errors.outright_refusal(answer, control.key_source)
        if refusal is not None:
            raise refusal
        if answer.status != 200:
            raise errors.unusable(answer)
        listed, facts = service.read(asked, answer)
        return Introduced(spoken, listed, facts, answer.url)
    assert refused is not None
    others = (
        name
        for name in OVER_GRPC
        if name not in wanted
        and _asked(control, base, name, None).answer(_SERVICES[name].introduction).status == 200
    )
    raise errors.no_grpc_service(refused, wanted, next(others, ""))


def says_it_is_loading(control: ControlPlane, base: str) -> Answer | None:
    """The answer by which the server says that it is not ready; ``None`` if it does not say so.

    The first API that the server has is asked.
    """
    for name in OVER_GRPC:
        service, asked = _SERVICES[name], _asked(control, base, name, None)
        answer = asked.answer(service.readiness)
        if answer.status in errors.NO_SUCH_PATH:
            continue
        ready = answer.status == 200 and service.is_ready(answer.body)
        return None if ready else answer
    return None


def _asked(control: ControlPlane, base: str, name: str, model: str | None) -> _Asked:
    return _Asked(control, base, model, dialect_at(base, name).path.rpartition("/")[0])


def _read(body: bytes, kind: type[Message]) -> Any:
    """The only message of an answer; an empty one if it contains none of this kind."""
    events = MessageDecoder().feed(body, 0, 0)
    if not events or events[0].problem:
        return kind()
    try:
        return kind.FromString(events[0].data.encode("latin-1"))
    except DecodeError:
        return kind()


def _vllm(asked: _Asked, answer: Answer) -> tuple[ModelList, dict[str, Any]]:
    info = _read(answer.body, vllm.GetModelInfoResponse)
    server = asked.told("GetServerInfo", vllm.GetServerInfoResponse)
    loads = asked.told("GetLoads", vllm.GetLoadsResponse)
    kind = server.server_type
    # vLLM's own server gives its version and no type (0.32).
    owner = "vllm" if kind.startswith("vllm") or (loads.version and not kind) else ""
    return _one_model(asked, info, owner), _version(loads.version)


def _sglang(asked: _Asked, answer: Answer) -> tuple[ModelList, dict[str, Any]]:
    info = _read(answer.body, sglang.GetModelInfoResponse)
    server = asked.told("GetServerInfo", sglang.GetServerInfoResponse)
    return _one_model(asked, info, "sglang" if server.sglang_version else ""), _version(server.sglang_version)


def _one_model(asked: _Asked, info: Any, owner: str) -> ModelList:
    """The model of an engine that has one: the name under which it is served, else its path."""
    names = [name for name in (info.served_model_name, info.model_path) if is_name(name)]
    if not names:
        return ModelList(asked.base, ())
    name = asked.model if asked.model in names else names[0]
    entry = {"id": name, "root": names[-1], "owned_by": owner, "max_model_len": info.max_context_length}
    return ModelList(asked.base, (entry,))


def _version(said: str) -> dict[str, Any]:
    known = said.isprintable() and 0 < len(said) <= _LONGEST_VERSION
    return {SUTFact.SOFTWARE_VERSION: said} if known else {}


def _kserve(asked: _Asked, _: Answer) -> tuple[ModelList, dict[str, Any]]:
    server = asked.told("ServerMetadata", kserve.ServerMetadataResponse)
    facts: dict[str, Any] = {}
    if server.name.lower() == "triton":
        facts = {SUTFact.SOFTWARE_ENGINE: "Triton", **_version(server.version)}
    wanted = kserve.ModelMetadataRequest(name=asked.model or "").SerializeToString()
    about = asked.answer("ModelMetadata", wanted)
    if said := errors.says_no_such_model(about):
        if asked.model is not None:
            raise unknown_model(asked.model, _repository(asked), asked.base, said)
    elif about.status == 200:
        told = _read(about.body, kserve.ModelMetadataResponse)
        if is_name(told.name):
            _require_text(told, about)
            return ModelList(asked.base, ({"id": told.name},)), facts
    return ModelList(asked.base, tuple({"id": name} for name in _repository(asked))), facts


def _repository(asked: _Asked) -> list[str]:
    """Names of the models that are ready, if the server has such a list."""
    ready = kserve.RepositoryIndexRequest(ready=True).SerializeToString()
    index = asked.told("RepositoryIndex", kserve.RepositoryIndexResponse, ready)
    return [model.name for model in index.models if is_name(model.name)]


def _require_text(told: Any, answer: Answer) -> None:
    """Raise SUTError for a model without the tensors of text; one that does not list its tensors may have
    them."""
    inputs, outputs = ([tensor.name for tensor in tensors] for tensors in (told.inputs, told.outputs))
    if (inputs and _INPUT not in inputs) or (outputs and _OUTPUT not in outputs):
        raise SUTError(
            f"the model {told.name} takes {', '.join(inputs) or 'nothing'} and gives "
            f"{', '.join(outputs) or 'nothing'}, not {_INPUT} and {_OUTPUT}",
            where=answer.url,
            remedy="name the model that takes text, such as the ensemble (--llm-model)",
        )


def _healthy(kind: type[Message]) -> Callable[[bytes], bool]:
    return lambda body: bool(_read(body, kind).healthy)


_SERVICES: Mapping[str, _Service] = {
    "vllm-grpc": _Service("GetModelInfo", _vllm, "HealthCheck", _healthy(vllm.HealthCheckResponse)),
    "sglang-grpc": _Service("GetModelInfo", _sglang, "HealthCheck", _healthy(sglang.HealthCheckResponse)),
    "kserve-grpc": _Service(
        "ServerLive",
        _kserve,
        "ServerReady",
        lambda body: bool(_read(body, kserve.ServerReadyResponse).ready),
    ),
}

_MOST_BYTES = 4 * 1024 * 1024
_CONTENT_TYPE = "application/grpc"
_TLS_ALERT = b"\x15\x03"


def call(
    url: str, message: bytes, *, headers: Mapping[str, str], access: Access, tls: ssl.SSLContext
) -> TransportReply:
    """Open a connection, call the method that is the path of ``url`` with one message, and read the reply to
    its end, or to the limits: messages, each preceded by its length, or the message of a failed call.

    Raises httpx.RequestError, as a request over HTTP does, and SUTError for a server that speaks no gRPC.
    """
    if urlsplit(url).scheme == "grpcs":
        tls.set_alpn_protocols(["h2"])
    with PlainSocket(url, access, tls) as sock:
        return _Exchange(sock, url).reply_to(message, headers)


@dataclass(slots=True)
class _Exchange:
    """A call that is the only one on its connection."""

    sock: PlainSocket
    url: str
    http2: Http2Client = field(default_factory=Http2Client)
    body: bytearray = field(default_factory=bytearray)

    def reply_to(self, message: bytes, headers: Mapping[str, str]) -> TransportReply:
        parts = urlsplit(self.url)
        head = [
            (":method", "POST"),
            (":scheme", _http(parts.scheme)),
            (":authority", parts.netloc),
            (":path", parts.path),
            *call_headers(headers).items(),
        ]
        opening = self.http2.opening()
        made = self.http2.begin(request_bytes(head, prefixed(message)))
        self._send(opening + self.http2.to_send())
        ended = self._read_to_end(made)
        self._send(self.http2.closing(), or_not=True)
        got = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in made.headers)
        if made.status != 200:  # of something between that is HTTP and no gRPC
            return TransportReply(made.status or 502, got, bytes(self.body))
        kind = dict(got).get("content-type", "")
        if not kind.startswith(_CONTENT_TYPE):
            raise self._no_grpc(f"its answer is {kind or 'without a content type'}")
        told = status_of(made.trailers) if ended else None
        if told is None or told.is_ok:
            return TransportReply(200, got, bytes(self.body), ended)
        kept = [(name, value) for name, value in got if name not in ("grpc-status", "content-type")]
        kept.append(("grpc-status", told.code))
        kept += [("retry-after", told.retry_after)] if told.retry_after else []
        return TransportReply(told.http_status, tuple(kept), told.message.encode())

    def _read_to_end(self, made: Stream) -> bool:
        """Read the reply. True if it was read to its end, False if to a limit."""
        while not made.is_over:
            if len(self.body) > _MOST_BYTES:
                return False
            try:
                data = self.sock.receive()
            except httpx.ReadTimeout:
                if not self.body:
                    raise
                return False
            if not data and made.headers:
                begun = f"HTTP {made.status}, and after {len(self.body)} bytes of the answer"
                raise CutOffError.behind(begun, "the call was not complete")
            if not data:
                raise httpx.ReadError("the connection was closed before the end of the call")
            for stream in self.http2.feed(data).progress:
                self.body += stream.data
            if self.http2.problem and data.startswith(_TLS_ALERT):
                raise httpx.RemoteProtocolError(self.http2.problem)  # which has the port asked for TLS
            if self.http2.problem:
                raise self._no_grpc(self.http2.problem)
            self._send(self.http2.to_send(), or_not=made.is_over)
        if made.reset or made.unprocessed:
            raise httpx.RemoteProtocolError(f"the call was broken off: {made.reset or self.http2.going_away}")
        return True

    def _send(self, data: bytes, *, or_not: bool = False) -> None:
        """Send bytes. ``or_not``: the call is over, so that the server may have left."""
        try:
            self.sock.send(data)
        except (httpx.WriteTimeout, httpx.WriteError):
            if not or_not:
                raise

    def _no_grpc(self, what: str) -> SUTError:
        parts = urlsplit(self.url)
        return SUTError(
            f"no gRPC there: {what}",
            where=self.url,
            remedy="give the port of the server's gRPC; an API over HTTP is "
            f"--llm-endpoint={_http(parts.scheme)}://{parts.netloc}/v1",
        )


def _http(scheme: str) -> str:
    return "https" if scheme == "grpcs" else "http"
