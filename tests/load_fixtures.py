"""Fixtures of loads that are really sent: a scripted server, a load generator for it, a plan."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from planned_load import TextWorkload
from scripted_server import Script, ScriptedServer

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.loop_thread import LoopFactory, fastest_loop
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.wire.openai_chat import OpenAIChat

SHORT = Deadlines(connect_s=5.0, first_byte_s=8.0, between_chunks_s=8.0, total_s=15.0, drain_s=15.0)
"""Deadlines that no test runs into unless it means to."""


@pytest.fixture
def serve() -> Iterator[Callable[..., ScriptedServer]]:
    """Starts a scripted server, and stops it after the test."""
    servers: list[ScriptedServer] = []

    def start(script: Script, **options: Any) -> ScriptedServer:
        server = ScriptedServer(script, **options)
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(params=[fastest_loop, asyncio.new_event_loop], ids=["fastest", "asyncio"])
def loop_factory(request: pytest.FixtureRequest) -> LoopFactory:
    factory: LoopFactory = request.param
    return factory


@pytest.fixture
def generator_for() -> Iterator[Callable[..., LoadGenerator]]:
    """Makes a load generator for a server or a URL, and closes it after the test."""
    made: list[LoadGenerator] = []

    def make(server: ScriptedServer | str, **options: Any) -> LoadGenerator:
        url = server if isinstance(server, str) else server.url
        target = options.pop("target", None) or Target.parse(url)
        generator = LoadGenerator(target, OpenAIChat(), model="m", **options)
        made.append(generator)
        return generator

    yield make
    for generator in made:
        generator.close()


@pytest.fixture
def plan() -> Callable[..., LoadPlan]:
    """A plan with small numbers; everything can be said otherwise."""

    def make(requests: int = 1, **changes: Any) -> LoadPlan:
        settings: dict[str, Any] = {
            "label": "measure",
            "workload": TextWorkload(),
            "load": ClosedLoop(1),
            "seed": 1,
            "deadlines": SHORT,
        }
        return LoadPlan(requests=requests, **(settings | changes))

    return make


@pytest.fixture
def ask(
    serve: Callable[..., ScriptedServer],
    generator_for: Callable[..., LoadGenerator],
    plan: Callable[..., LoadPlan],
) -> Callable[..., Observation]:
    """One request to a server with this script."""

    def once(script: Script, *, server: dict[str, Any] | None = None, **changes: Any) -> Observation:
        loop_factory = changes.pop("loop_factory", fastest_loop)
        generator = generator_for(serve(script, **(server or {})), loop_factory=loop_factory)
        return generator.run(plan(**changes))

    return once
