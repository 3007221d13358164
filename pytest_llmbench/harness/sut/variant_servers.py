"""Declared variants as servers: another URL, a launched process, a control call, other requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.address import Address, reach
from pytest_llmbench.harness.sut.declared import Variant
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened
from pytest_llmbench.harness.sut.launched import LOCAL_URL, Launch, LaunchedServer, free_port
from pytest_llmbench.harness.sut.variant_executor import VariantExecutor
from pytest_llmbench.http_client import PORT, http_beside, is_grpc
from pytest_llmbench.model.facts import Facts, Origin, RequestFact
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.control_plane import ControlPlane
from pytest_llmbench.probes.sut_schema import Call, FurtherRequest, Reset
from pytest_llmbench.wire.error_replies import beginning

_SHOWN = 200


def perform(call: Call, server_url: str, access: Access, *, where: str) -> None:
    """Make the call and see that it succeeded. Raises SUTError with the status and what the server said, and
    SuiteError for a path of a gRPC server, which has none."""
    if call.url is None and is_grpc(server_url):
        raise SuiteError(
            f"a gRPC server has no {call.method} {call.path}",
            where=where,
            remedy="give the url of its HTTP server instead of a path, or leave out the call",
        )
    url = call.url if call.url is not None else _origin(server_url) + str(call.path)
    body = None if call.body is None else json.dumps(call.body).encode()
    if _origin(url) != _origin(server_url):
        access = replace(access, credentials=Credentials())  # a key is for its server, nobody else
    with ControlPlane(url, access) as control:
        answer = control.call(call.method, url, body)
    good = 200 <= answer.status < 300 if call.expect is None else answer.status == call.expect
    if not good:
        wanted = "200 to 299" if call.expect is None else str(call.expect)
        said = beginning(answer.body.decode(errors="replace").strip(), _SHOWN)
        raise SUTError(
            f"{call.method} {answer.url} answered with status {answer.status}, not {wanted}"
            + (f": {said}" if said else ""),
            where=where,
            remedy="correct the call in the SUT file, or read the server's log",
        )


def _origin(url: str) -> str:
    """The root URL of the server; for a WebSocket server that of its HTTP side."""
    parts = urlsplit(http_beside(url))
    return f"{parts.scheme}://{parts.netloc}"


def server_of(variant: Variant, executor: VariantExecutor, sut_access: SUTAccess) -> Endpoint:
    """The endpoint of a variant by URL, command, control call or request, beside the SUT that ``executor``
    has brought up."""
    way, table = variant.way, variant.table
    base = executor.servers[""]

    def at_the_sut() -> str:
        return executor.base.base_url

    if way in ("url", "command"):
        own: dict[str, Any] = {"server": variant.name, "access": sut_access, "known": executor.base.facts}
        if way == "command":
            own |= {"url": table.url or LOCAL_URL, "restarts": True, "exclusive": not table.concurrent}
            return Launched(variant.name, variant.facts, declared=variant, **own)
        url = str(table.url)
        empties = reset_of(table.reset, lambda: url, sut_access, variant.where)
        return Address(variant.name, variant.facts, url=url, reset=empties, **own)
    empties = reset_of(table.reset, at_the_sut, sut_access, variant.where) or base.reset
    as_the_sut: dict[str, Any] = {"restarts": base.restarts, "reset": empties}
    if table.request is not None:
        body = {**sut_access.asking.extra_body, **table.request.extra_body}
        facts = variant.facts | Facts.of(Origin.DECLARED, {RequestFact.VARIANT_BODY: body}, variant.where)
        as_the_sut |= {"url": at_the_sut, "access": sut_access}
        return Asked(variant.name, facts, request=table.request, **as_the_sut)

    def call(key: str, called: Call) -> Callable[[], None]:
        where = f"{variant.where}: {key}"
        return lambda: perform(called, at_the_sut(), sut_access.access, where=where)

    enter = None if table.control is None else call("control", table.control)
    leave = None if table.restore is None else call("restore", table.restore)
    return Endpoint(variant.name, variant.facts, enter=enter, leave=leave, **as_the_sut)


def reset_of(
    reset: Reset, url: Callable[[], str], sut_access: SUTAccess, where: str
) -> Callable[[], None] | None:
    """A call that empties the caches of the server at ``url``; None if none is declared."""
    if reset.path is None:
        return None
    call = Call(method=reset.method, path=reset.path)
    return lambda: perform(call, url(), sut_access.access, where=f"{where}: reset")


@dataclass
class Launched(Address):
    """A server that is started for a variant and ended with it, each time at another port."""

    declared: Variant = field(kw_only=True)

    def open(self) -> Opened:
        port = str(free_port())
        url = self.url.replace(PORT, port)
        server = LaunchedServer.start(_launch(self.declared, url, port))
        try:
            reached = reach(url, replace(self.access, pid=server.pid))
        except BaseException:
            server.stop()
            raise
        facts = reached.facts | server.facts
        return replace(reached, facts=facts, close=server.stop, ended=lambda: server.ended)


def _launch(variant: Variant, url: str, port: str) -> Launch:
    table = variant.table

    def beside(name: str | None) -> Path | None:
        return None if name is None else variant.folder / Path(name).expanduser()

    return Launch(
        where=variant.where,
        command=[word.replace(PORT, port) for word in table.command or ()],
        health_url=f"{_origin(url)}{table.health.path}",
        health_timeout_s=table.health.timeout_s,
        cwd=beside(table.cwd) or variant.folder,
        env={name: value.replace(PORT, port) for name, value in table.env.items()},
        log=beside(table.log),
    )


@dataclass
class Asked(Endpoint):
    """The server of the SUT itself, asked by other requests."""

    url: Callable[[], str] = field(kw_only=True)
    access: SUTAccess = field(kw_only=True)
    request: FurtherRequest = field(kw_only=True)

    def open(self) -> Opened:
        names = {name: reference.env for name, reference in self.request.headers.items()}
        return reach(self.url(), self.access.asked_differently(self.request.extra_body, names))
