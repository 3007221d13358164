"""Every claim of SECURITY.md names a test that shows it, and the tests are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| from whom")]


def cited(row: str) -> list[tuple[str, str]]:
    """(file, test) of a row; ``::name`` alone is of the file before it."""
    file, found = "", []
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", row):
        file = path or file
        found.append((file, name))
    return found


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_what_holds_is_shown(row: str) -> None:
    assert cited(row)
    for file, name in cited(row):
        tree = ast.parse((ROOT / file).read_text("utf-8"))
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in tests, f"{file} has no {name}"


def test_the_page_is_found_and_fits_on_one() -> None:
    assert "(SECURITY.md)" in (ROOT / "README.md").read_text("utf-8")
    assert len(PAGE.splitlines()) < 80
