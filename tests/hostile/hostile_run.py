"""A session of pytest, in a process of its own or in this one, and everything that it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p50_ms=5000, rate=100, requests=100)
def test_ttft(llm_result):
    seen = llm_result
"""
ARTEFACTS = ("--llm-report=out", "--junitxml=junit.xml", "--html=pytest.html", "--self-contained-html")

UNNEEDED = ("-p", "no:hypothesispytest", "-p", "no:timeout")
"""Plugins that a session in a process of its own would only load."""


@dataclass(frozen=True)
class Left:
    """``texts``: name → content, terminal and standard error among them."""

    code: int
    texts: dict[str, str]

    @property
    def terminal(self) -> str:
        return self.texts["terminal"]


Session = Callable[..., Left]
"""Of an endpoint and arguments of pytest, with ``suite`` and ``key`` if they are others."""


def alone_in(folder: Path) -> Session:
    """Runs it in a process of its own, in ``folder``."""

    def session(endpoint: str, *arguments: str, suite: str = SUITE, key: str = "") -> Left:
        (folder / "test_suite.py").write_text(suite, "utf-8")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LLM_"))}
        extra = {"CI": "true"} | ({"LLM_API_KEY": key} if key else {})
        run = subprocess.run(
            [sys.executable, "-m", "pytest", *UNNEEDED, *_options(endpoint), *arguments],
            cwd=folder, env={**kept, **extra}, capture_output=True, timeout=120, check=False,
        )  # fmt: skip
        return Left(run.returncode, _texts(folder, run.stdout.decode(), run.stderr.decode()))

    return session


def within(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Session:
    """Runs it in this process, which saves it the imports; in ``capfd`` is what its other processes said."""

    def session(endpoint: str, *arguments: str, suite: str = SUITE, key: str = "") -> Left:
        pytester.makepyfile(test_suite=suite)
        for name in [name for name in os.environ if name.startswith("LLM_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("CI", "true")
        if key:
            monkeypatch.setenv("LLM_API_KEY", key)
        capfd.readouterr()
        code = pytester.runpytest_inprocess(*_options(endpoint), *arguments).ret
        return Left(int(code), _texts(pytester.path, *capfd.readouterr()))

    return session


def _options(endpoint: str) -> list[str]:
    common = ["-p", "no:cacheprovider", "--llm-scale=quick", "--llm-remeasure=0"]
    return [*common, f"--llm-endpoint={endpoint}"]


def _texts(folder: Path, out: str, err: str) -> dict[str, str]:
    texts = {"terminal": out, "standard error": err}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "test_suite.py" and "__pycache__" not in path.parts:
            texts[str(path.relative_to(folder))] = unpacked(path).decode("utf-8")
    return texts


def unpacked(path: Path) -> bytes:
    """What is in a file; of a packed one, whole or not, what is packed: a secret would hide there too."""
    content = path.read_bytes()
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(content) if path.suffix == ".gz" else content
