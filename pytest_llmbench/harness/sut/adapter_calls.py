"""The calls by which an engine unloads and loads adapters, made while load is running.

They are made by a thread of pytest's process, while measuring processes send the load. With
``--llm-workers=0`` that process sends the load too; the thread then shares its interpreter, as the one that
reads the metrics page does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from typing import Literal, Self

from pytest_llmbench.errors import LLMBenchError, SUTError
from pytest_llmbench.harness.execution import Around, Stoppable
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import AdapterCall, Observation
from pytest_llmbench.model.plan import Churn, LoadPlan
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.control_plane import ControlPlane
from pytest_llmbench.probes.engine_metrics import server_root
from pytest_llmbench.probes.model_list import below
from pytest_llmbench.wire.error_replies import classify_status

_CALLS = (
    ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
    ("/load_lora_adapter", "/unload_lora_adapter"),
)
"""Paths below the root of the server that load and unload: vLLM's, and SGLang's. Both take ``lora_name`` and
``lora_path``."""
_NO_SUCH_CALL = (404, 405, 501)
_FORBIDDEN = (401, 403)


def calls_of(control: ControlPlane, base_url: str) -> tuple[str, str]:
    """The URLs that load and unload an adapter of this server, asked with a body that loads nothing. SUTError
    where there are none, or where they are forbidden."""
    for paths in _CALLS:
        load, unload = (below(server_root(base_url), path) for path in paths)
        answer = control.call("POST", load, b"{}")
        if answer.status in _FORBIDDEN:
            raise SUTError(
                f"HTTP {answer.status}: adapters may not be loaded with this key",
                where=load,
                remedy="give a key that may administer the server, or leave out beside",
            )
        if answer.status not in _NO_SUCH_CALL:
            return load, unload
    raise SUTError(
        "the server has no call to load an adapter, neither vLLM's nor SGLang's: "
        + " and ".join(load for load, _ in _CALLS),
        where=base_url,
        remedy="start vLLM with --enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=True, SGLang with "
        "--enable-lora; or leave out beside",
    )


def with_churn(inner: Stoppable, base_url: str, access: Access) -> Around:
    """A load generator during whose loads adapters come and go, where the plan says so."""

    def around(plan: LoadPlan) -> Procedure[Observation]:
        if plan.beside is None:
            return (yield plan)
        with _Caller(plan.beside, base_url, access) as caller:
            seen = yield plan
        return replace(seen, adapter_calls=tuple(caller.done))

    return Around(inner, around)


class _Caller:
    """Unloads and loads adapters at a rate, from when it is entered until it is left; what it has unloaded it
    loads again before it ends."""

    def __init__(self, churn: Churn, base_url: str, access: Access) -> None:
        """Raises SUTError where the server has no such calls."""
        connect_s = min(churn.timeout_s, access.connect_s)
        access = replace(access, connect_s=connect_s, answer_s=churn.timeout_s)
        self._churn, self._control = churn, ControlPlane(base_url, access)
        self._load_url, self._unload_url = calls_of(self._control, base_url)
        self.done: list[AdapterCall] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._act, name="llmbench-adapters", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._control.__exit__(None, None, None)

    def _act(self) -> None:
        begun_s, period_s = time.monotonic(), 1 / self._churn.rate
        for number, (name, path) in enumerate(cycle(self._churn.adapters), 1):
            if self._over.wait(max(0.0, begun_s + number * period_s - time.monotonic())):
                return
            self._call("unload", name, self._unload_url, {"lora_name": name})
            self._call("load", name, self._load_url, {"lora_name": name, "lora_path": path})

    def _call(self, kind: Literal["load", "unload"], name: str, url: str, body: Mapping[str, str]) -> None:
        sent_ns, problem = time.monotonic_ns(), ""
        try:
            answer = self._control.call("POST", url, json.dumps(body).encode())
            if not 200 <= answer.status < 300:
                problem = classify_status(answer.status, answer.headers, answer.body)[1]
            elif not answer.ended:
                problem = f"no end of the answer within {trimmed(self._churn.timeout_s)} s"
        except LLMBenchError as error:
            problem = error.what
        except Exception as error:  # noqa: BLE001  # whatever it is, no load is lost for it
            problem = f"{type(error).__name__}: {error}"
        self.done.append(AdapterCall(kind, name, sent_ns, time.monotonic_ns() - sent_ns, problem))
