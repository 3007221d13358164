"""The house rules, checked on the syntax tree: layers, cycles, sizes, names, who may import pytest."""

from __future__ import annotations

import ast
import builtins
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "pytest_llmbench"
NAME = "pytest_llmbench"

LAYERS: dict[str, int] = {
    "redaction": 0,
    "errors": 0,
    "input_files": 0,
    "installed": 0,
    "registry": 1,
    "own_folder": 1,
    "http_client": 1,
    "model": 1,
    "tokens": 2,
    "stats": 2,
    "workloads": 2,
    "arrivals": 2,
    "wire": 2,
    "columns": 2,
    "timing": 2,
    "metrics": 3,
    "methodology": 4,
    "compliance": 4,
    "compare": 4,
    "generator": 4,
    "simulator": 4,
    "probes": 4,
    "store": 4,
    "reports": 5,
    "harness": 6,
    "marks": 7,
    "plugin": 7,
    "__init__": 7,
    "__main__": 7,
    "extras": 8,
}
ALLOWED_BETWEEN_PEERS = {
    ("errors", "redaction"),
    ("workloads", "tokens"),
    ("model", "registry"),
    ("plugin", "marks"),
    ("__init__", "marks"),
    ("plugin", "__init__"),
}
"""Peers of one layer do not know each other, with these exceptions."""
FURTHER_LIMITS = {
    # package: the only packages below it that it may import
    "generator": {
        "errors",
        "http_client",
        "registry",
        "own_folder",
        "installed",
        "model",
        "stats",
        "workloads",
        "arrivals",
        "tokens",
        "wire",
        "columns",
        "timing",
    },
    "simulator": {
        "errors",
        "registry",
        "model",
        "stats",
        "workloads",
        "arrivals",
        "tokens",
        "wire",
        "columns",
        "timing",
    },
    "probes": {
        "errors",
        "redaction",
        "input_files",
        "http_client",
        "registry",
        "installed",
        "model",
        "stats",
        "workloads",
        "arrivals",
        "tokens",
        "wire",
    },
    "store": {
        "errors",
        "registry",
        "redaction",
        "input_files",
        "installed",
        "model",
        "stats",
        "workloads",
        "arrivals",
        "tokens",
        "wire",
        "columns",
    },
    "methodology": {"errors", "registry", "model", "stats", "workloads", "arrivals", "tokens", "metrics"},
    "compliance": {"errors", "model", "stats", "workloads", "arrivals", "tokens", "metrics"},
    "compare": {"errors", "model", "stats", "metrics"},
    "metrics": {"errors", "registry", "model", "stats"},
    "columns": {"errors", "model"},
    "reports": {"errors", "registry", "model", "metrics"},
}
PURE = {
    "model", "stats", "workloads", "arrivals", "tokens", "wire", "metrics", "methodology", "compliance",
    "compare", "reports",
}  # fmt: skip
IMPURE_MODULES = {
    "asyncio",
    "socket",
    "ssl",
    "threading",
    "subprocess",
    "time",
    "httpx",
    "uvloop",
    "selectors",
    "os",
}
MAY_IMPORT_PYTEST = {"plugin", "marks", "extras"}
BANNED_FILE_NAMES = {"utils", "util", "helpers", "common", "manager", "base", "misc"}
MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 700
MAX_FILES = 25
"""In a folder: more than that is a list and not a room."""

FRAGMENT = re.compile(
    r"…|(Of|Both|As|For(?! each )|In|On|By|To|With|From|At|Beside|Behind|Into|Likewise|None|Not|Neither|Nor"
    r"|So|And|But|Or)\b"
)
"""Words that begin what is part of a sentence: a docstring has to say by itself what the thing is."""

MODULES = sorted(PACKAGE.rglob("*.py"))
LEAVES = (ast.expr_context, ast.operator, ast.cmpop, ast.Constant, ast.Name)
"""Nodes that no test asks for: half of a tree."""


