"""A session of pytest in a process of its own, and everything that it left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path

SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=5000, rate=100, requests=100)
def test_ttft(llm_result):
    seen = llm_result
"""
ARTEFACTS = ("--llm-report=out", "--junitxml=junit.xml", "--html=pytest.html", "--self-contained-html")


@dataclass(frozen=True)
class Left:
    """``texts``: name → content, terminal and standard error among them."""

    code: int
    texts: dict[str, str]

    @property
    def terminal(self) -> str:
        return self.texts["terminal"]


def session(folder: Path, endpoint: str, *arguments: str, suite: str = SUITE, key: str = "") -> Left:
    (folder / "test_suite.py").write_text(suite, "utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "LLM_"))}
    extra = {"LLM_API_KEY": key} if key else {}
    run = subprocess.run(
        [
            sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--llm-endpoint={endpoint}",
            "--llm-scale=quick", "--llm-remeasure=0", *arguments,
        ],
        cwd=folder, env={**kept, **extra}, capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    texts = {"terminal": run.stdout.decode(), "standard error": run.stderr.decode()}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "test_suite.py" and "__pycache__" not in path.parts:
            texts[str(path.relative_to(folder))] = unpacked(path).decode("utf-8")
    return Left(run.returncode, texts)


def unpacked(path: Path) -> bytes:
    """What is in a file; of a packed one, whole or not, what is packed: a secret would hide there too."""
    content = path.read_bytes()
    return zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(content) if path.suffix == ".gz" else content
