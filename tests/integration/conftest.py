"""llama.cpp servers on models made on the spot, and an embedded engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_llmbench import launched_server
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

HERE = Path(__file__).parent


def made_model(folder: Path, *layers: str) -> Path:
    out = folder / "tiny-random.gguf"
    subprocess.run([sys.executable, HERE / "tiny_gguf.py", out, *layers], check=True, timeout=120)
    return out


@contextmanager
def serving(model: Path) -> Iterator[str]:
    command = [sys.executable, str(HERE / "llama_server.py"), str(model), "{port}"]
    with launched_server(command, timeout_s=120.0) as server:
        yield server.url


@pytest.fixture(scope="session")
def llama_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of one layer, so that a token takes little."""
    return made_model(tmp_path_factory.mktemp("model"), "1")


@pytest.fixture(scope="session")
def llama_cpp(llama_model: Path) -> Iterator[str]:
    """URL of a running llama.cpp server."""
    with serving(llama_model) as url:
        yield url


@pytest.fixture(scope="module")
def slower_llama_cpp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """On a model whose tokens take milliseconds and so arrive apart: for those whose subject is times."""
    with serving(made_model(tmp_path_factory.mktemp("slower_model"))) as url:
        yield url


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    """Its log of the truth names requests, so that each test finds its own."""
    with EmbeddedEngine.start("fast") as running:
        yield running
