"""Command lines of benchmarks in a script, and calls of ``run_bench_serving`` in a test file of SGLang.

A script is not run: its lines are read, with the variables that it sets itself. A server that it starts is
the server of the commands after it.
"""

from __future__ import annotations

import ast
import math
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pytest_llmbench.extras.foreign import tool_words as words
from pytest_llmbench.extras.foreign.guidellm_scenarios import scenario_fields
from pytest_llmbench.extras.foreign.recipes import Recipe, Server, Words, recipes_of


class _Client(NamedTuple):
    tool: str
    words: Words


_CLIENTS: Final = (
    (re.compile(r"\bvllm bench serve\b|\bbenchmark_serving(\.py)?\b"), _Client("vllm", words.VLLM)),
    (re.compile(r"\bbench_serving(\.py)?\b"), _Client("sglang", words.SGLANG)),
    (re.compile(r"\baiperf profile\b|\bgenai-perf( profile)?\b"), _Client("aiperf", words.AIPERF)),
    (re.compile(r"\bguidellm benchmark( run)?\b"), _Client("guidellm", words.GUIDELLM)),
)
"""How the command of a benchmark begins; the first that fits."""
_SERVERS: Final = re.compile(
    r"\bvllm serve\b|\bsglang\.launch_server\b|\bsglang serve\b|\btrtllm-serve\b|\bllama-server\b"
)
_ASSIGNED: Final = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(\S*|\"[^\"]*\"|'[^']*')\s*$")
_VARIABLE: Final = re.compile(r"\$(?:\{([A-Za-z_]\w*)(?::-([^}]*))?\}|([A-Za-z_]\w*))")
_NUMBER: Final = re.compile(r"[+-]?(\d++(\.\d*+)?|\.\d++)([eE][+-]?\d++)?|inf")
_SGLANG_MODELS: Final = {
    "DEFAULT_MODEL_NAME_FOR_TEST": "meta-llama/Llama-3.1-8B-Instruct",
    "DEFAULT_SMALL_MODEL_NAME_FOR_TEST": "meta-llama/Llama-3.2-1B-Instruct",
    "DEFAULT_MOE_MODEL_NAME_FOR_TEST": "mistralai/Mixtral-8x7B-Instruct-v0.1",
}
"""Names that SGLang's ``test_utils`` defines."""
_CALLED: Final = {"num-prompts": 500, "dataset-name": "random", "random-input-len": 4096,
                  "random-output-len": 2048, "request-rate": "inf"}  # fmt: skip
"""What ``run_bench_serving`` sends unless it is told otherwise."""


def of_script(text: str, folders: Sequence[Path]) -> Iterator[Recipe]:
    """The benchmarks in a script. ValueError for one that cannot be taken apart."""
    variables: dict[str, str] = {}
    server: Server | None = None
    number = 0
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.lstrip().startswith("#"):
            continue
        if assigned := _ASSIGNED.match(line):
            variables[assigned[1]] = _filled(assigned[2].strip("\"'"), variables)
            continue
        line = _filled(line, variables)
        if _SERVERS.search(line):
            server = _server(shlex.split(line.rstrip().removesuffix("&"), comments=True))
        client = next(((found, each) for pattern, each in _CLIENTS if (found := pattern.search(line))), None)
        if client is None:
            continue
        number += 1
        found, (tool, table) = client
        given = options(shlex.split(re.split(r"\||>|&&|;", line[found.end() :])[0], comments=True))
        if table is words.GUIDELLM:
            given = scenario_fields({key.replace("-", "_"): value for key, value in given.items()}, {})
        yield from recipes_of(table, f"{tool}_{number}", given, server, folders)


def _filled(text: str, variables: Mapping[str, str]) -> str:
    """The text with the variables that are known; others stay, and keep the command from being measured."""

    def value(found: re.Match[str]) -> str:
        name, fallback = found[1] or found[3], found[2]
        return variables.get(name, found[0] if fallback is None else fallback)

    return _VARIABLE.sub(value, text)


