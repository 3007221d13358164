"""``python:module:attr``: an async generator function or an ASGI application, called within this process.

It runs in the event loop of the load generator, in a thread of pytest's own process. There is no network and
no server: what is measured is the callable, and what it computes delays the generator beside it.
"""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pytest_llmbench.errors import LLMBenchError, SuiteError, SUTError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange, abandon
from pytest_llmbench.generator.in_process_transports import (
    AsgiTransport,
    CallableTransport,
    Lifespan,
    PythonPieces,
    TaskTransport,
    parameters_of,
)
from pytest_llmbench.generator.loop_thread import LoopThread
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.harness.execution import Executor, with_facts
from pytest_llmbench.harness.sut.access import SUTAccess
from pytest_llmbench.harness.sut.endpoint import Endpoint, Opened, nothing
from pytest_llmbench.model.facts import (
    EndpointFact,
    Facts,
    GeneratorFact,
    Origin,
    StreamingFact,
    SUTFact,
    TimingFact,
)
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.probes.host import host_facts
from pytest_llmbench.timing import MonotonicClock
from pytest_llmbench.wire.catalogue import dialect, generates
from pytest_llmbench.wire.dialect import Dialect
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

_BASE = "http://localhost/v1"
"""Base URL under which an application is called."""


def address_of(endpoint: str) -> tuple[str, str]:
    """Module and attribute of ``python:module:attr``. Raises SuiteError for anything else."""
    _, _, rest = endpoint.partition(":")
    module, _, attribute = rest.partition(":")
    names = [*module.split("."), *attribute.split(".")]
    if not all(name.isidentifier() for name in names):
        raise SuiteError(
            "it names no attribute of a module",
            where=endpoint,
            remedy="write python:package.module:attribute, as in python:my_engine:generate",
        )
    return module, attribute


def refuse_what_is_not_in_process(sut_access: SUTAccess) -> None:
    """Raise SuiteError for settings that need a server, or other processes."""
    where = sut_access.sut.endpoint
    if sut_access.ray is not None or sut_access.workers > 1:
        raise SuiteError(
            "an endpoint in process is loaded by this process alone",
            where=where,
            remedy="leave out --llm-workers, or serve it and give its URL",
        )
    if not generates(sut_access.api):
        raise SuiteError(
            f"an endpoint in process streams tokens, but {sut_access.api} generates none",
            where=where,
            remedy="serve it and give its URL",
        )
    address_of(where)


@dataclass
class InProcess(Endpoint):
    """A callable of this process: no server has to be examined or switched."""

    access: SUTAccess = field(kw_only=True)

    def open(self) -> Opened:
        """Import the object, try it with one small request, and make a load generator for it.

        Raises SuiteError for what cannot be imported or called, SUTError for a first reply that is no
        success.
        """
        refuse_what_is_not_in_process(self.access)
        found = load(self.access.sut.endpoint)
        try:
            return _application(found, self.access) if is_asgi(found) else _callable(found, self.access)
        except LLMBenchError as error:
            if error.where is not None and error.where.startswith("python:"):
                raise
            inside = f"{error.where}: {error.what}" if error.where else error.what
            raise type(error)(inside, where=self.access.sut.endpoint, remedy=error.remedy) from error


def load(endpoint: str) -> Any:
    """The object that ``endpoint`` names. Raises SuiteError with the module, the attribute and the cause."""
    module, attribute = address_of(endpoint)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.append(here)  # as servers do; last, so that it stands before nothing
    try:
        found: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the suite's code: whatever it raises, it is not importable
        missing = isinstance(error, ModuleNotFoundError) and error.name is not None
        raise SuiteError(
            f"the module {module} cannot be imported: {type(error).__name__}: {error}",
            where=endpoint,
            remedy="pytest's sys.path and the current directory are searched: see pytest's setting pythonpath"
            if missing
            else f"import {module} by hand and fix it",
        ) from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            close = difflib.get_close_matches(name, dir(found), n=1)
            hint = f"did you mean {close[0]}?" if close else "correct the attribute"
            raise SuiteError(f"the module {module} has no {attribute}", where=endpoint, remedy=hint)
        found = getattr(found, name)
    return found


def is_asgi(found: Any) -> bool:
    """Whether it is called with ``(scope, receive, send)``."""
    try:
        names = list(inspect.signature(found).parameters)
    except (TypeError, ValueError):
        return False
    return names[:3] == ["scope", "receive", "send"]


def _callable(found: Any, sut_access: SUTAccess) -> Opened:
    asking = sut_access.asking
    if not callable(found) or inspect.isclass(found) or inspect.isgeneratorfunction(found):
        kind = f"of type {type(found).__name__}"
        if inspect.isclass(found):
            kind = "a class (name an instance)"
        elif inspect.isgeneratorfunction(found):
            kind = "a plain generator function (without async)"
        raise SuiteError(
            f"it is {kind}, neither an async generator function nor an ASGI application",
            remedy="write it as: async def generate(prompt, max_tokens): yield a piece of text",
        )
    if asking.prompt_form != "text" or sut_access.api != "auto":
        raise SuiteError(
            "a Python function takes prompts as text and has no dialect",
            remedy="leave out --llm-api, and request.prompt in the SUT file",
        )
    further = [*asking.extra_body, *(["ignore_eos"] if asking.ignore_eos else [])]
    parameters = parameters_of(found, further)
    transport = CallableTransport(found, parameters, MonotonicClock())
    model = sut_access.model or sut_access.sut.endpoint.rpartition(":")[2]
    pieces = PythonPieces(parameters)
    opened = _opened(sut_access, transport, LoopThread(), pieces, model)
    try:
        _try(opened.executor)
    except BaseException:
        opened.executor.close()
        raise
    return opened


