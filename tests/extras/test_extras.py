"""What is left when the extras of this package are left out."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from extended import PACKAGE, python

from pytest_llmbench.marks.stub import stubs

SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p50_ms=5_000, concurrency=4, requests=20)
def test_it(): ...
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The package without its extras."""
    package = tmp_path_factory.mktemp("bare") / "pytest_llmbench"
    shutil.copytree(PACKAGE, package, ignore=shutil.ignore_patterns("extras", "__pycache__"))
    return package


REFUSED = {
    "ws:// needs an extra": ["--llm-endpoint=ws://127.0.0.1:1/v1"],
    "grpc:// needs an extra": ["--llm-endpoint=grpc://127.0.0.1:1"],
    "http/2 needs an extra": ["--llm-endpoint=http://127.0.0.1:1/v1", "--llm-http=2"],
    "workers on a Ray cluster need an extra": ["--llm-endpoint=sim", "--llm-workers=ray"],
    "unknown option 'replicas'; several engines behind a router need an extra": [
        "--llm-endpoint=replay:fast?replicas=2"
    ],
    "lists of tests need an extra": ["--llm-import=serving-tests.json"],
}
"""What a session without extras says, and of which options."""
SESSIONS = """
import json, sys, pytest
sys.stderr = sys.stdout
for given in json.loads(sys.argv[1]):
    pytest.main(["-p", "no:cacheprovider", "-q", "test_suite.py", *given])
    print("END OF SESSION", flush=True)
"""


def test_without_extras_the_core_measures_and_refuses_in_words_what_they_do(
    bare: Path, tmp_path: Path
) -> None:
    (tmp_path / "test_suite.py").write_text(SUITE)
    measured = ["--llm-endpoint=replay", "--llm-inconclusive=pass"]
    run = python("-c", SESSIONS, json.dumps([measured, *REFUSED.values()]), path=tmp_path, package=bare)
    first, *others = run.stdout.split("END OF SESSION")
    assert "1 passed" in first, first
    for said, told in zip(REFUSED, others[: len(REFUSED)], strict=True):
        assert f"{said} that is not installed" in told


def test_no_module_of_the_core_names_one_of_an_extra() -> None:
    """Not even late or for types: they are found by the registry alone."""
    for path in PACKAGE.rglob("*.py"):
        within = path.relative_to(PACKAGE)
        if within.parts[0] != "extras" and within.name != "registry.py":
            assert "pytest_llmbench.extras" not in path.read_text("utf-8"), within


def test_the_stubs_have_the_markers_and_metrics_of_this_package_as_they_are() -> None:
    for path, text in stubs().items():
        assert path.read_text("utf-8") == text, f"{path}: python -m pytest_llmbench.marks.stub"


def test_no_test_of_the_core_imports_an_extra() -> None:
    """So that the tests of the core pass where the extras are left out; ``.ci/run core`` runs them."""
    tests = Path(__file__).parents[1]
    pattern = re.compile(r"^\s*(from|import) pytest_llmbench\.extras", re.MULTILINE)
    others = (path for path in tests.rglob("*.py") if "extras" not in path.relative_to(tests).parts)
    assert [path for path in others if pattern.search(path.read_text("utf-8"))] == []
