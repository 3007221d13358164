"""Declared variants as servers: another URL, a launched process, a control call, other requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from pytest_llmbench.endpoint_urls import http_beside, is_grpc
from pytest_llmbench.errors import SuiteError, SUTError
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.declared import Variant
from pytest_llmbench.harness.sut.endpoint import OnProgress, ReachedEndpoint, reach
from pytest_llmbench.harness.sut.launched import LOCAL_URL, Launch, LaunchedServer, free_port
from pytest_llmbench.harness.sut.variant_executor import RunningVariant, VariantServer
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.control_plane import ControlPlane
from pytest_llmbench.probes.sut_schema import Call, Reset
from pytest_llmbench.wire.error_replies import beginning

_SHOWN = 200


def perform(call: Call, server_url: str, access: Access, *, where: str) -> None:
    """Make the call and see that it succeeded. Raises SUTError with the status and what the server said, and
    SuiteError for a path of a gRPC server, which has none."""
    if call.url is None and is_grpc(server_url):
        raise SuiteError(
            f"a gRPC server takes no {call.method} {call.path}",
            where=where,
            remedy="give the url of its HTTP in place of a path, or leave the call out",
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
            remedy="correct the call in the SUT file, or look at the server's log",
        )


def empty_caches(reset: Reset, server_url: str, access: Access, *, where: str) -> None:
    """Make the call of a ``reset`` table. Raises SUTError if it fails."""
    perform(Call(method=reset.method, path=reset.path), server_url, access, where=f"{where}: reset")


def _origin(url: str) -> str:
    """The root URL of the server; for a WebSocket server that of its HTTP side."""
    parts = urlsplit(http_beside(url))
    return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True)
class VariantContext:
    """The SUT to which the variants belong, once it has answered."""

    sut_access: SUTAccess
    url: Callable[[], str]
    """Returns the URL at which the SUT answers now."""
    facts: Facts
    base: VariantServer
    on_progress: OnProgress


def server_of(variant: Variant, context: VariantContext) -> VariantServer:
    """The server of a variant by URL, command, control call or request."""
    way = variant.table.way
    if way == "control":
        return _controlled(variant, context)
    if way == "request":
        return _asked(variant, context)
    return _launched(variant, context) if way == "command" else _elsewhere(variant, context)


def reset_of(
    reset: Reset, url: Callable[[], str], sut_access: SUTAccess, where: str
) -> Callable[[], None] | None:
    """A call that empties the caches of the server at ``url``; None if none is declared."""
    if reset.path is None:
        return None
    return lambda: empty_caches(reset, url(), sut_access.access, where=where)


def _elsewhere(variant: Variant, context: VariantContext) -> VariantServer:
    url = str(variant.table.url)

    def open_() -> RunningVariant:
        reached = reach(url, context.sut_access, context.on_progress)
        return RunningVariant(reached.executor, _found(reached, context))

    empties = reset_of(variant.table.reset, lambda: url, context.sut_access, variant.where)
    return VariantServer(variant.name, open_, variant.facts, server=variant.name, reset=empties)


def _launched(variant: Variant, context: VariantContext) -> VariantServer:
    def open_() -> RunningVariant:
        port = free_port()
        url = variant.with_port(variant.table.url or LOCAL_URL, port)
        server = LaunchedServer.start(_launch(variant, url, port))
        try:
            reached = reach(url, context.sut_access, context.on_progress)
        except BaseException:
            server.stop()
            raise
        return RunningVariant(
            reached.executor, _found(reached, context), close=server.stop, ended=lambda: server.ended
        )

    return VariantServer(
        variant.name,
        open_,
        variant.facts,
        server=variant.name,
        restarts=True,
        exclusive=not variant.table.concurrent,
    )


def _launch(variant: Variant, url: str, port: int) -> Launch:
    table = variant.table
    return Launch(
        where=variant.where,
        command=[variant.with_port(word, port) for word in table.command or ()],
        health_url=f"{_origin(url)}{table.health.path}",
        health_timeout_s=table.health.timeout_s,
        cwd=_beside(variant, table.cwd) or variant.folder,
        env={name: variant.with_port(value, port) for name, value in table.env.items()},
        log=_beside(variant, table.log),
    )


def _beside(variant: Variant, name: str | None) -> Path | None:
    return None if name is None else variant.folder / Path(name).expanduser()


def _controlled(variant: Variant, context: VariantContext) -> VariantServer:
    table, access = variant.table, context.sut_access.access
    assert table.control is not None
    enter, leave = table.control, table.restore
    own = reset_of(table.reset, context.url, context.sut_access, variant.where)
    return VariantServer(
        variant.name,
        None,
        variant.facts,
        restarts=context.base.restarts,
        reset=own or context.base.reset,
        enter=lambda: perform(enter, context.url(), access, where=f"{variant.where}: control"),
        leave=None
        if leave is None
        else lambda: perform(leave, context.url(), access, where=f"{variant.where}: restore"),
    )


def _asked(variant: Variant, context: VariantContext) -> VariantServer:
    request = variant.table.request
    assert request is not None
    header_env: Mapping[str, str] = {name: reference.env for name, reference in request.headers.items()}

    def open_() -> RunningVariant:
        sut_access = context.sut_access.asked_differently(request.extra_body, header_env)
        return RunningVariant(reach(context.url(), sut_access, context.on_progress).executor)

    own = reset_of(variant.table.reset, context.url, context.sut_access, variant.where)
    body = {**context.sut_access.asking.extra_body, **request.extra_body}
    sent = Facts.of(Origin.DECLARED, {"request.variant_body": body}, variant.where)
    return VariantServer(
        variant.name,
        open_,
        variant.facts | sent,
        restarts=context.base.restarts,
        reset=own or context.base.reset,
    )


def _found(reached: ReachedEndpoint, context: VariantContext) -> Facts:
    """Facts that the variant's own endpoint showed and the SUT's did not."""
    from pytest_llmbench.harness.sut.embedded import differing

    return differing(context.facts, reached.facts)
