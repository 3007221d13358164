"""The files of other tools that list loads, recognised by their content: their entries as recipes.

- vLLM: ``.buildkite/performance-benchmarks/tests/{serving,latency,throughput}-tests*.json``, a list of
  entries, or ``defaults`` and ``tests``; each serving entry at every rate with every number in flight.
- perf-eval: ``workloads/*.yaml``, ``vllm`` (the server) and ``vllm_bench.configs``.
- TensorRT-LLM: ``tests/scripts/perf-sanity/aggregated/*.yaml``, ``server_configs`` with ``client_configs``.
- GuideLLM: scenarios, flat (to 0.5) or with ``spec``. inference-perf: configurations, an entry a stage.
- A test file of SGLang, or a script: calls of ``run_bench_serving``, and command lines of benchmarks.

A script is not run: its lines are read, with the variables that it sets itself. A server that it starts is
the server of the commands after it.
"""

from __future__ import annotations

import ast
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.extras.foreign import tool_words as words
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, each_of, list_at, object_at
from pytest_llmbench.extras.foreign.recipes import Recipe, Server, recipes_of
from pytest_llmbench.extras.foreign.tool_words import GUIDELLM
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, parse_yaml, read_bytes


def of_guidellm(content: Any, folders: Sequence[Path]) -> Iterator[Recipe]:
    metadata = object_at(content, "metadata", "the scenario")
    name = Fields(object_at(metadata, "labels", "metadata")).text("name") or "scenario"
    spec = object_at(content, "spec", "the scenario") or content
    changes = list_at(content, "benchmarks", "the scenario's ") if "benchmarks" in content else [{}]
    for number, change in enumerate(changes, start=1):
        given = scenario_fields(deepcopy(spec), change)
        own = name if len(changes) == 1 else f"{name}-{number}"
        yield from recipes_of(GUIDELLM, own, given, None, folders)


MOST_RECIPES: Final = 1_000
_REMEDY = "give a list, a configuration or a script as docs/how-to/run-recipes.md names them"
Folders = Sequence[Path]


def read_recipes(path: Path, folder: Path) -> tuple[Recipe, ...]:
    """Every recipe in a file. ``folder``: where data sets may lie, beside that of the file.

    SuiteError, naming each wrong entry, for a file of no form that is known here.
    """
    where, folders = f"--llm-import {path}", (path.parent, folder)
    try:
        raw = read_bytes(path, SMALL_BYTES)
        if path.suffix == ".py":
            found = tuple(of_python(raw.decode(), folders))
        elif path.suffix in (".json", ".yaml", ".yml"):
            found = tuple(
                _of_document(parse_json(raw) if path.suffix == ".json" else parse_yaml(raw), folders)
            )
        else:
            found = tuple(of_script(raw.decode(), folders))
    except OSError as error:
        raise SuiteError(f"cannot be read: {error.strerror or error}", where=where, remedy=_REMEDY) from error
    except WrongShapeError as error:
        raise SuiteError.from_mistakes(str(error).split("\n"), where=where, remedy=_REMEDY) from error
    except (ValueError, SyntaxError) as error:
        raise SuiteError(str(error), where=where, remedy=_REMEDY) from error
    if not found:
        raise SuiteError("it has no tests", where=where, remedy=_REMEDY)
    if len(found) > MOST_RECIPES:
        raise SuiteError(f"it has {len(found)} tests, most are {MOST_RECIPES}", where=where, remedy=_REMEDY)
    return found


def _of_document(content: Any, folders: Folders) -> Iterator[Recipe]:
    if isinstance(content, list):
        return _vllm(content, folders)
    if not isinstance(content, dict):
        raise WrongShapeError(f"it is {shown(content)}: neither a list nor an object")
    for key, reader in _READERS.items():
        if key in content:
            return reader(content, folders)
    raise WrongShapeError(
        f"an unknown form, none of {', '.join(_READERS)}; its fields: {Fields(content).named()}"
    )


