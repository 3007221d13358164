"""vLLM with the flags under test; or an endpoint that is given."""

from collections.abc import Iterator

import pytest

from pytest_llmbench import SUT, launched_server

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
COMMAND = ["vllm", "serve", MODEL, "--port", "{port}", "--max-num-batched-tokens", "8192"]


@pytest.fixture(scope="session")
def llm_sut(pytestconfig: pytest.Config) -> Iterator[SUT]:
    """Completions, and replies that go on to their limit, as in ``vllm bench serve``."""
    if given := pytestconfig.getoption("llm_endpoint"):
        yield SUT(given[0])
        return
    with launched_server(COMMAND, timeout_s=1200) as server:
        yield SUT(server.url, model=MODEL, api="openai-completions", ignore_eos=True)
