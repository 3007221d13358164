"""LiteLLM's proxy on this machine, started as its users start it: a gateway with guardrails before an engine.

It is no dependency of the tests: 0.8 GB. ``LLMBENCH_LITELLM`` names its program where it is not on the PATH.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_llmbench import launched_server

KEY = "sk-the-gateway-s-own"
HEALTH = "/health/liveliness"
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOG": "ERROR",
    "DISABLE_ADMIN_UI": "True",
    "NO_DOCS": "True",
    # llama.cpp's server closes a connection behind a streamed reply. aiohttp finds that out with the next
    # request, which the proxy then answers with 500; httpx looks before it takes a kept connection.
    "DISABLE_AIOHTTP_TRANSPORT": "True",
}
WAITS_MS = 50
GUARDS = f"""
import asyncio

from litellm.integrations.custom_guardrail import CustomGuardrail


class Waits(CustomGuardrail):
    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        await asyncio.sleep({WAITS_MS} / 1000)
        return data
"""
CONFIG = """
model_list:
  - model_name: tiny
    litellm_params: {{model: openai/tiny-random, api_base: "{engine}", api_key: sk-upstream}}
  - model_name: over-websocket  # of a provider that has no WebSocket, so that the proxy serves one itself
    litellm_params: {{model: hosted_vllm/tiny-random, api_base: "{engine}", api_key: sk-upstream}}
guardrails:
  - guardrail_name: waits
    litellm_params: {{guardrail: guards.Waits, mode: pre_call}}
  - guardrail_name: filter-in
    litellm_params:
      guardrail: litellm_content_filter
      mode: pre_call
      patterns: [{{pattern_type: prebuilt, pattern_name: us_ssn, action: BLOCK}}]
  - guardrail_name: filter-out
    litellm_params:
      guardrail: litellm_content_filter
      mode: post_call
      patterns: [{{pattern_type: prebuilt, pattern_name: us_ssn, action: BLOCK}}]
  - guardrail_name: blocks-any-letter
    litellm_params:
      guardrail: litellm_content_filter
      mode: post_call
      patterns: [{{pattern_type: regex, name: letter, pattern: "[a-z]", action: BLOCK}}]
litellm_settings: {{telemetry: false, num_retries: 0, callbacks: [prometheus]}}
general_settings: {{master_key: {key}}}
"""
"""Guardrails are asked for by the field ``guardrails`` of a request."""


def program() -> str:
    """The program; skips the test where there is none."""
    found = shutil.which(os.environ.get("LLMBENCH_LITELLM", "litellm"))
    if found is None:
        pytest.skip("needs LiteLLM's proxy: put its program on the PATH, or name it in LLMBENCH_LITELLM")
    return found


@contextmanager
def serving(engine: str, folder: Path, *options: str) -> Iterator[str]:
    """The URL of a proxy before the engine at that URL, started with further options."""
    (folder / "gateway.yaml").write_text(CONFIG.format(engine=engine, key=KEY), "utf-8")
    (folder / "guards.py").write_text(GUARDS, "utf-8")
    scheme = "https" if "--ssl_certfile_path" in options else "http"
    command = [program(), "--config", str(folder / "gateway.yaml"), "--host", "127.0.0.1"]
    command += ["--port", "{port}", "--telemetry", "False", *options]
    started = launched_server(
        command,
        url=f"{scheme}://127.0.0.1:{{port}}/v1",
        health=HEALTH,
        env=ENVIRONMENT,
        cwd=folder,
        timeout_s=300.0,
    )
    with started as server:
        yield server.url
