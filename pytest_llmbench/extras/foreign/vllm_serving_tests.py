"""vLLM's lists of performance tests, ``serving-tests.json``: what each entry sends, and what has no
equivalent here.

Format: ``run_serving_tests`` of ``.buildkite/performance-benchmarks/scripts/run-performance-benchmarks.sh``
and the lists beside it (vllm-project/vllm at 01e4fce): a list of entries, or an object with ``defaults`` and
``tests``; each entry is run at every rate of ``qps_list`` with every number of ``max_concurrency_list``.
Lengths of random prompts: ``RandomDataset`` of ``vllm/benchmarks/datasets.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.extras.foreign.fields import Fields, WrongShapeError
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad, open_loop_of
from pytest_llmbench.input_files import SMALL_BYTES, parse_json, read_bytes

MOST_TESTS: Final = 1_000
_LONGEST = 200
"""Most characters of a parameter that are kept."""
_SECRET = re.compile(r"(?i)key|token(?!s|izer)|secret|password")
_REMEDY = "name a list such as .buildkite/performance-benchmarks/tests/serving-tests.json of vLLM"
_CHAT: Final = frozenset({"openai-chat"})
_COMPLETIONS: Final = frozenset({"vllm", "openai"})
_SEEN_TO: Final = frozenset(
    {
        "model", "served-model-name", "backend", "endpoint", "endpoint-type", "base-url", "host", "port",
        "tokenizer", "tokenizer-mode", "trust-remote-code", "dataset-name", "dataset-path", "num-prompts",
        "random-input-len", "random-output-len", "input-len", "output-len", "random-range-ratio",
        "burstiness", "temperature", "ignore-eos", "seed", "num-warmups", "disable-tqdm",
        "percentile-metrics", "metric-percentiles", "save-result", "save-detailed", "append-result",
        "result-dir", "result-filename", "label", "metadata", "goodput", "ready-check-timeout-sec", "profile",
    }
)  # fmt: skip
"""Parameters of the client that are taken over, or replaced by something else here."""


@dataclass(frozen=True, slots=True)
class ServingTest:
    """One entry of the list at one load."""

    name: str
    """The name that vLLM gives to its result file, without the suffix."""
    load: ForeignLoad
    requests: int | None
    """Number of requests; None if the entry leaves it to vLLM."""
    model: str | None
    input_tokens: tuple[int, int] | None = None
    """Lengths of the shortest and the longest random prompt; None for a data set."""
    output_tokens: tuple[int, int] | None = None
    dataset: Path | None = None
    """A ShareGPT file; None for random prompts."""
    server: Mapping[str, str] = field(default_factory=dict)
    """Parameters of the server, which has to be running already, and variables of its environment; these
    without values, since there are tokens among them."""
    told: tuple[str, ...] = ()
    """Parameters that are not taken over, but do not prevent the measurement."""
    obstacles: tuple[str, ...] = ()
    """Parameters that have no equivalent here: with any of them the entry is not measured."""


def read_serving_tests(path: Path) -> tuple[ServingTest, ...]:
    """Read every entry at every load. Raises SuiteError, naming the entry, for a file that is not such a
    list."""
    where = f"--llm-import {path}"
    try:
        content = parse_json(read_bytes(path, SMALL_BYTES))
    except OSError as error:
        raise SuiteError(f"cannot be read: {error.strerror or error}", where=where, remedy=_REMEDY) from error
    except ValueError as error:
        raise SuiteError(f"no JSON: {error}", where=where, remedy=_REMEDY) from error
    try:
        found = tuple(test for entry in _entries(content) for test in _tests(entry, path.parent))
    except WrongShapeError as error:
        raise SuiteError(str(error), where=where, remedy=_REMEDY) from error
    if not found:
        raise SuiteError("it has no tests", where=where, remedy=_REMEDY)
    if len(found) > MOST_TESTS:
        raise SuiteError(f"it has {len(found)} tests, most are {MOST_TESTS}", where=where, remedy=_REMEDY)
    return found


def _entries(content: Any) -> Iterator[dict[str, Any]]:
    """The entries, completed by the defaults."""
    defaults = content.get("defaults", {}) if isinstance(content, dict) else {}
    entries = content.get("tests") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not isinstance(defaults, dict):
        raise WrongShapeError("no list of tests: a JSON list, or an object with tests and defaults")
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise WrongShapeError(f"entry {number} is {shown(entry)}: no JSON object")
        if not entry.keys() & {"test_name", "client_parameters"}:
            raise WrongShapeError(f"entry {number} has neither test_name nor client_parameters")
        nested = ("server_environment_variables", "server_parameters", "client_parameters")
        merged = {name: _merged(defaults.get(name), entry.get(name), number) for name in nested}
        lists = {
            name: value
            for name in ("qps_list", "max_concurrency_list")
            if (value := entry.get(name, defaults.get(name))) is not None
        }
        yield {"test_name": f"entry {number}", **entry, **lists, **merged}


def _merged(first: Any, second: Any, number: int) -> dict[str, Any]:
    for given in (first, second):
        if given is not None and not isinstance(given, dict):
            raise WrongShapeError(f"entry {number} has parameters {shown(given)}: no JSON object")
    return {**(first or {}), **(second or {})}


def _tests(entry: Mapping[str, Any], folder: Path) -> Iterator[ServingTest]:
    name = Fields(entry).text("test_name") or ""
    given = {key.replace("_", "-"): value for key, value in entry["client_parameters"].items()}
    client = Fields(given, f"{name}.client_parameters")
    requests = client.count("num-prompts")
    for qps, most in product(
        _numbers(entry, "qps_list", name), _numbers(entry, "max_concurrency_list", name)
    ):
        rate = math.inf if qps is None else qps
        cap = None if most is None or (requests is not None and most >= requests) else _whole(most, name)
        load = open_loop_of(rate, client.number("burstiness", endless=True), cap)
        lengths, dataset, obstacles = _prompts(client, folder)
        yield ServingTest(
            name=_called(name, qps, most),
            load=load,
            requests=requests,
            model=client.text("model"),
            input_tokens=lengths[0],
            output_tokens=lengths[1],
            dataset=dataset,
            server=_server(entry),
            told=tuple(_told(client, given)),
            obstacles=(*_of_load(load), *obstacles, *_of_client(client, given)),
        )


def _numbers(entry: Mapping[str, Any], name: str, test: str) -> Sequence[float | None]:
    """The numbers of a list, None for ``"inf"``; a single None if there is no list."""
    values = entry.get(name)
    if values is None:
        return (None,)
    if not isinstance(values, list) or not values:
        raise WrongShapeError(f"{test}.{name} is {shown(values)}: no list of numbers")
    return [_number(value, f"{test}.{name}") for value in values]


def _number(value: Any, where: str) -> float | None:
    found = Fields({"entry": value}, where).number("entry", endless=True)
    if not found:
        raise WrongShapeError(f"{where} has {shown(value)}: no number above zero")
    return None if math.isinf(found) else found


def _whole(value: float, test: str) -> int:
    if value != int(value):
        raise WrongShapeError(f"{test}.max_concurrency_list has {value:g}: no whole number")
    return int(value)


def _called(name: str, qps: float | None, most: float | None) -> str:
    """The name of a test as vLLM forms it; without the part of a list that does not exist."""
    rate = "inf" if qps is None else f"{qps:g}"
    return f"{name}_qps_{rate}" + ("" if most is None else f"_concurrency_{most:g}")


Lengths = tuple[tuple[int, int] | None, tuple[int, int] | None]


def _prompts(client: Fields, folder: Path) -> tuple[Lengths, Path | None, list[str]]:
    """The lengths of random prompts, or the file of a data set; and what prevents either."""
    kind = client.text("dataset-name")
    if kind == "random":
        spread = client.number("random-range-ratio") or 0.0
        sides = [
            client.count(f"random-{side}-len") or client.count(f"{side}-len") for side in ("input", "output")
        ]
        if None in sides or not 0 <= spread < 1:
            return (None, None), None, ["random prompts without a length for input and output"]
        inputs, outputs = ((math.floor(n * (1 - spread)), math.ceil(n * (1 + spread))) for n in sides if n)
        return ((max(inputs[0], 1), inputs[1]), (max(outputs[0], 1), outputs[1])), None, []
    if kind != "sharegpt":
        return (None, None), None, [f"dataset_name {shown(kind)}: random and sharegpt are taken over"]
    path = folder / Path(client.text("dataset-path") or "").expanduser()
    return (None, None), path, [] if path.is_file() else [f"the data set {shown(str(path))} is not there"]


def _of_load(load: ForeignLoad) -> list[str]:
    if load.rate is not None and not math.isinf(load.rate) and load.concurrency is not None:
        return [f"{load.describe()}: a rate with a cap is neither an open nor a closed loop"]
    if load.concurrency is None and load.rate is not None and math.isinf(load.rate):
        return ["all requests at once: there is no such load here; give max_concurrency_list"]
    return []


def _of_client(client: Fields, given: Mapping[str, Any]) -> list[str]:
    backend = client.text("backend") or client.text("endpoint-type") or "openai"
    found = [] if backend in _CHAT | _COMPLETIONS else [f"backend {shown(backend)}"]
    if client.number("temperature"):
        found.append(f"temperature {client.number('temperature'):g}: workloads here have 0")
    return [*found, *(f"client parameter {shown(name)}" for name in given if name not in _SEEN_TO)]


def _told(client: Fields, given: Mapping[str, Any]) -> Iterator[str]:
    backend = client.text("backend") or client.text("endpoint-type") or "openai"
    if backend in _COMPLETIONS:
        yield "sent to completions by vLLM: give --llm-api=openai-completions"
    if "ignore-eos" in given or client.text("dataset-name") == "random":
        yield "vLLM lets replies go on to their limit: request.ignore_eos = true in the SUT file"
    if client.text("dataset-name") == "sharegpt":
        yield "vLLM leaves out short and long conversations of ShareGPT, here all are taken"


def _server(entry: Mapping[str, Any]) -> dict[str, str]:
    """Name → text of the server's parameters. Values that may be secret are left out."""
    told = {
        name: "…" if _SECRET.search(name) else str(value)[:_LONGEST]
        for name, value in entry["server_parameters"].items()
        if value is not None
    }
    return told | {f"${name}": "" for name in entry["server_environment_variables"]}
