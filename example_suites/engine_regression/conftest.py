"""The engine under test, launched once for each set of flags."""

import pytest

from pytest_llmbench import SUT

FLAGS = {
    "default": "",
    "small-chunks": "max_num_batched_tokens=1024",
    "small-batch": "max_num_seqs=64",
}
"""Name to what the engine is launched with. Yours: lists such as ``["--disable-radix-cache"]``."""


@pytest.fixture(scope="module", params=FLAGS)
def llm_sut(request: pytest.FixtureRequest) -> SUT:
    """Yours launches ``vllm serve MODEL FLAGS`` here, waits for it, yields ``SUT(url)`` and ends it."""
    endpoint = request.config.getoption("llm_endpoint") or ["replay:h100-8b"]
    flags = FLAGS[request.param]
    return SUT("?".join(filter(None, (endpoint[0], flags))))
