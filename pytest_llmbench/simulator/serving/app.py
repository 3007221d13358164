"""The ASGI application: endpoints of several APIs, vLLM's pages, the engine's records, the WebSocket face."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Protocol

from pytest_llmbench.registry import every, face
from pytest_llmbench.simulator.engine.faults import FaultOptions
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.scenario import Scenario
from pytest_llmbench.simulator.serving.asgi import (
    ClientGoneError,
    Receive,
    Scope,
    Send,
    read_body,
    send_json,
    send_whole,
    until_disconnect,
)
from pytest_llmbench.simulator.serving.driver import EngineDriver
from pytest_llmbench.simulator.serving.generation import (
    Generation,
    Tokenizer,
    refusal_headers,
    request_id,
    session_id,
)
from pytest_llmbench.simulator.serving.ground_truth import energy_json
from pytest_llmbench.simulator.serving.http_events import EVENT_APIS, RESPONSES, EventFace
from pytest_llmbench.simulator.serving.metrics_page import CONTENT_TYPE, dcgm_page
from pytest_llmbench.simulator.serving.metrics_page import PATH as DCGM
from pytest_llmbench.simulator.serving.openai_face import OpenAIFace
from pytest_llmbench.simulator.serving.replies import Face
from pytest_llmbench.simulator.serving.request_body import (
    Endpoint,
    Fields,
    content_of,
    parse_request,
    parse_tokenize,
)

RECEIVED_NS = "received_ns"
"""Key of the request's ``state`` under which the HTTP protocol leaves the instant of its last read."""

TOKENIZE = "/tokenize"
RESET_PREFIX_CACHE = "/reset_prefix_cache"
"""Path that resets the prefix cache, as vLLM's server has it in development mode: 200 without a body, whether
there is a cache or not."""

LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADAPTER_CALLS = (LOAD_ADAPTER, UNLOAD_ADAPTER)
"""Paths that load and unload an adapter, as vLLM's server has them; only of an engine with adapters."""


