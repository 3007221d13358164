"""The Python blocks of the documentation, run as test files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_llmbench import llmbench
from pytest_llmbench.registry import names

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
OVER_HTTP2 = ROOT / "docs/how-to/measure-over-http2.md"
ENERGY = ROOT / "docs/how-to/measure-energy.md"
ROUTERS = ROOT / "docs/how-to/compare-routers.md"
OF_EXTRAS = (
    OVER_HTTP2,
    ROUTERS,
    *(ROOT / f"docs/how-to/measure-over-{name}.md" for name in ("grpc", "websocket")),
)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def of_extras(page: Path, block: str) -> bool:
    """Whether a block runs with the extras of this package: for its endpoint, or since they may be left
    out."""
    lacks_machine = page == ENERGY and not names("machine")
    tests = ("llmbench.non_generative", "llmbench.accuracy")
    unknown = set(re.findall(r"@llmbench\.(\w+)", block)) - set(dir(llmbench))
    return page in OF_EXTRAS or lacks_machine or bool(unknown) or any(name in block for name in tests)


def run_blocks(pytester: pytest.Pytester, blocks: Sequence[str], endpoint: str, *options: str) -> None:
    """Run each block as a test file; all tests have to pass."""
    # Measured in this process: to start one that measures takes longer than what most pages measure.
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nllm_workers = 0\n")
    pytester.makepyfile(**{f"test_block_{i}": block for i, block in enumerate(blocks, start=1)})
    result = pytester.runpytest_inprocess(
        "-p",
        "no:cacheprovider",
        "-rA",
        f"--llm-endpoint={endpoint}",
        "--llm-scale=quick",
        "--llm-inconclusive=pass",
        *options,
    )
    outcomes = result.parseoutcomes()
    assert set(outcomes) <= {"passed", "warnings"}, outcomes
    for i in range(1, len(blocks) + 1):
        result.stdout.fnmatch_lines_random([f"PASSED test_block_{i}.py::*"])
