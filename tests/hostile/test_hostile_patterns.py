"""No text makes a regular expression of ours take more than time in proportion to its length.

The patterns are found by walking the package, so a new one is held to this without being named here.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest

import pytest_llmbench
from pytest_llmbench.redaction import Redactor
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.error_replies import classify_status
from pytest_llmbench.wire.inline_reasoning import Form, InlineReasoning, split_inline

KEY = "sk-canary/7A+q<\"x'-9b3Z5w"

_parser = re._parser  # type: ignore[attr-defined]

LONG, SHORT = 1 << 13, 1 << 10
"""Characters. For the first, what is quadratic takes 64 times as long as for the other, what is linear 8."""
AT_MOST = 24
STANDS_STILL_S = 0.01
"""CPU time. The quickest pattern that is quadratic takes five times as long for :data:`LONG`; most take a
hundredth of it, and need no second look."""
TRIES = 3
"""What else the machine does only adds to a time, so the least counts."""
FUNCTIONS = frozenset({"search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"})
REPRESENTATIVES = {
    "CATEGORY_DIGIT": "7",
    "CATEGORY_NOT_DIGIT": "y",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": "y",
    "CATEGORY_WORD": "y",
    "CATEGORY_NOT_WORD": "~",
}
_Apply = Callable[["re.Pattern[Any]", Any], object]
APPLIED: dict[str, _Apply] = {
    "match": lambda pattern, text: pattern.match(text),
    "fullmatch": lambda pattern, text: pattern.fullmatch(text),
    "search": lambda pattern, text: pattern.search(text),
    "all": lambda pattern, text: sum(1 for _ in pattern.finditer(text)),
}


class Use(NamedTuple):
    where: str
    pattern: re.Pattern[Any]
    functions: frozenset[str]
    """Keys of :data:`APPLIED`."""


class _Namespace(dict[str, Any]):
    """Names of a module; a local one is some number in words."""

    def __missing__(self, name: str) -> str:
        if name in __builtins__:  # type: ignore[operator]
            raise KeyError(name)
        return "12"


ROOT = Path(pytest_llmbench.__file__).parent
_APPLIED = re.compile(rf"\.(?:compile|{'|'.join(sorted(FUNCTIONS))})\b")
_CALLED = re.compile(rf"\bre\.(?:compile|{'|'.join(sorted(FUNCTIONS))})\(")


@cache
def texts_of_modules() -> dict[str, str]:
    """Module → its source. Each process collects tests, so nothing is imported or parsed then."""
    paths = [path for path in ROOT.rglob("*.py") if path.name != "__main__.py"]
    names = [path.relative_to(ROOT.parent).with_suffix("").parts for path in paths]
    dotted = [".".join(parts).removesuffix(".__init__") for parts in names]
    return dict(zip(dotted, (path.read_text("utf-8") for path in paths), strict=True))


@cache
def modules() -> dict[str, ast.Module]:
    """Those that apply a pattern, their own or another's."""
    return {name: ast.parse(text) for name, text in texts_of_modules().items() if _APPLIED.search(text)}


def _functions(function: str) -> str:
    return function if function in APPLIED else "all"


@cache
def _used() -> dict[tuple[str, str], set[str]]:
    """By module and name of a pattern, what it is used for there."""
    found: dict[tuple[str, str], set[str]] = {}
    for module, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
                owner = node.value
                name = getattr(owner, "id", getattr(owner, "attr", ""))
                found.setdefault((module, name), set()).add(_functions(node.attr))
    return found


def _functions_of(module: str, name: str) -> frozenset[str]:
    """What a pattern is used for, where its own module does not use it by others."""
    there = _used().get((module, name))
    return frozenset(there or (used for (_, each), uses in _used().items() if each == name for used in uses))


