"""Figures of the house: files, folders, importers, sizes, and what one quick test enters.

python benchmarks/house_figures.py            # of the working tree
python benchmarks/house_figures.py --enter    # and what one quick test imports and enters
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "pytest_llmbench"
CI_NAMES = {"CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILDKITE"}
"""What names a CI, for which a report holds further files."""
SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(p99_ms=5000, rate=20)
def test_first_token(): ...
"""
TRACE = """
import atexit, json, sys
ENTERED = set()
def _enter(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_flags & 1 and "pytest_llmbench" in code.co_filename:
        ENTERED.add((code.co_filename, code.co_qualname))
def pytest_configure():
    sys.setprofile(_enter)
def pytest_unconfigure():
    sys.setprofile(None)
    ours = [name for name in sys.modules if name.split(".")[0] == "pytest_llmbench"]
    print("FIGURES " + json.dumps([ours, sorted(ENTERED)]), file=sys.__stdout__)
"""


def modules() -> dict[str, ast.Module]:
    """Dotted name to syntax tree, of all modules that are not empty packages."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


def importers(trees: dict[str, ast.Module], *, for_types: bool = True) -> dict[str, set[str]]:
    """Module to the modules that import it; those that do for their types alone only ``for_types``."""
    found = defaultdict[str, set[str]](set)
    for name, tree in trees.items():
        for node in _nodes(tree, for_types):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    target = f"{node.module}.{alias.name}"
                    found[target if target in trees else node.module].add(name)
    return found


def _nodes(node: ast.AST, for_types: bool) -> Iterator[ast.AST]:
    yield node
    for inner in ast.iter_child_nodes(node):
        if for_types or not (isinstance(inner, ast.If) and ast.unparse(inner.test) == "TYPE_CHECKING"):
            yield from _nodes(inner, for_types)


def percentiles(values: list[int]) -> str:
    ordered = sorted(values)
    picked = [ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.9, 0.99, 1.0)]
    return f"median {picked[0]}, P90 {picked[1]}, P99 {picked[2]}, longest {picked[3]}"


class Entered(NamedTuple):
    """What one quick test in virtual time takes of ours."""

    imported: list[str]
    """Dotted names of modules, in the order in which they came."""
    functions: set[tuple[str, str]]
    """File and qualified name of each function that was entered."""

    @property
    def files(self) -> set[str]:
        return {file for file, _ in self.functions}

    def only_imported(self) -> dict[str, list[str]]:
        """Modules with code of which no function was entered, by the one that imports them first.

        Those that only give values, types or names are needed all the same; the others are imported by what
        could import them later, or stands in the wrong module.
        """
        trees = modules()
        readers = importers(trees, for_types=False)
        place = {name: at for at, name in enumerate(self.imported)}
        found = defaultdict[str, list[str]](list)
        for name in self.imported:
            if name in trees and len(trees[name].body) > 1 and file_of(name) not in self.files:
                first = min(readers[name] & place.keys(), key=place.__getitem__, default="by its name")
                found[first].append(name)
        return dict(found)


def file_of(name: str) -> str:
    path = ROOT / name.replace(".", "/")
    return str(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


def entered() -> Entered:
    """Run one quick test in virtual time, with a report."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        (work / "test_one.py").write_text(SUITE, "utf-8")
        (work / "trace_entered.py").write_text(TRACE, "utf-8")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "trace_entered",
            "-p",
            "no:cacheprovider",
            "--llm-endpoint=replay",
            "--llm-scale=quick",
            "--llm-inconclusive=pass",
            "--llm-report=out",
        ]
        outside = {name: value for name, value in os.environ.items() if name not in CI_NAMES}
        said = subprocess.run(
            command,
            cwd=work,
            capture_output=True,
            text=True,
            env={**outside, "PYTHONPATH": f"{folder}:{ROOT}"},
        ).stdout
    (line,) = [line for line in said.splitlines() if "FIGURES " in line]
    imported, functions = json.loads(line.split("FIGURES ")[1])
    return Entered(imported, {(file, name) for file, name in functions})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--enter", action="store_true")
    asked = parser.parse_args()
    trees, paths = modules(), sorted(PACKAGE.rglob("*.py"))
    sizes = [len(path.read_text("utf-8").splitlines()) for path in paths]
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in paths)
    readers = importers(trees)
    alone = [
        name
        for name in trees
        if len(readers[name]) == 1 and next(iter(readers[name])).rpartition(".")[0] == name.rpartition(".")[0]
    ]
    functions = [
        (node.end_lineno or node.lineno) - node.lineno + 1
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    lines = Counter[str]()
    for path, size in zip(paths, sizes, strict=True):
        lines[path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "(top)"] += size
    print(f"{len(paths)} files, {sum(sizes)} lines in {len(folders)} folders")
    print("files a folder:", ", ".join(f"{name} {count}" for name, count in folders.most_common(8)))
    print(f"modules whose only reader is in their own folder: {len(alone)}")
    print("lines a module:", percentiles(sizes))
    print("lines a function:", percentiles(functions), f"of {len(functions)}")
    print("lines a package:", ", ".join(f"{name} {count}" for name, count in lines.most_common()))
    if asked.enter:
        found = entered()
        print(
            f"one quick test: {len(found.imported)} modules of ours imported, {len(found.files)} files and "
            f"{len(found.functions)} functions entered"
        )
        print("imported and not entered:")
        for first, names in found.only_imported().items():
            print(f"  by {first}: {', '.join(names)}")


if __name__ == "__main__":
    main()