def _application(app: Any, sut_access: SUTAccess) -> Opened:
    from pytest_llmbench.probes.endpoint import examine

    transport = AsgiTransport(app, MonotonicClock())
    lifespan = Lifespan(app, transport.state)
    thread = LoopThread()

    def end() -> None:
        thread.submit(lifespan.shutdown()).result()

    try:
        thread.submit(lifespan.startup()).result()
        asked = AppTransport(thread, transport, sut_access.access.answer_s)
        seen = examine(
            _BASE,
            model=sut_access.model,
            api=sut_access.api,
            access=sut_access.access,
            asking=sut_access.asking,
            transport=asked,
        )
    except BaseException:
        end()
        thread.submit(transport.close()).result()
        thread.close()
        raise
    return _opened(sut_access, transport, thread, dialect(seen.api), seen.model, seen.facts, end)


class AppTransport(httpx.BaseTransport):
    """The preflight without a socket: httpx makes the requests, each is handed to the application, and its
    response returned once it is complete or has timed out."""

    def __init__(self, thread: LoopThread, transport: AsgiTransport, answer_s: float) -> None:
        self._thread = thread
        self._transport = transport
        self._answer_s = answer_s

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The application's response. Raises httpx.ReadTimeout where there is none, httpx.RemoteProtocolError
        for a broken one."""
        lines = [b"%b %b HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
        lines += [b"%b: %b" % header for header in request.headers.raw]
        wire = b"\r\n".join(lines) + b"\r\n\r\n" + request.read()
        exchange = self._thread.submit(self._carried(wire)).result()
        if exchange.status is None:
            if exchange.end is End.TIMEOUT:
                raise httpx.ReadTimeout("no answer", request=request)
            raise httpx.RemoteProtocolError(exchange.error or "no answer", request=request)
        return httpx.Response(exchange.status, headers=exchange.headers, stream=_Body(exchange, request))

    async def _carried(self, wire: bytes) -> Exchange:
        ended = asyncio.Event()
        now_ns = self._transport.now_ns()
        request = PreparedRequest("preflight", wire, 0, 0, 0)
        exchange = Exchange(request, now_ns, now_ns, lambda _: ended.set())
        self._transport.send(exchange)
        try:
            async with asyncio.timeout(self._answer_s):
                await ended.wait()
        except TimeoutError:
            abandon(exchange, End.TIMEOUT, self._transport.now_ns(), "its time is up")
        return exchange


class _Body(httpx.SyncByteStream):
    def __init__(self, exchange: Exchange, request: httpx.Request) -> None:
        self._exchange = exchange
        self._request = request

    def __iter__(self) -> Iterator[bytes]:
        yield from self._exchange.bodies
        if self._exchange.end is End.TIMEOUT:
            raise httpx.ReadTimeout("the response did not end", request=self._request)
        if self._exchange.end is not End.COMPLETE:
            raise httpx.RemoteProtocolError(self._exchange.error or "broken off", request=self._request)


def _opened(
    sut_access: SUTAccess,
    transport: TaskTransport,
    thread: LoopThread,
    spoken: Dialect,
    model: str,
    facts: Facts | None = None,
    end: Callable[[], None] = nothing,
) -> Opened:
    endpoint = sut_access.sut.endpoint
    generator = LoadGenerator(
        Target.parse(_BASE, headers=sut_access.credentials.headers),
        spoken,
        model=model,
        transport=transport,
        thread=thread,
        **sut_access.of_requests,
        **sut_access.own_counts,
    )
    values = {  # of every load in process; they override what the generator says of sockets
        SUTFact.MODEL_NAME: model,
        EndpointFact.URL: endpoint,
        EndpointFact.API: spoken.name,
        EndpointFact.TRANSPORT: transport.name,
        StreamingFact.PROTOCOL: "in_process",
        TimingFact.SUBMIT_POINT: "call",
        GeneratorFact.ENGINE_METRICS: "not measurable: called in process",
    }
    own = (facts or Facts()) | host_facts("127.0.0.1") | Facts.of(Origin.DETECTED, values, endpoint)
    executor = sut_access.sampled(with_facts(generator, lambda *_: own, end), here=True, pid=os.getpid())
    return Opened(executor, endpoint, model, spoken.name, own, notes=(Note.of("in_process"),))


def _try(executor: Executor) -> None:
    """Send one small request, made as the measured ones are."""
    small = SyntheticWorkload("preflight", Fixed(1), Fixed(4))
    seen = executor.run(LoadPlan("preflight", small, ClosedLoop(1), 1, seed=0, phase=Phase.PROBE)).records
    if not seen.ok.all() or not len(seen):
        outcome = OUTCOMES[int(seen.outcome[0])] if len(seen) else "nothing"
        said = seen.error[0] if len(seen) else "it was interrupted"
        raise SUTError(
            f"its first reply failed: {outcome}: {said}",
            remedy="call it by hand with a prompt and max_tokens=4: it must yield text and end",
        )