def _names(tree: ast.Module) -> dict[ast.AST, str]:
    """For each value that is given a name, the name; of a pattern whose function is taken, the function."""
    names: dict[ast.AST, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            names[node.value] = (
                target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
            )
        if isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
            names[node.value] = f".{node.attr}"
    return names


def uses(module: str) -> Iterator[Use]:
    tree = modules()[module]
    names = _names(tree)
    scope = _Namespace(vars(importlib.import_module(module)))
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        if not (
            isinstance(called, ast.Attribute)
            and isinstance(called.value, ast.Name)
            and called.value.id == "re"
        ):
            continue
        if called.attr not in (*FUNCTIONS, "compile"):
            continue
        assert isinstance(node, ast.Call)
        place = {"compile": 1, "sub": 4, "subn": 4, "split": 3}.get(called.attr, 2)
        flags = [
            *node.args[place : place + 1],
            *(each.value for each in node.keywords if each.arg == "flags"),
        ]
        pattern = re.compile(_value(node.args[0], scope), *(_value(each, scope) for each in flags))
        name = names.get(node, "")
        functions = frozenset({_functions(called.attr)})
        if name.startswith("."):
            functions = frozenset({_functions(name[1:])})
        elif called.attr == "compile":
            functions = _functions_of(module, name) or frozenset({"all"})
        yield Use(f"{module}:{node.lineno}", pattern, functions)


def _value(node: ast.expr, scope: dict[str, Any]) -> Any:
    return eval(compile(ast.Expression(node), "pattern", "eval"), {}, scope)


def _signs(parsed: Any) -> Iterator[str]:
    """A character for each that the pattern names, and for each kind of them."""
    for kind, given in parsed:
        name = str(kind)
        if name in ("LITERAL", "NOT_LITERAL"):
            yield chr(given)
        elif name == "RANGE":
            yield chr(given[0])
        elif name == "CATEGORY":
            yield REPRESENTATIVES[str(given)]
        elif name == "IN":
            yield from _signs(given)
        else:
            for part in _parts(kind, given):
                yield from _signs(part)


def _parts(kind: Any, given: Any) -> list[Any]:
    """The sequences within an element of a pattern."""
    name = str(kind)
    if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        return [given[2]]
    if name == "SUBPATTERN":
        return [given[-1]]
    if name == "BRANCH":
        return list(given[1])
    if name in ("ASSERT", "ASSERT_NOT"):
        return [given[1]]
    if name == "ATOMIC_GROUP":
        return [given]
    return []


def _sample(parsed: Any) -> str:
    """A short text of the kind."""
    text = ""
    for kind, given in parsed:
        name = str(kind)
        if name == "LITERAL":
            text += chr(given)
        elif name == "NOT_LITERAL":
            text += "~" if chr(given) != "~" else "y"
        elif name == "IN":
            text += next((sign for sign in "y7 ~<-" if _is_in(sign, given)), next(_signs(given), "y"))
        elif name == "ANY":
            text += "y"
        elif name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            text += _sample(given[2]) * max(given[0], 1)
        elif name in ("SUBPATTERN", "BRANCH", "ATOMIC_GROUP"):
            text += _sample(_parts(kind, given)[0])
    return text


def _is_in(sign: str, given: Any) -> bool:
    negated, found = False, False
    for kind, value in given:
        name = str(kind)
        if name == "NEGATE":
            negated = True
        elif name == "LITERAL":
            found |= chr(value) == sign
        elif name == "RANGE":
            found |= value[0] <= ord(sign) <= value[1]
        elif name == "CATEGORY":
            letter = str(value).removeprefix("CATEGORY_").removeprefix("NOT_")[0].lower()
            found |= re.match("\\" + (letter.upper() if "NOT_" in str(value) else letter), sign) is not None
    return found != negated


def _beginnings(parsed: Any) -> Iterator[str]:
    """Samples of what the pattern, and each sequence in it, begins with."""
    elements = list(parsed)
    for length in range(1, len(elements) + 1):
        # Half of a word is no place where a pattern could begin to repeat itself.
        if [str(kind) for kind, _ in elements[length - 1 : length + 1]] != ["LITERAL", "LITERAL"]:
            yield _sample(elements[:length])
    for kind, given in elements:
        for part in _parts(kind, given):
            yield from _beginnings(part)


def texts(pattern: str, flags: int) -> tuple[list[str], list[tuple[str, str]]]:
    """What to repeat; and what to begin with and to repeat then."""
    parsed = _parser.parse(pattern, flags & ~re.LOCALE)
    named = set(_signs(parsed))
    signs = sorted({sign for sign in named if not sign.isalnum()} | set(" \ny7"))
    begun = sorted({each for each in _beginnings(parsed) if 1 < len(each) <= 40}, key=len)[:12]
    return signs, [("", one) for one in begun] + list(itertools.product(begun, signs))


@pytest.mark.parametrize(
    "module", sorted(name for name, text in texts_of_modules().items() if _CALLED.search(text))
)
def test_patterns_take_time_in_proportion_to_the_text(module: str) -> None:
    found = list(uses(module))
    assert found
    for use in found:
        _hold(use)


def _hold(use: Use) -> None:
    written = use.pattern.pattern
    source = written if isinstance(written, str) else written.decode("latin-1")
    repeated, begun = texts(source, use.pattern.flags)

    for function in use.functions:
        apply = partial(APPLIED[function], use.pattern)
        for head, sign in (*begun, *(("", sign) for sign in repeated)):

            def work(size: int, head: str = head, sign: str = sign, apply: Any = apply) -> object:
                text = head + (sign * (size // len(sign) + 1))[:size] + "\0"  # at which it may fail
                return apply(text if isinstance(written, str) else text.encode())

            assert is_linear(work), (use.where, function, head, sign)


def is_linear(work: Callable[[int], object]) -> bool:
    """Whether work on so many characters takes time in proportion to them, or hardly any."""

    def took(size: int) -> float:
        began = time.thread_time()
        work(size)
        return time.thread_time() - began

    if took(LONG) < STANDS_STILL_S:
        return True
    short = min(took(SHORT) for _ in range(TRIES))
    return any(took(LONG) < AT_MOST * short for _ in range(TRIES))


@pytest.mark.parametrize(
    ("source", "function"),
    [
        # A marker and then spaces: each of two parts of the header takes all of them, in turn.
        (r"(?:<\|start\|>[^<]*)?(?:<\|channel\|>\s*\w*[^<]*)?<\|message\|>", "match"),
        (r"\s+$", "search"),
        (r"\\+n", "all"),
        (r"<(script)\b.*?</\1>", "all"),
    ],
)
def test_the_search_finds_what_is_quadratic(source: str, function: str) -> None:
    with pytest.raises(AssertionError, match="planted"):
        _hold(Use("planted", re.compile(source), frozenset({function})))


def _split(text: str) -> None:
    chunk = Chunk(stamp_ns=1, read_index=0, text=text)
    for form in get_args(Form):
        split_inline([chunk], InlineReasoning(form))


READERS: dict[str, tuple[Callable[[str], object], list[str]]] = {
    "the redactor": (
        Redactor([KEY]).text,
        [*"\\%&…*.<(\n", KEY[:6], KEY[-6:], f"{KEY[:6]}…", f"…{KEY[-6:]}", KEY, "%2525", "\\u00", "&#x4"],
    ),
    "inline reasoning": (
        _split,
        ["<", "<|channel|>", "<|start|>", "<|end|>", "<|channel|>analysis<|message|>a<|end|>", "<think>"],
    ),
    "an error page": (
        lambda text: classify_status(500, {}, text.encode()),
        ["<", "<script>", "<style", "too ", "guardrail", '{"error":', "[", "\\"],
    ),
}
"""What reads a server's text by several patterns and in loops; and what is repeated for it."""


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_takes_time_in_proportion_to_the_text(reader: str) -> None:
    read, repeated = READERS[reader]
    for begun, sign in itertools.product(["", "<|channel|>", KEY[:6]], [*repeated, " ", "a"]):
        assert is_linear(lambda size, begun=begun, sign=sign: read(begun + sign * (size // len(sign)))), sign
