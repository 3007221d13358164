"""SGLang, launched once for each set of flags; or an endpoint that is given."""

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_llmbench import SUT, launched_server

MODEL = os.environ.get("MODEL", "meta-llama/Llama-3.1-8B-Instruct")
COMMAND = [
    *(sys.executable, "-m", "sglang.launch_server", "--model-path", MODEL, "--port", "{port}"),
    "--enable-metrics",  # reports then split a change into queue, prefill and decode
]
FLAGS = {
    "default": ([], ""),
    "no-radix-cache": (["--disable-radix-cache"], "prefix_caching=off"),
    "small-chunks": (["--chunked-prefill-size", "1024"], "max_num_batched_tokens=1024"),
}
"""Name → flags of SGLang, and the options of the embedded engine that come closest."""


@pytest.fixture(scope="module", params=FLAGS)
def llm_sut(request: pytest.FixtureRequest) -> Iterator[SUT]:
    """Its own API, and replies that go on to their limit, as in ``bench_serving``."""
    flags, options = FLAGS[request.param]
    asked: dict[str, Any] = {"api": "sglang-generate", "ignore_eos": True}
    if given := request.config.getoption("llm_endpoint"):
        of_ours = given[0].startswith(("replay:", "sim:"))
        if flags and not of_ours:
            pytest.skip("a given endpoint has its own flags, and is measured as default")
        joint = "&" if "?" in given[0] else "?"
        endpoint = joint.join(filter(None, (given[0], options))) if of_ours else given[0]
        yield SUT(endpoint, model=request.config.getoption("llm_model"), **asked)
        return
    with launched_server([*COMMAND, *flags], timeout_s=1200) as server:
        yield SUT(server.url, model=MODEL, **asked)