def options(arguments: Sequence[str]) -> dict[str, Any]:
    """The options of a command line by name, a number where the text is one; one without a value is True."""
    found: dict[str, Any] = {}
    name = ""
    for each in arguments:
        if each.startswith("-") and not _NUMBER.fullmatch(each):
            name, equals, value = each.lstrip("-").partition("=")
            found[name] = _value(value) if equals else True
        elif name:
            found[name] = _value(each) if found[name] is True else f"{found[name]} {each}"
        else:
            found[each] = True
    unset = [
        f"the unset variable {value}" for value in found.values() if isinstance(value, str) and "$" in value
    ]
    return found | dict.fromkeys(unset, True)


def _value(text: str) -> Any:
    parts = text.split(",")
    if not all(_NUMBER.fullmatch(part) for part in parts):
        return text
    numbers = [int(part) if part.lstrip("+-").isdigit() else float(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else numbers


def _server(command: list[str]) -> Server:
    """The command of a server, on a free port."""
    kept = []
    skip = False
    for word in command:
        if skip or word.startswith("--port="):
            skip = False
        elif word == "--port":
            skip = True
        else:
            kept.append(word)
    start = next((at for at, word in enumerate(kept) if "=" not in word or word.startswith("-")), 0)
    env = tuple((key, value) for key, _, value in (word.partition("=") for word in kept[:start]))
    return Server((*kept[start:], "--port", "{port}"), env)


def of_python(text: str, folders: Sequence[Path]) -> Iterator[Recipe]:
    """The calls of ``run_bench_serving`` in the tests of a file. It is read, not run. SyntaxError or
    ValueError for one that is no Python."""
    try:
        tree = ast.parse(text)
    except (MemoryError, RecursionError):
        raise ValueError("its expressions are too deep") from None
    constants: dict[str, Any] = dict(_SGLANG_MODELS)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            constants[node.targets[0].id] = _constant(node.value, constants)
    classes = [node.body for node in tree.body if isinstance(node, ast.ClassDef)]
    for test in (
        node for body in (tree.body, *classes) for node in body if isinstance(node, ast.FunctionDef)
    ):
        calls = [node for node in ast.walk(test) if isinstance(node, ast.Call) and _called(node)]
        for number, call in enumerate(calls, start=1):
            given = {each.arg: _constant(each.value, constants) for each in call.keywords if each.arg}
            name = test.name.removeprefix("test_") + (f"_{number}" if len(calls) > 1 else "")
            yield from _of_call(name, given, folders)


def _of_call(name: str, given: Mapping[str, Any], folders: Sequence[Path]) -> Iterator[Recipe]:
    told = {key.replace("_", "-"): value for key, value in given.items() if value not in (None, False)}
    unread = [f"{key} (computed)" for key, value in told.items() if isinstance(value, ast.AST)]
    told = {key: value for key, value in told.items() if not isinstance(value, ast.AST)}
    more, model = told.pop("other-server-args", []), told.get("model")
    server = None
    if isinstance(model, str) and isinstance(more, list):
        launch = (sys.executable, "-m", "sglang.launch_server", "--model-path", model)
        server = Server((*launch, *map(str, more), "--port", "{port}"))
    told = _CALLED | told | dict.fromkeys(unread, True)
    rate = told["request-rate"]
    told["request-rate"] = "inf" if isinstance(rate, float) and math.isinf(rate) else rate
    yield from recipes_of(words.SGLANG, name, told, server, folders)


def _called(node: ast.Call) -> bool:
    return getattr(node.func, "id", getattr(node.func, "attr", "")) == "run_bench_serving"


def _constant(node: ast.expr, constants: Mapping[str, Any]) -> Any:
    """The value of an expression; the expression itself where it is no constant."""
    if isinstance(node, ast.Name):
        return constants.get(node.id, node)
    if ast.unparse(node) in ("float('inf')", "math.inf"):
        return math.inf
    try:
        return ast.literal_eval(node)
    except ValueError:
        return node
