"""llama.cpp's server on a model file; or an endpoint that is given."""

import os
from collections.abc import Iterator

import pytest

from pytest_llmbench import SUT, launched_server


@pytest.fixture(scope="session")
def llm_sut(pytestconfig: pytest.Config) -> Iterator[SUT]:
    """Four slots, each with a context of 2,048 tokens."""
    if given := pytestconfig.getoption("llm_endpoint"):
        yield SUT(given[0], model=pytestconfig.getoption("llm_model"), ignore_eos=True)
        return
    model = os.environ.get("MODEL")
    if model is None:
        pytest.fail("name the model file: MODEL=model.gguf", pytrace=False)
    command = ["llama-server", "-m", model, "-np", "4", "-c", "8192", "--metrics", "--port", "{port}"]
    with launched_server(command) as server:
        yield SUT(server.url, ignore_eos=True)
