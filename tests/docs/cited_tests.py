"""Tests that a page names as what shows its claims."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def cited(row: str) -> list[tuple[str, str]]:
    """(file, test) of a row; ``::name`` alone is of the file before it."""
    file, found = "", []
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", row):
        file = path or file
        found.append((file, name))
    return found


def missing(row: str) -> list[str]:
    """Those of a row that are not there."""
    return [f"{file} has no {name}" for file, name in cited(row) if name not in _tests_of(file)]


def _tests_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
