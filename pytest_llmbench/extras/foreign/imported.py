"""``--llm-import FILE``: vLLM's list of performance tests, collected as a module made from its entries.

Each entry at each load is a test with the marker ``ttft``: one load, with its latencies and rates. The list
has no limits, so the tests have none; ``--llm-save``, ``--llm-compare`` and ``--llm-compare-fail`` give them
some.
"""

from __future__ import annotations

import os
import re
import types
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.marks import llmbench
from pytest_llmbench.model.fact_keys import EndpointFact, SUTFact
from pytest_llmbench.redaction import outward

if TYPE_CHECKING:
    from pytest_llmbench.extras.foreign.vllm_serving_tests import ServingTest
    from pytest_llmbench.model.request import Workload
    from pytest_llmbench.model.result import TestResult


def register(config: pytest.Config, path: Path) -> None:
    """Collect ``path`` too. UsageError for a file that is not such a list."""
    from pytest_llmbench.extras.foreign.vllm_serving_tests import read_serving_tests

    folder = config.invocation_params.dir
    path = _absolute(folder, path)
    try:
        tests = read_serving_tests(path)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None
    chosen = {_absolute(folder, given.partition("::")[0]) for given in config.args}
    if path not in chosen:  # one of its tests may be chosen by its node id
        config.args.append(str(path))
    config.pluginmanager.register(ImportedTests(path, tests), "llmbench-imported")


def _absolute(folder: Path, path: Path | str) -> Path:
    """The absolute path as pytest writes it for what it collects: without ``..``, with links unresolved."""
    return Path(os.path.abspath(folder / path))  # noqa: PTH100 - resolve() would follow links


class ImportedTests:
    """Collects this one file, and tells what the list requires of the server."""

    def __init__(self, path: Path, tests: tuple[ServingTest, ...]) -> None:
        self._path = path
        self._tests = tests

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path != self._path:
            return None
        outside = not file_path.is_relative_to(parent.config.rootpath)
        # pytest gives what lies outside of its root no name at all.
        name: dict[str, Any] = {"nodeid": file_path.name} if outside else {}
        module: ImportedModule = ImportedModule.from_parent(parent, path=file_path, **name)
        module.tests = self._tests
        return module

    def pytest_report_collectionfinish(self) -> list[str]:
        """Lines on what the session does not do: launch servers, set their parameters, choose the API."""
        servers = {tuple(sorted(test.server.items())): test.server for test in self._tests}
        count = f"llmbench: {len(self._tests)} tests of {self._path.name}"
        lines = [f"{count}; none launches a server, which has to run with"]
        lines += [f"  {_words(server)}" for server in servers.values()]
        told = dict.fromkeys(said for test in self._tests for said in test.told)
        return [outward(line) for line in (*lines, *(f"  {said}" for said in told))]


def _words(server: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}".strip() for name, value in server.items()) or "no parameters"


class ImportedModule(pytest.Module):
    """A module without source: it has a function for each test of the list."""

    tests: tuple[ServingTest, ...] = ()

    def _getobj(self) -> types.ModuleType:
        module = types.ModuleType(self.path.stem)
        for name, test in _named(self.tests):
            setattr(module, name, _function(name, test, self.path))
        return module


def _named(tests: Iterable[ServingTest]) -> Iterable[tuple[str, ServingTest]]:
    """The tests with distinct names that functions may have."""
    taken: set[str] = set()
    for test in tests:
        name = base = "test_" + re.sub(r"\W", "_", test.name)
        number = 2
        while name in taken:
            name, number = f"{base}_{number}", number + 1
        taken.add(name)
        yield name, test


def _function(name: str, test: ServingTest, path: Path) -> Callable[..., None]:
    def measured(llm_result: TestResult, pytestconfig: pytest.Config) -> None:
        served = llm_result.facts.value(EndpointFact.MODEL) or llm_result.facts.value(SUTFact.MODEL_NAME)
        if not pytestconfig.getoption("llm_model") and test.model not in (None, served):
            pytest.fail(
                f"{test.name} is about the model {test.model}, and {served} was measured: select with -k, or "
                "say with --llm-model that it is the same",
                pytrace=False,
            )

    def left_out() -> None: ...

    made = left_out if test.obstacles else measured
    # Reports say where a test is: in the list.
    made.__code__ = made.__code__.replace(co_filename=str(path), co_firstlineno=1)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{test.name}: {test.load.describe()}"
    if test.obstacles:
        return pytest.mark.skip(reason=f"no equal here: {'; '.join(test.obstacles)}")(left_out)
    return llmbench.ttft(**_load(test), requests=test.requests, workload=_workload(test))(measured)


def _load(test: ServingTest) -> dict[str, Any]:
    load = test.load
    if load.concurrency is not None:
        return {"concurrency": load.concurrency}
    return {"rate": load.rate, "arrival": load.arrival, "burstiness": load.burstiness}


def _workload(test: ServingTest) -> Workload:
    from pytest_llmbench.harness.workloads.factory import make_workload

    if test.dataset is not None:
        return _sharegpt(test.dataset)
    assert test.input_tokens is not None
    assert test.output_tokens is not None
    name = f"random-{test.input_tokens[1]}-{test.output_tokens[1]}"
    return make_workload(name, input_tokens=test.input_tokens, output_tokens=test.output_tokens)


@lru_cache(maxsize=1)
def _sharegpt(path: Path) -> Workload:
    """The ShareGPT workload, read once for all tests of the list."""
    from pytest_llmbench.harness.workloads.files import Conversations

    table = Conversations(path=str(path), version="not told by the list", subset_method="all")
    return table.made("sharegpt", path.parent)
