"""``--llm-import FILE``: a list of loads of another tool, collected as a module made from its recipes.

Each recipe is a test with the marker ``job``, or ``non_generative`` where documents are asked for. Without
``--llm-endpoint`` its server is launched, once for all that ask for an equal one. The lists have no limits,
so the tests have none; ``--llm-save``, ``--llm-compare`` and ``--llm-compare-fail`` give them some.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import types
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.marks import llmbench
from pytest_llmbench.model.facts import EndpointFact, SUTFact
from pytest_llmbench.plugin.fixtures import set_up_of_sut
from pytest_llmbench.plugin.options import has_endpoint, values
from pytest_llmbench.plugin.session import SESSION, failing_in_words
from pytest_llmbench.redaction import outward

if TYPE_CHECKING:
    from pytest_llmbench.extras.foreign.recipes import Recipe, Server
    from pytest_llmbench.harness.sut.sut import SUT
    from pytest_llmbench.model.request import Workload
    from pytest_llmbench.model.result import TestResult

START_S: Final = 1_800.0
"""How long a server may take to load its model."""
_SECRET = re.compile(r"(?i)key|token(?!s|iz)|secret|password")


def register(config: pytest.Config, path: Path) -> None:
    """Collect ``path`` too. UsageError for a file of no form that is known."""
    from pytest_llmbench.extras.foreign.recipe_files import read_recipes

    folder = config.invocation_params.dir
    path = _absolute(folder, path)
    try:
        recipes = read_recipes(path, folder)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None
    chosen = {_absolute(folder, given.partition("::")[0]) for given in config.args}
    if path not in chosen:  # one of its tests may be chosen by its node id
        config.args.append(str(path))
    launches = not has_endpoint(config)
    # Those with equal servers one after another: each is started once.
    servers = list(dict.fromkeys(recipe.server for recipe in recipes))
    ordered = sorted(recipes, key=lambda recipe: servers.index(recipe.server)) if launches else recipes
    config.pluginmanager.register(ImportedTests(path, tuple(ordered), launches), "llmbench-imported")


def _absolute(folder: Path, path: Path | str) -> Path:
    """The absolute path as pytest writes it for what it collects: without ``..``, with links unresolved."""
    return Path(os.path.abspath(folder / path))  # noqa: PTH100 - resolve() would follow links


class ImportedTests:
    """Collects this one file, and tells how much of it runs and what is not taken over."""

    def __init__(self, path: Path, recipes: tuple[Recipe, ...], launches: bool) -> None:
        self._path, self._recipes, self._launches = path, recipes, launches

    @pytest.hookimpl(wrapper=True)  # a test file of SGLang is read as a list, not as a module
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        if file_path != self._path:
            return found
        outside = not file_path.is_relative_to(parent.config.rootpath)
        # pytest gives what lies outside of its root no name at all.
        name: dict[str, Any] = {"nodeid": file_path.name} if outside else {}
        module: ImportedModule = ImportedModule.from_parent(parent, path=file_path, **name)
        module.recipes, module.launches = self._recipes, self._launches
        return [module]

    def pytest_report_collectionfinish(self, config: pytest.Config) -> list[str]:
        run = [recipe for recipe in self._recipes if not recipe.obstacles]
        lines = [f"llmbench: {len(run)} of {len(self._recipes)} tests of {self._path.name} run"]
        left_out = Counter(what for recipe in self._recipes for what in recipe.obstacles)
        lines += [f"  skipped: {what} ({count} tests)" for what, count in left_out.items()]
        how = "launched" if self._launches else "it has to run with"
        servers = dict.fromkeys(recipe.server for recipe in run)
        lines += [f"  {how}: {_words(server)}" for server in servers if server is not None]
        told = dict.fromkeys(said for recipe in run for said in recipe.told)
        if self._launches:
            absent = Counter(why for recipe in run if (why := _absent(recipe.server)))
            lines += [f"  give --llm-endpoint: {why} ({count} tests)" for why, count in absent.items()]
        else:
            fits = ("openai-chat", values(config)["api"])
            apis = dict.fromkeys(recipe.api for recipe in run if recipe.api not in fits)
            lines += [f"  sent to {api} there: give --llm-api={api}" for api in apis]
            if any(recipe.ignore_eos for recipe in run):
                lines.append("  replies go on to their limit there: request.ignore_eos in the SUT file")
        return [outward(line) for line in (*lines, *(f"  {said}" for said in told))]


def _words(server: Server) -> str:
    """The command without what may be secret."""
    command = list(server.command)
    for at, word in enumerate(command):
        if word.startswith("-") and _SECRET.search(word):
            name, equals, _ = word.partition("=")
            command[at : at + 1 + (not equals)] = [name, "…"]
    return " ".join([*(f"{name}=…" for name, _ in server.env), *command])


@pytest.fixture(scope="module")
def recipe_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of the server that a recipe asks for, which is launched."""
    from pytest_llmbench import launched_server

    server: Server | None = request.param
    if (absent := _absent(server)) or server is None:
        ended = pytest.fail if values(request.config)["require"] else pytest.skip
        ended(f"{absent}, and no --llm-endpoint is given")
    settings = tmp_path_factory.mktemp("server") / "settings.yaml"
    settings.write_text(server.settings, "utf-8")
    command = [word.replace("{settings}", str(settings)) for word in server.command]
    launch = launched_server(command, env=dict(server.env), timeout_s=START_S)
    with contextlib.ExitStack() as running:
        with failing_in_words():
            launched = running.enter_context(launch)
        yield launched.url