class EngineApi(Protocol):
    """An API of an extra."""

    paths: Sequence[str]
    """Its paths, which take POST alone."""

    def asked(self, path: str, body: bytes) -> bool:
        """Whether a request is one of this API; it may be on a path of the engine's own."""
        ...

    async def serve(self, body: bytes, received_ns: int, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. RefusalError if it gets a status instead."""


class EngineApp:
    """The ASGI application, which routes requests. It knows nothing of the server that runs it, but for what
    that leaves in ``state``."""

    def __init__(self, driver: EngineDriver, scenario: Scenario, tokenizer: Tokenizer) -> None:
        self._driver = driver
        self._config = driver.config
        self._scenario = scenario
        self.generation = Generation(driver, scenario, tokenizer)
        made = face("websocket", "engine")
        self._websocket = None if made is None else made(self.generation, driver)
        self._apis: list[EngineApi] = [
            made(self.generation, driver) for made in every("engine_apis").values()
        ]
        self._profiler = Profiler(driver, scenario.faults)
        self._created = int(time.time())
        self._adapters = dict.fromkeys(self._config.adapter_names)
        """Adapters that may be asked for; calls add some and take some away."""
        self.refused = 0
        self._pages: dict[str, Callable[[Send], Awaitable[None]]] = {
            "/v1/models": self._models,
            "/health": lambda send: send_json(send, 200, {"status": "ok"}),
            "/prometheus/metrics" if scenario.stream.metrics == "tensorrt-llm" else "/metrics": (
                lambda send: send_whole(send, 200, CONTENT_TYPE, driver.metrics_page(), [])
            ),
            "/sim/ground_truth": self._ground_truth,
            "/sim/status": lambda send: send_json(send, 200, self.status()),
        }
        if meters := driver.meters:
            curves = [meter.curve for meter in meters]
            self._pages["/sim/energy"] = lambda send: send_whole(
                send, 200, b"application/json", energy_json(curves), []
            )
            self._pages[DCGM] = self._dcgm

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and self._websocket is not None:
            await self._websocket.serve(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"this application speaks HTTP and WebSocket, not {scope['type']}")
        try:
            await self._answer(scope, receive, send)
        except RefusalError as refusal:
            self.refused += 1
            await send_json(send, refusal.status, refusal.body(), refusal_headers(scope, refusal))
        except ClientGoneError:
            return  # nobody is there to be told anything

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["path"], scope["method"]
        page = self._pages.get(path)
        further = [path for api in self._apis for path in api.paths]
        posts = [*Endpoint, *EVENT_APIS, *further, TOKENIZE, RESET_PREFIX_CACHE, *self._profiler.paths]
        posts += ADAPTER_CALLS if self._config.adapters else ()
        if path == RESPONSES and method == "GET":
            raise RefusalError(
                426,
                f"{path} answers POST, and WebSocket where the package websockets is installed",
            )
        if page is None and path not in posts:
            known = ", ".join([*posts, *self._pages])
            raise RefusalError(404, f"unknown path {path}; known are {known}")
        answered = "POST" if page is None else "GET"
        if method != answered:
            raise RefusalError(405, f"{path} answers {answered} only, not {method}")
        if not path.startswith("/sim/"):
            self.generation.require_up()
        if page is not None:
            await page(send)
        elif path == TOKENIZE:
            request = parse_tokenize(await read_body(receive), self._config.model)
            ids = list(await self.generation.encode_prompt(request))
            limit = self._config.context_limit_tokens
            await send_json(send, 200, {"count": len(ids), "max_model_len": limit, "tokens": ids})
        elif path == RESET_PREFIX_CACHE:
            self._driver.reset_prefix_caches()
            await send_whole(send, 200, b"text/plain", b"", [])
        elif path in ADAPTER_CALLS:
            await self._change_adapters(path, receive, send)
        elif path in self._profiler.paths:
            await self._profiler.serve(path, receive, send)
        else:
            await self._generate(scope, receive, send)

    async def _generate(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_body(receive)
        received_ns = scope.get("state", {}).get(RECEIVED_NS, self._driver.clock())
        path, generation, driver = scope["path"], self.generation, self._driver
        for extra in self._apis:
            if extra.asked(path, body):
                await extra.serve(body, received_ns, scope, receive, send)
                return
        api = EVENT_APIS.get(path)
        if api is None:
            request = parse_request(body, Endpoint(path), self._config.model, self._adapters)
            face: Face = OpenAIFace(generation, driver, request, scope, receive, send)
        else:
            request = api.parse(content_of(body), self._config.model)
            if not request.stream:
                raise RefusalError(400, f"{path} is streamed only here", "stream")
            face = EventFace(generation, driver, api, scope, receive, send)
        await generation.answer(face, request, received_ns, request_id(scope), session_id(scope))

    async def _models(self, send: Send) -> None:
        model = {
            "id": self._config.model,
            "object": "model",
            "created": self._created,
            "owned_by": "pytest-llmbench",
            "max_model_len": self._config.context_limit_tokens,
        }
        adapters = [{**model, "id": name, "parent": self._config.model} for name in self._adapters]
        await send_json(send, 200, {"object": "list", "data": [model, *adapters]})

    async def _change_adapters(self, path: str, receive: Receive, send: Send) -> None:
        """Load an adapter, which takes its time, or unload one. RefusalError: 400 without a name or a path
        and for one that is there already, 404 for one that is not there."""
        fields = Fields(content_of(await read_body(receive)))
        name, loads = fields.text("lora_name"), path == LOAD_ADAPTER
        lora_path = fields.text("lora_path") if loads else None
        fields.require_none_wrong()
        if not name:
            raise RefusalError(400, "lora_name must be the name of an adapter", "lora_name")
        if not loads:
            if name not in self._adapters:
                raise RefusalError(404, f"the adapter {name!r} is not loaded", "lora_name")
            del self._adapters[name]
            self._driver.unload_adapter(name)
        else:
            if not lora_path:
                raise RefusalError(400, "lora_path must be the path of the adapter", "lora_path")
            if name in self._adapters or name == self._config.model:
                raise RefusalError(400, f"the model {name!r} is there already", "lora_name")
            self._driver.load_adapter(name)
            await asyncio.sleep(self._config.adapter_load_ms / 1000.0)
            self._adapters[name] = None
        await send_whole(send, 200, b"text/plain", b"Success", [])

    async def _ground_truth(self, send: Send) -> None:
        dropped = str(self._driver.log.dropped).encode()
        lines = self._driver.log.json_lines()
        await send_whole(send, 200, b"application/x-ndjson", lines, [(b"x-dropped-requests", dropped)])

    async def _dcgm(self, send: Send) -> None:
        page = dcgm_page(self._driver.meters, self._driver.clock())
        if page is None:
            await asyncio.Event().wait()  # a page that has stopped answering
        else:
            await send_whole(send, 200, CONTENT_TYPE, page, [])

    def status(self) -> dict[str, Any]:
        """The state of the server for the status page: load, pacing, and what the ground-truth log holds."""
        driver, log = self._driver, self._driver.log
        return {
            "model": self._config.model,
            "figures_sha256": self._config.figures_sha256,
            "running": driver.running,
            "waiting": driver.waiting,
            "requests_by_replica": [replica.requests for replica in driver.replicas],
            "requests_accepted": self.generation.accepted,
            "requests_refused": self.refused + (0 if self._websocket is None else self._websocket.refused),
            "faults_given": self.generation.faults_given,
            "stream": asdict(self._scenario.stream),
            "faults": asdict(self._scenario.faults),
            "ground_truth": {"kept": len(log), "dropped": log.dropped},
            "alarm": driver.alarm,
            "event_loop": type(asyncio.get_running_loop()).__module__.partition(".")[0],
            "cpu_s": time.process_time(),
            "monotonic_ns": driver.clock(),
            **driver.pacing.summary(),
        }


START, STOP = "/start_profile", "/stop_profile"
FOLDERS: Final = ("VLLM_TORCH_PROFILER_DIR", "SGLANG_TORCH_PROFILER_DIR")
"""Variables that name the folder of the traces, as for the engines; without one it is that of temporary
files."""


class Profiler:
    """Serves both calls. A trace is a JSON file in the format of Chrome's, a slice for each request."""

    def __init__(self, driver: EngineDriver, options: FaultOptions) -> None:
        self._driver, self._state = driver, options.profiler
        self.paths = () if options.profiler == "absent" else (START, STOP)
        self._began_ns: int | None = None
        self._written = 0

    async def serve(self, path: str, receive: Receive, send: Send) -> None:
        """Answer one call: 200 without a body. RefusalError: it fails, or the profiler is not on."""
        if self._state == "hangs":
            await until_disconnect(receive)
            return
        if self._state == "fails":
            raise RefusalError(500, "the profiler failed (a fault of the scenario)")
        if path == START:
            self._began_ns = self._driver.clock()
        elif self._began_ns is None:
            raise RefusalError(400, "the profiler is not on")
        else:
            self._write(self._began_ns)
            self._began_ns = None
        await send_whole(send, 200, b"text/plain", b"", [])

    def _write(self, since_ns: int) -> None:
        events = []
        for truth in map(json.loads, self._driver.log.json_lines().splitlines()):
            if (truth["last_write_ns"] or 0) >= since_ns:
                lasted_us = (truth["last_write_ns"] - truth["received_ns"]) / 1e3
                begun_us = truth["received_ns"] / 1e3
                events.append(
                    {"name": "request", "ph": "X", "pid": 1, "tid": 1, "ts": begun_us, "dur": lasted_us}
                )
        folder = Path(next(filter(None, map(os.environ.get, FOLDERS)), tempfile.gettempdir()))
        folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        file = folder / f"llmbench-{os.getpid()}-{self._written}.trace.json"
        file.write_text(json.dumps({"traceEvents": events}), "utf-8")
