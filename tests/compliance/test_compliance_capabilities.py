"""Each structural property names tests that exist."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from pytest_llmbench.compliance.evidence import CAPABILITIES

ROOT = Path(__file__).parents[2]


@cache
def functions_in(file: str) -> set[str]:
    """The names of the test functions in a file of the tree; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text("utf-8") if path.is_file() else "")
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {function.name for function in functions if function.name.startswith("test_")}


def elsewhere(name: str) -> str:
    """The files that a test of this name may have moved to."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return ", ".join(
        str(path.relative_to(ROOT)) for path in paths if f"def {name}(" in path.read_text("utf-8")
    )


def test_every_proof_is_a_test() -> None:
    wrong = []
    for name, capability in CAPABILITIES.items():
        for proof in capability.proofs:
            file, _, test = proof.rpartition("::")
            if test not in functions_in(file):
                wrong.append(f"{name}: {proof} (found: {elsewhere(test) or 'no test of this name'})")
    assert not wrong, "proofs that are no tests:\n" + "\n".join(wrong)


def test_every_capability_has_a_value_and_a_proof() -> None:
    for name, capability in CAPABILITIES.items():
        assert capability.value not in (None, False, ()), name
        assert capability.proofs, name
