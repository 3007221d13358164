"""Every number that becomes a text for people is written by ``model/numbers.py``: in one notation, with its
unit, and in words where it is undefined. Who writes numbers for machines is listed here."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import pytest_llmbench

PACKAGE = Path(pytest_llmbench.__file__).parent
FORMATS = "model/numbers.py"
FOR_MACHINES: Mapping[str, str] = {
    "reports/html.py": "positions in CSS",
    "reports/ci_files.py": "figures in files of CI systems, with six significant digits",
    "extras/foreign/recipes.py": "names of tests, as vLLM makes them",
    "extras/grid/front.py": "labels along the axes of an SVG",
    "harness/comparison/identity.py": "limits as saved baselines have them",
    "model/estimate.py": "what a debugger shows",
}
"""Modules whose floats are no text for people: of the wire, of files, of drawings; with the reason."""
_FLOAT = re.compile(r"[<>^=]?[-+ ]?(\d+|\{\})?[,_]?(\.(\d+|\{\}))?[feg%]", re.IGNORECASE)


def formats(tree: ast.AST) -> Iterator[int]:
    """The lines that format a float for a text: in an f-string by a specification or by ``round``, or by
    ``format``. ``float(f"…")`` rounds, and is none."""
    rounding = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "float"
        and node.args
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in rounding:
            yield from (node.lineno for part in node.values if _is_float(part))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "format":
            specification = node.args[1] if len(node.args) > 1 else None
            if isinstance(specification, ast.Constant) and _FLOAT.fullmatch(str(specification.value)):
                yield node.lineno


def _is_float(part: ast.expr) -> bool:
    if not isinstance(part, ast.FormattedValue):
        return False
    if isinstance(part.format_spec, ast.JoinedStr):
        pieces = (each.value if isinstance(each, ast.Constant) else "{}" for each in part.format_spec.values)
        return _FLOAT.fullmatch("".join(map(str, pieces))) is not None
    called = part.value.func if isinstance(part.value, ast.Call) else None
    return isinstance(called, ast.Name) and called.id == "round"


def test_numbers_in_texts_are_written_in_one_place() -> None:
    found = Counter(
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        for _ in formats(ast.parse(path.read_text("utf-8")))
    )
    for name in (FORMATS, *FOR_MACHINES):
        missing = not (PACKAGE / name).exists()  # an extra that is left out
        assert found.pop(name, 0) or missing, f"{name} formats no float any more: take it off the list"
    assert not found, "use quantity, number, percentage, duration or trimmed of model/numbers instead"


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('f"{x:.2f} s"', 1), ('f"{x:g}"', 1), ('f"{x:+,.{digits}f} %"', 1), ('f"{x:.1%}"', 1),
        ('f"{x:>6.1e}"', 1), ('f"{round(x)} s"', 1), ('format(x, ".2f")', 1), ('f"{x:g} to {y:g}"', 2),
        ('f"{count:,}"', 0), ('f"{name:<13}"', 0), ('f"{at:%Y}"', 0), ('f"{x}"', 0), ('float(f"{x:.3g}")', 0),
        ('format(x, "d")', 0), ("round(x, 3)", 0),
    ],
)  # fmt: skip
def test_what_counts_as_a_format_of_a_float(source: str, count: int) -> None:
    assert len(list(formats(ast.parse(source)))) == count