@cache
def dotted(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def home(module: str) -> str:
    """The package (or top-level module) of ours that a dotted name belongs to."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@dataclass(frozen=True)
class Source:
    """What the tests ask of a module: its tree itself would be too large to keep."""

    lines: int
    docstring: str | None
    imported: tuple[str, ...]
    called: frozenset[str]
    """Names that are called as they are, not as an attribute."""
    functions: tuple[tuple[str, int], ...]
    """Each with its number of lines."""
    fragments: tuple[str, ...]
    """Docstrings, each with its line, that begin like :data:`FRAGMENT`."""

    @property
    def tops(self) -> set[str]:
        return {name.split(".")[0] for name in self.imported}


@cache
def source_of(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    imports: list[str] = []
    called: set[str] = set()
    functions: list[tuple[str, int]] = []
    fragments: list[str] = []
    for node in branches(tree):
        fragments += fragments_of(node)
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += imported(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called.add(node.func.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, (node.end_lineno or node.lineno) - node.lineno + 1))
    return Source(
        len(text.splitlines()),
        ast.get_docstring(tree),
        tuple(imports),
        frozenset(called),
        tuple(functions),
        tuple(fragments),
    )


def branches(tree: ast.AST) -> Iterator[ast.AST]:
    """As :func:`ast.walk`, without :data:`LEAVES`."""
    left = [tree]
    while left:
        node = left.pop()
        yield node
        for value in vars(node).values():
            below = value if isinstance(value, list) else (value,)
            left += [each for each in below if isinstance(each, ast.AST) and not isinstance(each, LEAVES)]


def fragments_of(node: ast.AST) -> Iterator[str]:
    body = getattr(node, "body", None)
    for statement in body if isinstance(body, list) else ():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            said = statement.value.value
            if isinstance(said, str) and FRAGMENT.match(said.lstrip()):
                yield f"line {statement.lineno}: {said.splitlines()[0]}"


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "relative import: write the full name"
    return [f"{node.module}.{alias.name}" for alias in node.names]


@cache
def known() -> frozenset[str]:
    return frozenset(map(dotted, MODULES))


@cache
def our_targets(path: Path) -> frozenset[str]:
    """Our modules that ``path`` imports, as dotted names of modules that exist."""
    found = set()
    for name in source_of(path).imported:
        if name.split(".")[0] != NAME:
            continue
        while name not in known():
            name = name.rpartition(".")[0]
        found.add(name)
    return frozenset(found)


def none_of(found: Iterable[str]) -> None:
    """Fails with all of them, a line each."""
    lines = "\n".join(found)
    assert not lines, lines


def test_every_package_has_a_layer() -> None:
    assert {home(dotted(path)) for path in MODULES} <= set(LAYERS)


def upward(path: Path) -> Iterator[str]:
    """Imports of this module that the layers do not allow."""
    here = home(dotted(path))
    if dotted(path) == NAME:
        return  # the lazy public names: only under TYPE_CHECKING
    for target in our_targets(path):
        there = home(target)
        if there == here or (here, there) in ALLOWED_BETWEEN_PEERS:
            continue
        if LAYERS[there] >= LAYERS[here]:
            yield f"{dotted(path)} ({LAYERS[here]}) imports {target} ({LAYERS[there]})"
        elif there not in FURTHER_LIMITS.get(here, LAYERS):
            yield f"{dotted(path)} may not import {target}"


def test_imports_point_down() -> None:
    none_of(line for path in MODULES for line in upward(path))


def test_there_are_no_import_cycles() -> None:
    graph = {
        dotted(path): our_targets(path) - {NAME, dotted(path)} for path in MODULES if dotted(path) != NAME
    }
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module in done:
            return
        for target in graph.get(module, ()):
            visit(target, (*trail, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def impure(path: Path) -> Iterator[str]:
    """What a module of a pure package imports or calls and should not."""
    source = source_of(path)
    yield from (f"{dotted(path)} imports {name}" for name in source.tops & IMPURE_MODULES)
    yield from (f"{dotted(path)} calls {name}" for name in source.called & {"open", "print", "input"})


def test_pure_packages_do_no_input_or_output() -> None:
    none_of(line for path in MODULES if home(dotted(path)) in PURE for line in impure(path))


def test_only_the_plugin_and_extras_import_pytest() -> None:
    importing = [dotted(path) for path in MODULES if source_of(path).tops & {"pytest", "_pytest"}]
    none_of(module for module in importing if home(module) not in MAY_IMPORT_PYTEST)


def oversized(path: Path) -> Iterator[str]:
    """What is too long in a module, or badly named."""
    source = source_of(path)
    if path.stem in BANNED_FILE_NAMES:
        yield f"{dotted(path)} does not say what it is"
    if source.lines > MAX_MODULE_LINES:
        yield f"{dotted(path)} has {source.lines} lines"
    for name, lines in source.functions:
        if lines > MAX_FUNCTION_LINES:
            yield f"{dotted(path)}.{name} has {lines} lines"


def test_sizes_and_names() -> None:
    none_of(line for path in MODULES for line in oversized(path))


def test_no_folder_is_a_heap() -> None:
    files = Counter(path.parent for path in MODULES)
    assert {str(folder): count for folder, count in files.items() if count > MAX_FILES} == {}


def test_modules_say_what_they_are() -> None:
    none_of(dotted(path) for path in MODULES if not source_of(path).docstring)


def test_docstrings_say_what_the_thing_is() -> None:
    none_of(f"{dotted(path)}, {line}" for path in MODULES for line in source_of(path).fragments)


def test_public_names_resolve_and_are_sorted() -> None:
    import pytest_llmbench

    names = pytest_llmbench.__all__
    assert names == sorted(
        names, key=lambda name: (len(name) == 1 or not name.isupper(), not name[0].isupper(), name)
    )
    for name in names:
        assert getattr(pytest_llmbench, name) is not None
    assert set(names) <= set(dir(pytest_llmbench))
    assert not set(names) & set(vars(builtins))
