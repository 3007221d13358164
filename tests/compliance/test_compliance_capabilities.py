"""Each structural property names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

from pytest_llmbench.compliance.evidence import CAPABILITIES

ROOT = Path(__file__).parents[2]


def node_ids() -> dict[str, set[str]]:
    """Name of each test function in the tree → its node ids."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.setdefault(node.name, set()).add(f"{path.relative_to(ROOT).as_posix()}::{node.name}")
    return found


def test_every_proof_is_a_test() -> None:
    existing = node_ids()
    wrong = []
    for name, capability in CAPABILITIES.items():
        for proof in capability.proofs:
            found = existing.get(proof.rpartition("::")[2], set())
            if proof not in found:
                wrong.append(f"{name}: {proof} (found: {', '.join(sorted(found)) or 'no test of this name'})")
    assert not wrong, "proofs that are no tests:\n" + "\n".join(wrong)


def test_every_capability_has_a_value_and_a_proof() -> None:
    for name, capability in CAPABILITIES.items():
        assert capability.value not in (None, False, ()), name
        assert capability.proofs, name