def _flags(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Parameters as the options of a command line: one without a value is a flag."""
    found: list[str] = []
    for name, value in given.items():
        if value is None or value is False:
            continue
        found.append(f"--{str(name).replace('_', '-')}")
        if value is not True and value != "":
            found.append(json.dumps(value, default=str) if isinstance(value, dict | list) else str(value))
    return tuple(found)


def _split(content: Mapping[str, Any], name: str, where: str) -> list[str]:
    """The words of a field that is a piece of a command line."""
    found = content.get(name) or ""
    if not isinstance(found, str):
        raise WrongShapeError(f"{where}.{name} is {shown(found)}: not text")
    return shlex.split(found)


def _vllm_server(model: Any, more: Sequence[str], env: Mapping[str, Any]) -> Server | None:
    if not isinstance(model, str):
        return None
    variables = tuple((str(name), str(value)) for name, value in env.items())
    return Server(("vllm", "serve", model, *more, "--port", "{port}"), variables)


_OF_LISTS = ("server_environment_variables", "server_parameters", "client_parameters",
             "environment_variables", "parameters")  # fmt: skip


def _vllm(content: Any, folders: Folders) -> Iterator[Recipe]:
    """vLLM's lists. The scripts beside them start a server for each entry on a port of their own."""
    defaults = object_at(content, "defaults", "the list") if isinstance(content, dict) else {}

    def read(number: int, entry: dict[str, Any]) -> Iterator[Recipe]:
        if not entry.keys() & {"test_name", "client_parameters", "parameters"}:
            raise WrongShapeError(f"entry {number} has neither test_name nor client_parameters")
        name = Fields(entry).text("test_name") or f"entry {number}"
        merged = {
            each: {**object_at(defaults, each, "defaults"), **object_at(entry, each, name)}
            for each in _OF_LISTS
        }
        if "parameters" in entry:
            yield from _in_process(name, merged["parameters"], merged["environment_variables"], folders)
            return
        lists = {
            each: value
            for each in ("qps_list", "max_concurrency_list")
            if (value := entry.get(each, defaults.get(each))) is not None
        }
        server = {key.replace("_", "-"): value for key, value in merged["server_parameters"].items()}
        model = server.pop("model", None)
        more = _flags({key: value for key, value in server.items() if key not in ("host", "port")})
        launched = _vllm_server(model, more, merged["server_environment_variables"])
        yield from recipes_of(words.VLLM, name, lists | merged["client_parameters"], launched, folders)

    yield from each_of(content, "tests", "the ", read)


def _in_process(
    name: str, given: Mapping[str, Any], env: Mapping[str, Any], folders: Folders
) -> Iterator[Recipe]:
    """An entry of the latency or the throughput list: what is not of the benchmark is of the engine."""
    given = {key.replace("_", "-"): value for key, value in given.items()}
    table = words.VLLM if "num-prompts" in given else words.VLLM_BATCH
    if table is words.VLLM:
        if "dataset" in given:
            given |= {"dataset-name": "sharegpt", "dataset-path": given["dataset"]}
        given.pop("backend", None)  # of the offline engine
    own = {key: value for key, value in given.items() if key in table.names}
    of_engine = ("trust-remote-code", "tokenizer", "tokenizer-mode", "seed")
    engine = {key: value for key, value in given.items() if key not in table.names or key in of_engine}
    server = _vllm_server(given.get("model"), _flags(engine), env)
    yield from recipes_of(
        table, name, own | {"ignore-eos": True} if table is words.VLLM else own, server, folders
    )


def _perf_eval(content: Any, folders: Folders) -> Iterator[Recipe]:
    vllm = object_at(content, "vllm", "the recipe")
    server = _vllm_server(
        vllm.get("model"), _split(vllm, "serve_args", "vllm"), object_at(vllm, "env", "vllm")
    )

    def read(_: int, entry: dict[str, Any]) -> Iterator[Recipe]:
        name = Fields(entry).text("name") or "bench"
        given = {key: value for key, value in entry.items() if key != "args"}
        given |= object_at(entry, "args", name) | {"model": vllm.get("model")}
        yield from recipes_of(words.PERF_EVAL, name, given, server, folders)

    yield from each_of(object_at(content, "vllm_bench", "the recipe"), "configs", "vllm_bench.", read)


_NO_SETTING = frozenset(
    {"name", "model_name", "client_configs", "server_env_var", "gpus", "gpus_per_node", "match_mode"}
)


def _tensorrt(content: Any, folders: Folders) -> Iterator[Recipe]:
    def read(_: int, entry: dict[str, Any]) -> Iterator[Recipe]:
        fields = Fields(entry, "server_configs")
        name, alias = fields.text("name") or "server", fields.text("model_name") or ""
        model = Path(os.environ.get("LLM_MODELS_ROOT", ""), alias)
        settings = {key: value for key, value in entry.items() if key not in _NO_SETTING}
        variables = [each.partition("=") for each in _split(entry, "server_env_var", name)]
        server = Server(
            ("trtllm-serve", str(model), "--backend", "pytorch", "--port", "{port}",
             "--extra_llm_api_options", "{settings}"),
            tuple((key, value) for key, _, value in variables),
            json.dumps(settings, default=str),  # JSON is YAML
        )  # fmt: skip

        def of_client(_: int, client: dict[str, Any]) -> Iterator[Recipe]:
            own = Fields(client).text("name") or "client"
            yield from recipes_of(words.TENSORRT, f"{name}-{own}", client, server, folders)

        yield from each_of(entry, "client_configs", f"{name}.", of_client)

    yield from each_of(content, "server_configs", "the file's ", read)


def _inference_perf(content: Any, folders: Folders) -> Iterator[Recipe]:
    load, data, server = (object_at(content, name, "the file") for name in ("load", "data", "server"))
    api = content.get("api")
    api = api.get("type") if isinstance(api, dict) else api
    base = {"api": api, "model_name": server.get("model_name"), "ignore_eos": server.get("ignore_eos"),
            "data": data.get("type"), "dataset_path": data.get("path"),
            "type": None if load.get("type") == "concurrent" else load.get("type")}  # fmt: skip
    for side in ("input", "output"):
        law = object_at(data, f"{side}_distribution", "data")
        base |= {f"{side}_{'sd' if key in ('std', 'std_dev') else key}": value
                 for key, value in law.items() if key not in ("total_count", "type")}  # fmt: skip
    shared = object_at(data, "shared_prefix", "data")
    renamed = {"question_len": "input_mean", "output_len": "output_mean"}
    base |= {renamed.get(key, key): value for key, value in shared.items()}
    if "sweep" in load:
        base["load.sweep"] = True

    def read(number: int, stage: dict[str, Any]) -> Iterator[Recipe]:
        yield from recipes_of(words.INFERENCE_PERF, f"stage_{number}", base | stage, None, folders)

    yield from each_of(load, "stages", "load.", read)


_READERS: Final[Mapping[str, Callable[[Any, Folders], Iterator[Recipe]]]] = {
    "tests": _vllm,
    "server_configs": _tensorrt,
    "vllm_bench": _perf_eval,
    "load": _inference_perf,
    "spec": of_guidellm,
    "profile": of_guidellm,
    "rate_type": of_guidellm,
}
"""A field that only files of this form have → their reader."""


_CLIENTS: Final = (
    (re.compile(r"\bvllm bench serve\b|\bbenchmark_serving(\.py)?\b"), "vllm", words.VLLM),
    (re.compile(r"\bbench_serving(\.py)?\b"), "sglang", words.SGLANG),
    (re.compile(r"\baiperf profile\b|\bgenai-perf( profile)?\b"), "aiperf", words.AIPERF),
    (re.compile(r"\bguidellm benchmark( run)?\b"), "guidellm", words.GUIDELLM),
)
"""How the command of a benchmark begins, of which tool, and its words; the first that fits."""
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
        clients = ((found, tool, table) for begin, tool, table in _CLIENTS if (found := begin.search(line)))
        client = next(clients, None)
        if client is None:
            continue
        number += 1
        found, tool, table = client
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
        calls = [
            node
            for node in ast.walk(test)
            if isinstance(node, ast.Call)
            and getattr(node.func, "id", getattr(node.func, "attr", "")) == "run_bench_serving"
        ]
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


_OPEN: Final = {"constant": "constant", "async": "constant", "poisson": "poisson"}


def scenario_fields(spec: dict[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A scenario without its levels. ``change``: dotted paths, ``constraints[0].count``, with values."""
    for path, value in change.items():
        *steps, last = (int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path))
        place: Any = spec
        try:
            for step in steps:
                place = place[step]
            place[last] = value
        except (LookupError, TypeError):
            raise WrongShapeError(f"benchmarks names {shown(path)}, which spec does not have") from None
    found = {key: value for key, value in spec.items() if not isinstance(value, dict | list)}
    profile = spec.get("profile", spec.get("rate_type", "sweep"))
    profile = profile if isinstance(profile, dict) else {"kind": profile, "rate": spec.get("rate")}
    kind, rate = Fields(profile, "profile").text("kind") or "", profile.get("rate")
    found |= {key: value for key, value in profile.items() if key not in ("kind", "rate")}
    for key in ("profile", "rate_type", "rate", "data"):
        found.pop(key, None)
    if kind in _OPEN:
        found |= {"rate": rate, "arrival": _OPEN[kind]}
    elif kind in ("concurrent", "synchronous"):
        found["streams"] = 1 if kind == "synchronous" else profile.get("streams", rate)
    elif kind != "throughput":
        found[f"profile {kind}"] = True
    for constraint in list_at(spec, "constraints", "spec.") if "constraints" in spec else ():
        found[str(constraint.get("kind"))] = constraint.get("count", constraint.get("duration"))
    found |= object_at(spec, "backend", "spec") if isinstance(spec.get("backend"), dict) else {}
    found.pop("kind", None)
    return found | _data(spec.get("data"))


def _data(data: Any) -> dict[str, Any]:
    if isinstance(data, list) and len(data) == 1:
        data = data[0]
    if isinstance(data, str) and data.startswith("{"):
        data = parse_json(data)
    elif isinstance(data, str) and "=" in data:
        data = {key.strip(): int(value) if value.strip().isdigit() else value
                for key, _, value in (each.partition("=") for each in data.split(","))}  # fmt: skip
    if not isinstance(data, dict):
        return {f"data {shown(data)}": True}
    buckets = data.get("prefix_buckets")
    if isinstance(buckets, list) and len(buckets) == 1 and isinstance(buckets[0], dict):
        bucket = {key: value for key, value in buckets[0].items() if key != "bucket_weight"}
        data = {key: value for key, value in data.items() if key != "prefix_buckets"} | bucket
    one = {"turns": 1, "kind": "synthetic_text"}
    return {key: value for key, value in data.items() if one.get(key) != value}
