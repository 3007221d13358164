"""vLLM with the flags under test; or an endpoint that is given."""

import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_llmbench import SUT, launched_server

MODEL = os.environ.get("MODEL", "meta-llama/Llama-3.1-8B-Instruct")
COMMAND = [
    *("vllm", "serve", MODEL, "--port", "{port}", "--max-num-batched-tokens", "8192"),
    *("--gpu-memory-utilization", "0.45", "--enable-prompt-tokens-details"),
]
"""Half of the memory, since the test of the prefix cache launches another beside it."""


@pytest.fixture(scope="session")
def llm_sut(pytestconfig: pytest.Config) -> Iterator[SUT]:
    """Completions, and replies that go on to their limit, as in ``vllm bench serve``."""
    asked: dict[str, Any] = {"api": "openai-completions", "ignore_eos": True}
    if given := pytestconfig.getoption("llm_endpoint"):
        yield SUT(given[0], model=pytestconfig.getoption("llm_model"), **asked)
        return
    with launched_server(COMMAND, timeout_s=1200) as server:
        yield SUT(server.url, model=MODEL, **asked)


def pytest_llmbench_variants(config: pytest.Config) -> dict[str, dict[str, Any]]:
    """Without a prefix cache and with one, launched in turn. A given endpoint has its own."""
    if config.getoption("llm_endpoint"):
        return {}
    health = {"timeout_s": 1200}
    return {
        "cache_disabled": {"command": [*COMMAND, "--no-enable-prefix-caching"], "health": health},
        "cache_enabled": {"command": [*COMMAND, "--enable-prefix-caching"], "health": health},
    }
