"""Waits for an endpoint that is still starting: its health page if it has one, its models, one token."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

from pytest_llmbench.endpoint_urls import is_grpc
from pytest_llmbench.errors import NotReadyError, SUTError
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import Answer, ControlPlane
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.probes.model_list import base_candidates, below
from pytest_llmbench.registry import load, required

T = TypeVar("T")

PAUSE_S = 1.0
"""Seconds between two attempts."""
_HEALTH_S = 5.0
_LOADING = 503
_HINT = "if it is still starting, --llm-wait=300 waits for it"


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait for an endpoint, by which clock, and who is told meanwhile."""

    within_s: float = 0.0
    """Seconds from the first attempt within which further ones are made; 0: there is only one."""
    say: Callable[[str], None] = lambda _: None
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def when_ready(attempt: Callable[[], T], patience: Patience) -> T:
    """The result of ``attempt``, which is made every second as long as it raises NotReadyError.

    Any other error ends the waiting. An attempt that has begun is not cut off: it has deadlines of its own.
    Raises the last NotReadyError, with how long was waited, when the time is over.
    """
    began_s = patience.monotonic_s()
    while True:
        try:
            return attempt()
        except NotReadyError as error:
            waited_s = patience.monotonic_s() - began_s
            if waited_s >= patience.within_s:
                raise _given_up(error, patience.within_s, waited_s) from None
            patience.say(
                f"waiting for {error.where}: {error.what}; {waited_s:.0f} s of {patience.within_s:g} s"
            )
            patience.sleep(min(PAUSE_S, patience.within_s - waited_s))


def _given_up(error: NotReadyError, within_s: float, waited_s: float) -> NotReadyError:
    if not within_s:
        return NotReadyError(error.what, where=error.where, remedy=f"{error.remedy}; {_HINT}")
    what = f"not ready after {waited_s:.0f} s (--llm-wait={within_s:g}); at last: {error.what}"
    return NotReadyError(what, where=error.where, remedy=error.remedy)


def refuse_while_loading(endpoint: str, access: Access) -> None:
    """Ask the health page of the server, ``/health`` beside the API.

    Raises NotReadyError for a status of 503. Any other answer is that of a server that is healthy, or has no
    such page; none within 5 s too, since some gateways try all their engines first. Whoever asks for more
    meets a server that is not there at all, and can say more about it. A gRPC server is asked by the method
    of its API that tells whether it is ready.
    """
    hasty = replace(access, answer_s=min(access.answer_s, _HEALTH_S))
    with ControlPlane(endpoint, hasty) as control:
        try:
            answer = _says_it_is_loading(control, endpoint)
        except SUTError:
            return
    if answer is not None:
        remedy = "look at the server's log: it says itself that it is not ready"
        said = (
            "its health method says that it is not ready"
            if is_grpc(endpoint)
            else f"HTTP {_LOADING} of its health page"
        )
        raise NotReadyError(said, where=answer.url, remedy=remedy)


def why_not_ready(endpoint: str, access: Access) -> str:
    """Why a gRPC server is not ready, in words; empty if it is, as far as its API can say."""
    root = urlsplit(endpoint)._replace(path="", query="", fragment="").geturl()
    try:
        with ControlPlane(root, access) as control:
            answer = _says_it_is_loading(control, root)
    except SUTError as error:
        return error.what
    return "" if answer is None else f"its health method says that it is not ready ({answer.status})"


def _says_it_is_loading(control: ControlPlane, endpoint: str) -> Answer | None:
    if is_grpc(endpoint):
        says_it_is_loading = load(required("grpc", "--llm-endpoint").preflight["loading"])
        found: Answer | None = says_it_is_loading(control, base_candidates(endpoint)[0])
        return found
    answer = control.get_or_failure(health_url(endpoint))
    return answer if isinstance(answer, Answer) and answer.status == _LOADING else None


def health_url(endpoint: str) -> str:
    """The URL of the health page: ``https://host/health`` for ``https://host/v1`` and ``https://host``."""
    return below(server_root(endpoint), "/health")
