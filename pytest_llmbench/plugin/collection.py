"""The reading of markers into parameters: every mistake in every marker is reported together, before anything
is sent."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_llmbench.errors import SuiteError, as_python, shown
from pytest_llmbench.marks import COMPARE, MARK, NO_REGRESSION
from pytest_llmbench.plugin.markers import all_marks, closest, fed, given_twice, let_select, place_of
from pytest_llmbench.plugin.options import has_endpoint, values
from pytest_llmbench.plugin.session import MISTAKE, SESSION, failing_in_words

if TYPE_CHECKING:
    from pytest_llmbench.compare.limits import RegressionLimit
    from pytest_llmbench.harness.comparison.systems import Wanted
    from pytest_llmbench.methodology.parameters import TestParameters
    from pytest_llmbench.methodology.places import Place
    from pytest_llmbench.methodology.procedure import TestDefinition
    from pytest_llmbench.model.objective import Objective
    from pytest_llmbench.model.result import TestResult


@dataclass(frozen=True)
class MarkedTest:
    """The checked request of a marker."""

    definition: TestDefinition
    parameters: TestParameters
    marks: tuple[pytest.Mark, ...]
    """All of ours that the item had at collection."""
    limits: tuple[RegressionLimit, ...] = ()
    """Limits on metrics that must not get worse than a baseline."""
    wanted: Wanted | None = None
    """The comparison of several systems that a ``compare`` marker asks for; None without one."""
    parametrized: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the item that are keywords of its marker; they are part of ``parameters``, too."""

    @property
    def names(self) -> list[str]:
        """The names of the item's markers, that of the measuring one first."""
        beside = {"no_regression": self.limits, "compare": self.wanted}
        return [self.definition.name, *(name for name, given in beside.items() if given)]


CELL = "llm_cell"
"""The fixture that a marker which stands for several tests is spread by."""
MARKED = pytest.StashKey[MarkedTest]()
PLACE = pytest.StashKey[tuple[int, int]]()
"""The number of a marked test among the selected ones, from 1, and how many they are."""


