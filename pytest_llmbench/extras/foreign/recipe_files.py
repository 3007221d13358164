"""The files of other tools that list loads, recognised by their content: their entries as recipes.

- vLLM: ``.buildkite/performance-benchmarks/tests/{serving,latency,throughput}-tests*.json``, a list of
  entries, or ``defaults`` and ``tests``; each serving entry at every rate with every number in flight.
- perf-eval: ``workloads/*.yaml``, ``vllm`` (the server) and ``vllm_bench.configs``.
- TensorRT-LLM: ``tests/scripts/perf-sanity/aggregated/*.yaml``, ``server_configs`` with ``client_configs``.
- GuideLLM: scenarios, flat (to 0.5) or with ``spec``. inference-perf: configurations, an entry a stage.
- A test file of SGLang, or a script: see ``command_lines``.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.extras.foreign import tool_words as words
from pytest_llmbench.extras.foreign.command_lines import of_python, of_script
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError, list_at, object_at
from pytest_llmbench.extras.foreign.guidellm_scenarios import of_guidellm
from pytest_llmbench.extras.foreign.recipes import Recipe, Server, recipes_of
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, parse_yaml, read_bytes

MOST_RECIPES: Final = 1_000
_REMEDY = "give a list, a configuration or a script as docs/how-to/run-recipes.md names them"
Folders = Sequence[Path]


def read_recipes(path: Path, folder: Path) -> tuple[Recipe, ...]:
    """Every recipe in a file. ``folder``: where data sets may lie, beside that of the file.

    SuiteError, naming the entry, for a file of no form that is known here.
    """
    where, folders = f"--llm-import {path}", (path.parent, folder)
    try:
        raw = read_bytes(path, SMALL_BYTES)
        if path.suffix == ".py":
            found = tuple(of_python(raw.decode(), folders))
        elif path.suffix in (".json", ".yaml", ".yml"):
            content = parse_json(raw) if path.suffix == ".json" else parse_yaml(raw)
            found = tuple(_reader_of(content)(content, folders))
        else:
            found = tuple(of_script(raw.decode(), folders))
    except OSError as error:
        raise SuiteError(f"cannot be read: {error.strerror or error}", where=where, remedy=_REMEDY) from error
    except (ValueError, SyntaxError) as error:  # WrongShapeError among them
        raise SuiteError(str(error), where=where, remedy=_REMEDY) from error
    if not found:
        raise SuiteError("it has no tests", where=where, remedy=_REMEDY)
    if len(found) > MOST_RECIPES:
        raise SuiteError(f"it has {len(found)} tests, most are {MOST_RECIPES}", where=where, remedy=_REMEDY)
    return found


def _reader_of(content: Any) -> Callable[[Any, Folders], Iterator[Recipe]]:
    if isinstance(content, list):
        return _vllm
    if not isinstance(content, dict):
        raise WrongShapeError(f"it is {shown(content)}: no list and no object")
    for key, reader in _READERS.items():
        if key in content:
            return reader
    raise WrongShapeError(
        f"of no form that is known: none of {', '.join(_READERS)}; its fields: {Fields(content).named()}"
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
        raise WrongShapeError(f"{where}.{name} is {shown(found)}: no text")
    return shlex.split(found)


def _environment(given: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    return tuple((str(name), str(value)) for name, value in given.items())


def _vllm_server(model: Any, more: Sequence[str], env: Mapping[str, Any]) -> Server | None:
    if not isinstance(model, str):
        return None
    return Server(("vllm", "serve", model, *more, "--port", "{port}"), _environment(env))


_OF_LISTS = ("server_environment_variables", "server_parameters", "client_parameters",
             "environment_variables", "parameters")  # fmt: skip


def _vllm(content: Any, folders: Folders) -> Iterator[Recipe]:
    """vLLM's lists. The scripts beside them start a server for each entry on a port of their own."""
    defaults = object_at(content, "defaults", "the list") if isinstance(content, dict) else {}
    for number, entry in enumerate(list_at(content, "tests", "the "), start=1):
        if not entry.keys() & {"test_name", "client_parameters", "parameters"}:
            raise WrongShapeError(f"entry {number} has neither test_name nor client_parameters")
        name = Fields(entry).text("test_name") or f"entry {number}"
        merged = {
            each: {**object_at(defaults, each, "defaults"), **object_at(entry, each, name)}
            for each in _OF_LISTS
        }
        if "parameters" in entry:
            yield from _in_process(name, merged["parameters"], merged["environment_variables"], folders)
            continue
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
    for entry in list_at(object_at(content, "vllm_bench", "the recipe"), "configs", "vllm_bench."):
        name = Fields(entry).text("name") or "bench"
        given = {key: value for key, value in entry.items() if key != "args"}
        given |= object_at(entry, "args", name) | {"model": vllm.get("model")}
        yield from recipes_of(words.PERF_EVAL, name, given, server, folders)


_NO_SETTING = frozenset(
    {"name", "model_name", "client_configs", "server_env_var", "gpus", "gpus_per_node", "match_mode"}
)


def _tensorrt(content: Any, folders: Folders) -> Iterator[Recipe]:
    for entry in list_at(content, "server_configs", "the file's "):
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
        for client in list_at(entry, "client_configs", f"{name}."):
            own = Fields(client).text("name") or "client"
            yield from recipes_of(words.TENSORRT, f"{name}-{own}", client, server, folders)


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
    for number, stage in enumerate(list_at(load, "stages", "load."), start=1):
        yield from recipes_of(words.INFERENCE_PERF, f"stage_{number}", base | stage, None, folders)


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
