"""The endpoint's model list: where its API begins, and which model to ask for."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard
from urllib.parse import urlsplit

import httpx

from pytest_llmbench.errors import NotReadyError, SuiteError, SUTError
from pytest_llmbench.http_client import (
    GRPC_SCHEMES,
    OF_HTTP,
    SCHEME,
    WEBSOCKET_SCHEMES,
    is_grpc,
    over_http,
    socket_mistakes,
    socket_path,
    without_keys,
)
from pytest_llmbench.probes.control_plane import Answer
from pytest_llmbench.redaction import without_credentials
from pytest_llmbench.registry import transport_for

_VERSIONED = re.compile(r"/v\d\w*$")
_METHOD_PATHS = re.compile(r"/(chat/completions|completions|responses|messages|models)$")
_LISTED_AT_MOST = 20
_LONGEST_NAME = 300


@dataclass(frozen=True, slots=True)
class ModelList:
    """The models of an endpoint, whose API begins at ``base_url``."""

    base_url: str
    entries: tuple[Mapping[str, Any], ...]
    server: str = ""
    """Value of the answer's ``server`` header; empty without one."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(str(entry["id"]) for entry in self.entries)

    def entry(self, name: str) -> Mapping[str, Any]:
        return next((entry for entry in self.entries if entry["id"] == name), {})


def base_candidates(endpoint: str) -> list[str]:
    """The URLs at which the API may begin, most likely first.

    Raises SuiteError for what is no URL of an HTTP endpoint, nor of one of WebSockets or gRPC, which has no
    path.

    A path that ends in a version is taken as it is; any other is tried with ``/v1`` as well.
    """
    try:
        parts = urlsplit(endpoint.strip())
        port = parts.port
        httpx.URL(over_http(endpoint.strip()))
    except (ValueError, httpx.InvalidURL) as error:
        raise _no_url(endpoint, str(error)) from error
    unix = parts.scheme == SCHEME
    if unix and (mistakes := socket_mistakes(socket_path(endpoint))):
        raise _no_url(endpoint, mistakes[0])
    spoken = parts.scheme in (*OF_HTTP, *WEBSOCKET_SCHEMES, *GRPC_SCHEMES) or transport_for(parts.scheme)
    if not unix and (not spoken or not parts.hostname or port == 0):
        raise _no_url(
            endpoint, "an endpoint is http(s)://host[:port][/path], ws(s)://… or grpc(s)://host:port"
        )
    if parts.username is not None or parts.password is not None:
        safe = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise SuiteError(
            "the URL holds credentials",
            where=safe,
            remedy="keep keys in the environment (LLM_API_KEY) or in a file, not on the command line",
        )
    safe, keys = without_keys(endpoint)
    if keys:
        raise SuiteError(
            f"the URL holds a key, in the query parameter {', '.join(keys)}",
            where=without_credentials(endpoint),
            remedy=f"write {without_credentials(safe)}, and put the key into the environment (LLM_API_KEY) "
            "or into the file of --llm-api-key-file",
        )
    path = parts.path.rstrip("/")
    if is_grpc(endpoint):
        if path or parts.query or port is None:
            raise _no_url(endpoint, "a gRPC server is grpc(s)://host:port, with a port and without a path")
        return [parts._replace(path="", fragment="").geturl()]
    paths = [path] if _VERSIONED.search(path) else [path, f"{path}/v1"]
    if not path:
        paths.reverse()  # some servers list models at both; the version is the documented one
    return [parts._replace(path=path, fragment="").geturl() for path in paths]


def below(base_url: str, path: str) -> str:
    """``path`` appended to the path of ``base_url``, before its query."""
    parts = urlsplit(base_url)
    return parts._replace(path=parts.path + path).geturl()


