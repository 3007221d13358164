"""The engine's profiler, by the calls of vLLM and SGLang: a trace of the requests that ended meanwhile."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pytest_llmbench.simulator.engine.faults import FaultOptions
from pytest_llmbench.simulator.engine.request import RefusalError
from pytest_llmbench.simulator.serving.asgi import Receive, Send, send_whole
from pytest_llmbench.simulator.serving.driver import EngineDriver

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
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        if self._state == "fails":
            raise RefusalError(500, "the profiler failed (a fault of the scenario)")
        if path == START:
            self._began_ns = self._driver.clock()
        else:
            self._write()
        await send_whole(send, 200, b"text/plain", b"", [])

    def _write(self) -> None:
        if self._began_ns is None:
            raise RefusalError(400, "the profiler is not on")
        truths = map(json.loads, self._driver.log.json_lines().splitlines())
        events = [_slice(each) for each in truths if (each["last_write_ns"] or 0) >= self._began_ns]
        folder = Path(next(filter(None, map(os.environ.get, FOLDERS)), tempfile.gettempdir()))
        folder.mkdir(parents=True, exist_ok=True)
        self._written += 1
        file = folder / f"llmbench-{os.getpid()}-{self._written}.trace.json"
        file.write_text(json.dumps({"traceEvents": events}), "utf-8")
        self._began_ns = None


def _slice(truth: Mapping[str, int]) -> dict[str, object]:
    lasted_ns = truth["last_write_ns"] - truth["received_ns"]
    return {
        "name": "request",
        "ph": "X",
        "pid": 1,
        "tid": 1,
        "ts": truth["received_ns"] / 1e3,
        "dur": lasted_ns / 1e3,
    }
