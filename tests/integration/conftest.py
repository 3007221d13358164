"""A llama.cpp server on a model made on the spot, and an embedded engine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "tiny-random.gguf"
    subprocess.run([sys.executable, HERE / "tiny_gguf.py", out], check=True, timeout=120)
    return out


@pytest.fixture(scope="session")
def llama_cpp(llama_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a running llama.cpp server."""
    port = free_port()
    log = (tmp_path_factory.mktemp("llama") / "server.log").open("w+b")
    server = subprocess.Popen(
        [sys.executable, HERE / "llama_server.py", llama_model, str(port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        # llama.cpp may print of its own before it is ready; the pipe closes if it dies
        ready = next((line for line in server.stdout if line.startswith("ready")), None)
        assert ready is not None, log.seek(0) or log.read().decode("utf-8", "replace")[-2000:]
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.stdin.close()
        try:
            server.wait(timeout=10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()
        log.close()