def suggested_bases(endpoint: str) -> list[str]:
    """Base URLs that the author may have meant if none of the candidates answers, the usual one last."""
    parts = urlsplit(endpoint.strip())
    path = parts.path.rstrip("/")
    cut = _METHOD_PATHS.sub("", path)
    paths = [cut, "/v1"] if cut not in (path, "/v1") else ["/v1"]
    return [parts._replace(path=path, fragment="").geturl() for path in paths]


def read_model_list(base_url: str, answer: Answer) -> ModelList | None:
    """The model list in an answer to ``GET …/models``; ``None`` if it contains none."""
    if answer.status != 200:
        return None
    try:
        payload = json.loads(answer.body)
    except (ValueError, RecursionError):
        return None
    data = payload  # some servers have the bare list
    if isinstance(payload, dict):
        data = next((payload[key] for key in ("data", "models") if key in payload), None)
        if data is None and payload.get("object") == "list":
            data = []  # as Go writes an empty one
    if not isinstance(data, list):
        return None
    named = [{"id": entry} if isinstance(entry, str) else entry for entry in data]
    entries = tuple(entry for entry in named if isinstance(entry, dict) and is_name(entry.get("id")))
    return ModelList(base_url, entries, answer.headers.get("server", ""))


def is_name(given: object) -> TypeGuard[str]:
    """Whether it is a model name that can be asked for and shown."""
    return isinstance(given, str) and given.isprintable() and 0 < len(given) <= _LONGEST_NAME


def choose_model(listed: ModelList, wanted: str | None, *, complete: bool = False) -> str:
    """The model to use: ``wanted``, or the only one there is if none is wanted. Raises SUTError otherwise.

    Adapters (LoRA), which are listed with the model that is their parent, are not chosen. A list need not
    hold every model that is served, as behind wildcards and aliases of a gateway: one that is not there is
    asked for all the same, unless the list is ``complete``.
    """
    names, where = listed.names, listed.base_url
    own = [str(entry["id"]) for entry in listed.entries if entry.get("parent") not in names]
    if wanted is None and len(own) == 1:
        return own[0]
    if not names:
        if wanted is not None:
            return wanted
        # A router lists none until the first engine has joined it.
        remedy = "load one, or name it: --llm-model"
        raise NotReadyError("the endpoint lists no model", where=where, remedy=remedy)
    if wanted is None:
        what = f"the endpoint serves {len(names)} models: choose one of {enumerated(names)}"
        raise SUTError(what, where=where, remedy=f"choose one, for example --llm-model={names[0]}")
    if complete and wanted not in names:
        raise unknown_model(wanted, names, where)
    return wanted


def unknown_model(wanted: str, names: Sequence[str], where: str, said: str = "") -> SUTError:
    """The error for a model that the endpoint does not have."""
    # A name is often given without the organisation it is listed under, or the other way round.
    short = {name.rpartition("/")[2].lower(): name for name in names}
    close = difflib.get_close_matches(wanted.rpartition("/")[2].lower(), short, n=1)
    hint = f"did you mean {short[close[0]]}? " if close else ""
    listing = f"it serves {enumerated(names)}" if names else "choose a model that the endpoint has"
    what = f"the endpoint has no model {wanted!r}" + (f": {said}" if said else "")
    return SUTError(what, where=where, remedy=f"{hint}{listing} (--llm-model)")


def enumerated(names: Sequence[str]) -> str:
    """The first of these names, and how many more there are."""
    more = len(names) - _LISTED_AT_MOST
    return ", ".join(names[:_LISTED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _no_url(endpoint: str, reason: str) -> SuiteError:
    shown = endpoint.strip().rpartition("@")[2].partition("?")[0]
    like, kind = ("http://localhost:8000/v1", "an HTTP endpoint")
    if endpoint.strip().startswith("grpc"):
        like, kind = "grpc://localhost:8033", "a gRPC server"
    remedy = f"write it like {like}"
    return SuiteError(f"{shown!r} is not a URL of {kind}: {reason}", where="--llm-endpoint", remedy=remedy)
