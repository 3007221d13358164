"""TensorRT-LLM with the settings under test; or an endpoint that is given."""

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_llmbench import SUT, launched_server

MODEL = os.environ.get("MODEL", "meta-llama/Llama-3.1-8B-Instruct")
SETTINGS = {"kv_cache_config": {"dtype": "fp8", "enable_block_reuse": False}, "max_batch_size": 512}


@pytest.fixture(scope="session")
def llm_sut(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SUT]:
    asked: dict[str, Any] = {"api": "openai-completions", "ignore_eos": True}
    if given := pytestconfig.getoption("llm_endpoint"):
        yield SUT(given[0], model=pytestconfig.getoption("llm_model"), **asked)
        return
    settings = tmp_path_factory.mktemp("trtllm") / "settings.yaml"
    settings.write_text(json.dumps(SETTINGS))  # JSON is YAML
    command = ["trtllm-serve", MODEL, "--backend", "pytorch", "--port", "{port}"]
    with launched_server([*command, "--extra_llm_api_options", str(settings)], timeout_s=3600) as server:
        yield SUT(server.url, model=MODEL, **asked)
