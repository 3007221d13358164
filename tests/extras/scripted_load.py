"""Loads on a scripted server, whatever carries the requests; and a connection's link without a socket."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from scripted_server import Script, ScriptedServer

from pytest_llmbench.generator.http.connection import Connection
from pytest_llmbench.generator.http.pool import Lone
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Deadlines, LoadPlan
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.wire.dialect import Dialect

Serve = Callable[..., ScriptedServer]
MakePlan = Callable[..., LoadPlan]
Run = Callable[..., Observation]
Secured = Callable[..., tuple[ssl.SSLContext, Path]]

STEP_NS = 40_000_000
"""A pause of a server that is seen in the instants."""
IMPATIENT = Deadlines(connect_s=5.0, first_byte_s=0.5, between_chunks_s=0.5, total_s=15.0, drain_s=15.0)
_OF_GENERATOR = ("loop_factory", "kernel_stamps", "extra_body", "session_header")


def runner(
    serve: Serve,
    plan: MakePlan,
    url_of: Callable[[ScriptedServer], str],
    dialect: Callable[[], Dialect],
    **of_target: Any,
) -> Run:
    """Runs the load of a plan on a server with a script: ``run(script, requests, **options)``.

    Options: ``server`` and ``target``, tables of their keywords; those of the generator; any other is the
    plan's. ``of_target``: keywords of every target.
    """

    def load(script: Script, requests: int = 1, **options: Any) -> Observation:
        server = serve(script, read_body=False, **options.pop("server", {}))
        target = Target.parse(url_of(server), **of_target, **options.pop("target", {}))
        of_generator = {name: options.pop(name) for name in _OF_GENERATOR if name in options}
        with LoadGenerator(target, dialect(), model="m", **of_generator) as generator:
            seen = generator.run(plan(requests, **options))
        server.stop()  # what it has noted is complete
        return seen

    return load


def outcomes(seen: Observation) -> list[tuple[str, str]]:
    """Outcome and error of each request, in their order."""
    pairs = zip(seen.records.outcome, seen.records.error, strict=True)
    return [(OUTCOMES[number].value, error or "") for number, error in pairs]


def only(seen: Observation) -> tuple[str, str]:
    """Outcome and error of the one request."""
    (found,) = outcomes(seen)
    return found


class Wire:
    """The link, the owner and the pool of one connection, without a socket. It takes everything."""

    too_early: ClassVar[int] = 0

    def __init__(self, *, delivers: bool = True, apart: bool = False) -> None:
        """``delivers``: what it takes arrives; ``apart``: what is read came in several packets."""
        self.delivers, self.apart = delivers, apart
        self.written: list[bytes] = []
        self.resent: list[Exchange] = []
        self.asked = 0
        """How often it was asked whether a read came apart."""

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        return True

    def came_apart(self) -> bool:
        self.asked += 1
        return self.apart

    def nothing_delivered(self) -> bool:
        return not self.delivers

    def retry(self, exchange: Exchange) -> None:
        self.resent.append(exchange)

    def close(self) -> None: ...
    def adopt(self, connection: Connection) -> None: ...
    def release(self, spoken: Lone) -> None: ...
    def drop(self, connection: Connection) -> None: ...
    def hung_up(self) -> None: ...
    def look_soon(self, spoken: Lone, exchange: Exchange) -> None: ...