def _absent(server: Server | None) -> str:
    """Why the server cannot be launched; empty if nothing speaks against it."""
    if server is None:
        return "the list names no server"
    program, *arguments = server.command
    if arguments[:1] == ["-m"]:
        module = arguments[1].partition(".")[0]
        return "" if find_spec(module) else f"{module} is not installed"
    return "" if shutil.which(program) else f"program {program} is not installed"


@pytest.fixture(scope="module")
def llm_sut(request: pytest.FixtureRequest, recipe_server: str) -> SUT:
    """The server, asked as the recipe asks it."""
    from pytest_llmbench import SUT

    api, ignore_eos = request.param
    return SUT(recipe_server, api=api, ignore_eos=ignore_eos)


def _model_check(recipes: Mapping[str, Recipe]) -> object:
    """A fixture that fails a test before any load where its recipe is about another model."""

    @pytest.fixture(autouse=True)
    def model_of_the_recipe(request: pytest.FixtureRequest) -> None:
        recipe = recipes[request.node.originalname]
        if recipe.model is None or values(request.config)["model"]:
            return
        with failing_in_words():
            sut = request.getfixturevalue("llm_sut")
            facts = request.config.stash[SESSION].bench_session.facts(sut, set_up_of_sut(request))
        served = facts.value(EndpointFact.MODEL) or facts.value(SUTFact.MODEL_NAME)
        if recipe.model != served:
            pytest.fail(
                f"{recipe.name} is about the model {recipe.model}, and the endpoint serves {served}: select "
                "with -k, or say with --llm-model that it is the same",
                pytrace=False,
            )

    return model_of_the_recipe


class ImportedModule(pytest.Module):
    """A module without source: it has a function for each recipe, and the fixtures that launch servers."""

    recipes: tuple[Recipe, ...] = ()
    launches: bool = False

    def _getobj(self) -> types.ModuleType:
        module: Any = types.ModuleType(self.path.stem)
        named: dict[str, Recipe] = {}  # names are distinct, and functions may have them
        for recipe in self.recipes:
            name = base = "test_" + re.sub(r"\W", "_", recipe.name)
            number = 2
            while name in named:
                name, number = f"{base}_{number}", number + 1
            named[name] = recipe
        if self.launches:
            module.recipe_server, module.llm_sut = recipe_server, llm_sut
        else:
            module.model_of_the_recipe = _model_check(named)
        for name, recipe in named.items():
            setattr(module, name, _function(name, recipe, self.path, launches=self.launches))
        return module  # type: ignore[no-any-return]


def _function(name: str, recipe: Recipe, path: Path, *, launches: bool) -> Callable[..., None]:
    def measured(llm_result: TestResult) -> None: ...

    def left_out() -> None: ...

    made: Any = left_out if recipe.obstacles else measured
    # Reports say where a test is: in the list.
    made.__code__ = made.__code__.replace(co_filename=str(path), co_firstlineno=1)
    made.__name__ = made.__qualname__ = name
    made.__doc__ = f"{recipe.name}: {recipe.load.describe()}"
    if recipe.obstacles:
        return pytest.mark.skip(reason=f"no equal here: {'; '.join(recipe.obstacles)}")(left_out)
    if launches:
        hidden = [getattr(pytest, "HIDDEN_PARAM", "recipe")]  # since pytest 8.4
        server = (recipe.server, (recipe.api, recipe.ignore_eos))
        made = pytest.mark.parametrize(("recipe_server", "llm_sut"), [server], indirect=True, ids=hidden)(
            made
        )
    return _marked(recipe)(made)  # type: ignore[no-any-return]


def _marked(recipe: Recipe) -> Any:
    from pytest_llmbench.extras.foreign.recipes import DOCUMENTS

    load, count = recipe.load, recipe.requests
    assert count is not None
    given: dict[str, Any] = {"concurrency": load.concurrency}
    if load.arrival is not None:
        given |= {"rate": load.rate, "arrival": load.arrival, "burstiness": load.burstiness}
    given |= {"workload": _workload(recipe), "runs": recipe.runs}
    if recipe.api in DOCUMENTS:
        given["concurrency"] = given.get("concurrency") or (None if load.arrival else count)
        return llmbench.non_generative(**given, requests=count)
    return llmbench.job(**given, prompts=count)


def _workload(recipe: Recipe) -> Workload:
    from pytest_llmbench.harness.workloads.factory import make_workload

    if recipe.dataset is not None:
        return _sharegpt(recipe.dataset)
    assert recipe.lengths is not None
    inputs, outputs = recipe.lengths
    name = f"random-{inputs.bounds[1]}-{outputs.bounds[1]}"
    base = make_workload(name, input_tokens=inputs, output_tokens=outputs)
    if recipe.prefix is None:
        return base
    tokens, prefixes = recipe.prefix
    return make_workload(base, prefix_tokens=tokens, prefixes=prefixes)


@lru_cache(maxsize=1)
def _sharegpt(path: Path) -> Workload:
    """The ShareGPT workload, read once for all tests of the list."""
    from pytest_llmbench.harness.workloads.files import Conversations

    table = Conversations(path=str(path), version="not in the list", subset_method="all")
    return table.made("sharegpt", path.parent)