def prepare(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Check all markers, remember what they ask for, and have each marked test measured."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker(MARK)) is not None]
    mistakes = [
        f"{place_of(item)}: {name.removeprefix('llmbench_')} measures nothing alone: put it beside a "
        "marker that does, such as @llmbench.ttft()"
        for item in items
        for name in (NO_REGRESSION, COMPARE)
        if item.get_closest_marker(name) is not None and item.get_closest_marker(MARK) is None
    ]
    mistakes += _given_arrivals(config)
    if not marked and not mistakes:
        return
    known = len(mistakes)
    named = _named_workloads(config, mistakes)
    broken = len(mistakes) > known
    if marked:
        given = values(config)
        if not given["plan"] and (given["endpoint"] or given["sut"]):
            from pytest_llmbench.harness.beforehand import mistakes_of

            # Before anything runs: also before a fixture ``llm_sut`` starts an engine for minutes.
            mistakes += mistakes_of(config.stash[SESSION].settings)
        mistakes += _profiles_nothing(config, [item for item, _ in marked])
    for item, _ in marked:
        if broken and _is_lost(item, named):
            continue
        try:
            item.stash[MARKED] = _read(item, named)
        except SuiteError as error:
            mistakes.append(str(error))
    # A fixture ``llm_sut`` of the suite may choose another API: its tests are checked when it is open.
    checked = [item for item, _ in marked if MARKED in item.stash and not _chooses_its_sut(item)]
    if checked and has_endpoint(config):
        from pytest_llmbench.harness.beforehand import mismatches

        tests = [(place_of(item), item.stash[MARKED].definition) for item in checked]
        mistakes += mismatches(config.stash[SESSION].settings, tests)
    if mistakes:
        # The same function parametrised fifty times makes the same mistake once.
        _refuse(config, items, "\n".join(dict.fromkeys(mistakes)))
        return
    _warn_of_limits_of_nobody(config, [item for item, _ in marked])
    let_select(config, {item: item.stash[MARKED].names for item, _ in marked})
    for item, _ in marked:
        names = getattr(item, "fixturenames", None)
        if names is not None and "llm_result" not in names:
            # Last, so that the test's own fixtures (a server, say) are up before the load starts. In a list
            # of its own: that of the function belongs to its unmarked siblings too.
            item.fixturenames = [*names, "llm_result"]  # type: ignore[attr-defined]


def request_result(metafunc: pytest.Metafunc) -> None:
    """Add ``llm_result`` and all that it needs to the fixtures by which a marked test is parametrized.

    A marker that stands on a ``pytest.param`` alone comes too late: its siblings may not be marked.
    """
    definition = metafunc.definition
    if "llm_result" in metafunc.fixturenames or definition.get_closest_marker(MARK) is None:
        return

    # pytest has no public way to add a fixture before parametrization. It prunes what is added here once the
    # parameters are known, so ``prepare`` adds the name again.
    def stand_in(llm_result: TestResult) -> None: ...

    fixtures = definition.session._fixturemanager.getfixtureinfo(definition, stand_in, None)
    known = metafunc._arg2fixturedefs
    metafunc.fixturenames += [name for name in fixtures.names_closure if name not in metafunc.fixturenames]
    known.update({name: each for name, each in fixtures.name2fixturedefs.items() if name not in known})


def spread_cells(metafunc: pytest.Metafunc) -> None:
    """Make an item of each cell of a marker that stands for several; its id says which."""
    mark = metafunc.definition.get_closest_marker(MARK)
    test = None if mark is None else mark.kwargs.get("test")
    if mark is None or not isinstance(test, str) or mark.args:
        return
    from pytest_llmbench.registry import named

    cells = named("cells", test)
    if cells is None:
        return
    given = {name: value for name, value in mark.kwargs.items() if name != "test"}
    marked = getattr(pytest.mark, MARK)
    items = [pytest.param(own, id=label, marks=marked(test=test, **own)) for label, own in cells(given)]
    metafunc.fixturenames += [] if CELL in metafunc.fixturenames else [CELL]
    metafunc.parametrize(CELL, items, indirect=True)


def _refuse(config: pytest.Config, items: list[pytest.Item], mistakes: str) -> None:
    """End the session with these mistakes. A worker of pytest-xdist cannot, since its controller takes that
    for a crash: it reports a failed collection, the same in every worker and shown once."""
    if not hasattr(config, "workerinput"):
        raise pytest.UsageError(mistakes)
    del items[:]
    report = pytest.CollectReport("llmbench markers", "failed", mistakes, [])
    setattr(report, MISTAKE, True)
    config.hook.pytest_collectreport(report=report)


def _profiles_nothing(config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
    """A mistake in the node id that is to be profiled: a session would end without a profile, and say
    nothing."""
    asked = values(config)["profile"]
    if not asked:
        return []
    settings = config.stash[SESSION].settings
    if any(settings.profiles(item.nodeid, failed=True) for item in items):
        return []
    near = difflib.get_close_matches(asked, [item.nodeid for item in items], n=1, cutoff=0.0)
    meant = f", such as {near[0]}" if near else ""
    return [f"--llm-profile={asked}: no marked test has this node id; give one as pytest -v shows it{meant}"]


def _chooses_its_sut(item: pytest.Item) -> bool:
    known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    return len(known.get("llm_sut", ())) > 1


def _systems(items: Sequence[pytest.Item]) -> dict[str, Hashable]:
    """Node id → what tells the set-ups of ``llm_sut`` apart that the tests will have: the fixture, the place
    for which it is set up, and the parameters that reach it."""
    found: dict[str, Hashable] = {}
    for item in items:
        known = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        if "llm_sut" not in known:
            continue
        reached = ["llm_sut"]
        for name in reached:  # grows meanwhile
            needed = [each for fixture in known.get(name, ()) for each in fixture.argnames]
            reached += [each for each in dict.fromkeys(needed) if each not in reached]
        fixture = known["llm_sut"][-1]
        kinds: dict[str, type[pytest.Collector]] = {
            "class": pytest.Class,
            "module": pytest.Module,
            "package": pytest.Package,
        }
        kind = kinds.get(fixture.scope)
        above = None if kind is None else item.getparent(kind)
        own = item if fixture.scope in ("function", "class") else item.session
        place = own.nodeid if above is None else above.nodeid
        called = getattr(item, "callspec", None)
        indices, values = getattr(called, "indices", {}), getattr(called, "params", {})
        given = []
        for name, index in sorted(indices.items()):
            if name in reached:
                value = values.get(name)
                try:
                    hash(value)
                except TypeError:
                    value = id(value)  # it cannot be a key
                given.append((name, index, value))
        found[item.nodeid] = (id(fixture), place, tuple(given))
    return found


def number(items: list[pytest.Item]) -> None:
    """Number the marked tests; call this once the selection is known."""
    marked = [item for item in items if MARKED in item.stash]
    for index, item in enumerate(marked, start=1):
        item.stash[PLACE] = (index, len(marked))


def check_budgets(config: pytest.Config, items: list[pytest.Item]) -> None:
    """End the session if the selected tests certainly exceed a budget; call this once the selection is
    known."""
    marked = [(item, item.stash[MARKED]) for item in items if MARKED in item.stash]
    nothing_is_sent = values(config)["plan"] or config.getoption("collectonly", False)
    if not marked or not has_endpoint(config) or nothing_is_sent:
        return
    from pytest_llmbench.harness.plan import exceeding

    report = config.stash[SESSION]
    tests = [(item.nodeid, test.definition, test.parameters) for item, test in marked]
    systems = _systems([item for item, _ in marked])
    mistakes: list[str] = []
    with suppress(SuiteError):  # in a SUT file: told by the test that uses it
        mistakes = exceeding(tests, report.settings, report.variants_offered, systems)
    if mistakes:
        _refuse(config, items, "\n".join(mistakes))


def refuse_incomparable(item: pytest.Item) -> None:
    """Raise if a test has limits on changes, and nothing to compare with; call this before its set-up,
    in which a fixture ``llm_sut`` may start an engine for minutes."""
    marked = item.stash.get(MARKED, None)
    if marked is not None and marked.limits and (has_endpoint(item.config) or _chooses_its_sut(item)):
        with failing_in_words():
            item.config.stash[SESSION].bench_session.baselines.require_for(marked.limits)


def measures_first(session: pytest.Session) -> bool:
    """Whether the session begins with sending load to the endpoint of the options; call this once the
    selection is known."""
    chosen, first = session.config.option, session.items[0] if session.items else None
    if first is None or MARKED not in first.stash or not has_endpoint(session.config):
        return False
    broken = session.testsfailed and not chosen.continue_on_collection_errors
    nothing_runs = broken or chosen.collectonly or values(session.config)["plan"]
    return not nothing_runs and not _chooses_its_sut(first)


def _is_lost(item: pytest.Item, named: Mapping[str, Any]) -> bool:
    """Whether the marker of an item names a workload that nobody knows, beside a file that is broken: it may
    be one of the file's, whose mistakes are told."""
    from pytest_llmbench.workloads.catalogue import workload

    mark = item.get_closest_marker(MARK)
    given = {**(mark.kwargs if mark is not None else {}), **fed(item, ["workload"])}.get("workload")
    parts = given.items() if isinstance(given, Mapping) else [(given, 1)]
    names = [entry[0] if isinstance(entry, tuple) and entry else label for label, entry in parts]
    for name in names:
        if isinstance(name, str) and name not in named:
            try:
                workload(name)
            except SuiteError:
                return True
    return False


def _named_workloads(config: pytest.Config, mistakes: list[str]) -> dict[str, Any]:
    """Name → workload, from ``--llm-workloads`` and the hooks; a hook's overrides one of the file."""
    named: dict[str, Any] = {}
    if values(config)["workloads"]:
        from pytest_llmbench.harness.workloads.files import read_workload_file

        path = config.stash[SESSION].settings.workloads
        assert path is not None
        try:
            named.update(read_workload_file(path))
        except SuiteError as error:
            mistakes.append(str(error))
    return named | config.stash[SESSION].offered(config.hook.pytest_llmbench_workloads)


def _place(item: pytest.Item) -> Place | None:
    """Where the test measures; None where it measures nothing, or its SUT file is broken, which is told
    elsewhere."""
    config, report = item.config, item.config.stash[SESSION]
    settings = report.settings
    launches = _chooses_its_sut(item) and not (
        values(config)["plan"] or config.getoption("collectonly", False)
    )
    if not (settings.place or has_endpoint(config) or settings.sut or launches):
        return None
    return None if settings.sut is not None and report.sut_file is None else report.place


def _given_arrivals(config: pytest.Config) -> list[str]:
    """Mistakes in the arrival processes of the hooks, which loads of this session may name from here on."""
    given = config.stash[SESSION].offered(config.hook.pytest_llmbench_arrivals)
    if not given:
        return []
    from pytest_llmbench.model.plan import ARRIVALS
    from pytest_llmbench.registry import give

    give("arrivals", given)
    config.add_cleanup(lambda: give("arrivals", {}))
    taken = sorted({*given} & {*ARRIVALS, "trace"})
    return [
        *(f"pytest_llmbench_arrivals gives {name!r}: that name is taken" for name in taken),
        *(
            f"pytest_llmbench_arrivals: {name!r} must be a function of rate, count and seed, got "
            f"{shown(process)}"
            for name, process in given.items()
            if not callable(process)
        ),
    ]


def _read(item: pytest.Item, named: Mapping[str, Any]) -> MarkedTest:
    from pytest_llmbench.methodology.catalogue import definition
    from pytest_llmbench.methodology.parameters import build

    where = place_of(item)
    mark = closest(item, MARK)
    assert mark is not None
    given = dict(mark.kwargs)
    test = given.pop("test", None)
    if mark.args:
        raise SuiteError(
            f"takes keywords only, got {', '.join(map(shown, mark.args))}: write for example p99_ms=500",
            where=where,
        )
    if test is None:
        raise SuiteError("names no test: use @llmbench.ttft(…)", where=where)
    chosen = definition(test, where=where)
    parametrized = fed(item, [each.name for each in fields(chosen.parameters)])
    twice = given_twice(item, mark, parametrized)
    if twice:
        raise SuiteError.from_mistakes(twice, where=where)
    given |= parametrized
    workload = given.get("workload")
    if isinstance(workload, str) and workload in named:
        given["workload"] = named[workload]
    elif isinstance(workload, Mapping):
        given["workload"] = {label: _part(label, entry, named) for label, entry in workload.items()}
    given |= _kept_limits(item, given, where)
    if parametrized:
        where += f" with {', '.join(parametrized)} by parametrize"
    # A load has the numbers of its marker: no smoke run, and no more requests or runs than it asks for.
    options = values(item.config)
    more = ("runs", "budget", "save", "autosave", "compare", "baseline_endpoint", "calibrate")
    counted = options["scale"] in (None, "", "standard") and not any(options.get(name) for name in more)
    parameters: TestParameters = build(
        chosen.parameters,
        given,
        where=where,
        test=chosen.name,
        counted=counted,
        place=lambda: _place(item),
    )
    return MarkedTest(chosen, parameters, all_marks(item), _limits(item), _wanted(item), parametrized)


def _kept_limits(item: pytest.Item, given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """``slo`` with the limits that the marker's file and the SUT file have for this test, and the path of the
    former.

    A file of the marker without limits for the test is a mistake, as they would be missing silently; a
    calibration writes them.
    """
    named, file = given.get("limits_file"), item.config.stash[SESSION].sut_file
    if file is None and not isinstance(named, str):
        return {}
    from pytest_llmbench.methodology.places import here
    from pytest_llmbench.store.limit_files import of_test, read_limits

    name, kept = item.nodeid.partition("::")[2], dict[str, Any]()
    sources, mistakes = dict[str, Mapping[str, Any]](), list[str]()
    if isinstance(named, str):
        path = Path(os.path.relpath(item.path.parent / named))
        kept["limits_file"] = str(path)
        if not values(item.config)["calibrate"]:
            sources[f"limits {path}"] = of_test(read_limits(path), name)
            if not sources[f"limits {path}"]:
                raise SuiteError(f"{path} has no limits of {name}", where=where, remedy=_WRITE)
    tables = {} if file is None else {at: of_test(own, name) for at, own in file.tables.limits.items()}
    if file is not None and any(tables.values()):
        by_place = {at: own for at, own in tables.items() if own}
        chosen, mistakes = here({f"limits of {name}": by_place}, lambda _: True, lambda: _place(item))
        sources |= {} if mistakes else {f"SUT file {file.path}": own for own in chosen.values()}
    objectives = list(given.get("slo") or ()) if sources else []
    for source, own in sources.items():
        found, wrong = _objectives(own, lambda: _place(item))
        objectives += found
        mistakes += [f"{source}, {name}: {each}" for each in wrong]
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where=where)
    return kept | ({"slo": objectives} if sources else {})


_WRITE = "run it with --llm-calibrate"


def _objectives(
    limits: Mapping[str, Any], place: Callable[[], Place | None]
) -> tuple[list[Objective], list[str]]:
    """Objectives of a metric → its limit, or place → limit; and what is wrong with them."""
    from pytest_llmbench.compare.regression import better_of
    from pytest_llmbench.methodology.places import here
    from pytest_llmbench.metrics.definitions import metric_unit
    from pytest_llmbench.model.objective import Objective

    chosen, mistakes = here(limits, lambda _: True, place)
    objectives = []
    for metric, limit in chosen.items() if not mistakes else ():
        try:
            better, unit = better_of(metric), metric_unit(metric)
        except SuiteError as error:
            mistakes.append(f"{error.what}; {error.remedy}")
            continue
        if better is None or isinstance(limit, bool) or not isinstance(limit, int | float):
            mistakes.append(f"{metric} is limited by a number of its unit, got {shown(limit)}")
        else:
            objectives.append(Objective(metric, "<=" if better == "lower" else ">=", float(limit), unit))
    return objectives, mistakes


def _warn_of_limits_of_nobody(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Warn of names in the SUT file's limits that no test has: misspelt, or of another suite."""
    file = config.stash[SESSION].sut_file
    named = {} if file is None else {name: at for at, own in file.tables.limits.items() for name in own}
    full = {item.nodeid.partition("::")[2] for item in items}
    known = full | {name.partition("[")[0] for name in full}
    for name in named.keys() - known:
        near = difflib.get_close_matches(name, known, n=1)
        told = (
            f"limits.{named[name]}.{name} in {file and file.path}: no marked test was collected by this name"
        )
        meant = f"; did you mean {near[0]}?" if near else ""
        config.issue_config_time_warning(pytest.PytestConfigWarning(told + meant), stacklevel=2)


def _part(label: Any, entry: Any, named: Mapping[str, Any]) -> Any:
    """A part of a mixture, with the suite's own workload in place of its name."""
    if isinstance(entry, tuple) and len(entry) == 2:
        wanted, weight = entry
        return (named.get(wanted, wanted) if isinstance(wanted, str) else wanted), weight
    return (named[label], entry) if isinstance(label, str) and label in named else entry


def _wanted(item: pytest.Item) -> Wanted | None:
    """The comparison asked for by the closest ``compare``; None without one. Raises SuiteError with all
    mistakes."""
    mark = closest(item, COMPARE)
    if mark is None:
        return None
    from pytest_llmbench.harness.comparison.systems import Wanted
    from pytest_llmbench.methodology.parameters import keyword_mistakes

    given = as_python({**mark.kwargs, **fed(item, [each.name for each in fields(Wanted)])})
    mistakes = [f"takes no positional argument {shown(value)}" for value in mark.args]
    mistakes += keyword_mistakes(Wanted, given)
    if mistakes:
        where = place_of(item).replace("@llmbench on", "@llmbench.compare on")
        raise SuiteError.from_mistakes(mistakes, where=where)
    return Wanted(**{name: value for name, value in given.items() if value is not None})


def _limits(item: pytest.Item) -> tuple[RegressionLimit, ...]:
    """The limits of every ``no_regression`` on the item, from the closest marker to the outermost.

    Raises SuiteError with all mistakes.
    """
    marks = [*item.iter_markers(NO_REGRESSION)]
    if not marks:
        return ()
    from pytest_llmbench.compare.limits import RegressionLimit, margin_mistakes, metric_mistakes
    from pytest_llmbench.methodology.places import here

    known = ("metric", "max_slowdown")
    found, mistakes = [], []
    parametrized = fed(item, known)
    if parametrized and len(marks) > 1:
        names = " and ".join(parametrized)
        mistakes.append(f"{names} by parametrize could be meant for each of {len(marks)} markers: keep one")
    for mark in marks:
        given = as_python({**dict(zip(("metric",), mark.args, strict=False)), **mark.kwargs, **parametrized})
        given, wrong = here(given, "max_slowdown".__eq__, lambda: _place(item))
        metric, margin = given.get("metric"), given.get("max_slowdown", 0.0)
        mistakes += [f"takes no positional argument {shown(value)}" for value in mark.args[1:]]
        for name in given:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}"
                mistakes.append(f"unknown parameter {name!r}; {hint}")
        mistakes += metric_mistakes(metric)
        mistakes += wrong or [f"max_slowdown {what}" for what in margin_mistakes(margin)]
        if not mistakes:
            found.append(RegressionLimit(str(metric), float(margin), "no_regression"))
    if mistakes:
        where = place_of(item).replace("@llmbench on", "@llmbench.no_regression on")
        raise SuiteError.from_mistakes(dict.fromkeys(mistakes), where=where)
    return tuple(found)


def print_plan(session: pytest.Session) -> None:
    """Print what every selected test would send (``--llm-plan``)."""
    from pytest_llmbench.harness.plan import plan_lines

    marked = [(item.nodeid, item.stash[MARKED]) for item in session.items if MARKED in item.stash]
    reporter = session.config.pluginmanager.getplugin("terminalreporter")
    report = session.config.stash[SESSION]
    try:
        lines = plan_lines(
            [(nodeid, test.definition, test.parameters) for nodeid, test in marked],
            report.settings,
            offered=report.variants_offered,
            systems=_systems(session.items),
        )
        for line in lines:  # as they come: dry runs take a while
            reporter.write_line(line)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None
