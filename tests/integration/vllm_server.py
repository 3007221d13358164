"""vLLM on the CPU of this machine, with random weights, started as its users start it.

It is no dependency of the tests: 2.5 GB, and on a CPU a build of third parties. ``LLMBENCH_VLLM`` names its
program where it is not on the PATH.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_llmbench import launched_server

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
}
MAX_NUM_SEQS = 8


def program() -> str:
    """The program; skips the test where there is none."""
    found = shutil.which(os.environ.get("LLMBENCH_VLLM", "vllm"))
    if found is None:
        pytest.skip("needs vLLM: put its program on the PATH, or name it in LLMBENCH_VLLM")
    return found


@contextmanager
def serving(model: Path, *options: str, url: str = "http://127.0.0.1:{port}/v1") -> Iterator[str]:
    """The URL of a server of the model folder, started with further options."""
    command = [program(), "serve", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    command += ["--port", "{port}", "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--max-num-seqs", str(MAX_NUM_SEQS), "--block-size", "32", *options]
    with launched_server(command, url=url, env=ENVIRONMENT, timeout_s=600.0) as server:
        yield server.url
