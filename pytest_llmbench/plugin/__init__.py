"""The pytest plugin. Only this package (and ``marks``) imports pytest.

This module is loaded for everyone who has the distribution installed, so it imports nothing but pytest and
our own thin modules; everything heavy is imported inside the hook that needs it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest

from pytest_llmbench.plugin import collection, fixtures, interplay, markers, options, verdicts
from pytest_llmbench.plugin.fixtures import (
    llm_bench,
    llm_cell,
    llm_client,
    llm_result,
    llm_selftest,
    llm_sim,
    llm_sut,
    llm_warmup,
    llm_workload,
)
from pytest_llmbench.plugin.session import SESSION, SessionReport, mark_mistake


def pytest_addoption(parser: pytest.Parser) -> None:
    options.declare(parser)


def pytest_load_initial_conftests(args: Sequence[str]) -> None:
    """pytest says of an option that it does not know only that."""
    options.refuse_misspelt(args)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_llmbench.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    interplay.import_as_compiled()
    interplay.silence_asyncio_default(config)
    interplay.keep_secrets_in_logs()
    markers.register(config)
    if listed := options.values(config)["import"]:
        from pytest_llmbench.registry import named

        collect = named("test_lists", "recipes")
        if collect is None:
            said = "lists of tests need an extra that is not installed"
            raise pytest.UsageError(f"--llm-import: {said}")
        collect(config, listed)
    report = SessionReport(config)
    config.stash[SESSION] = report
    # Each is around those before it, as pluggy calls the last one first.
    config.pluginmanager.register(verdicts.Attempts(), "llmbench-attempts")
    interplay.register(config)
    config.pluginmanager.register(report, "llmbench-session")


def pytest_unconfigure(config: pytest.Config) -> None:
    report = config.stash.get(SESSION, None)
    if report is not None:
        report.unconfigure()
        del config.stash[SESSION]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.failed:
        mark_mistake(report)
    interplay.clean_report(report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    collection.spread_cells(metafunc)
    collection.request_result(metafunc)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    collection.prepare(config, items)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    collection.number(session.items)
    collection.check_budgets(session.config, session.items)
    if collection.measures_first(session):
        session.config.stash[SESSION].start_workers()


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    chosen = session.config.option
    if chosen.collectonly or (session.testsfailed and not chosen.continue_on_collection_errors):
        return None
    if options.values(session.config)["plan"]:
        collection.print_plan(session)
        return True
    session.config.stash[SESSION].begin(session)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    if fixturedef.argname != "llm_sut":
        return (yield)
    with fixtures.alone_unless_ours(fixturedef, request.config):
        made = yield
    request.config.stash[SESSION].begin_set_up(fixturedef)
    return made


def pytest_runtest_setup(item: pytest.Item) -> None:
    collection.refuse_incomparable(item)  # not first: a test that is skipped is skipped


def pytest_runtest_call(item: pytest.Item) -> None:
    # No wrapper, and not first: what raises before a wrapper within it has begun leaves that out, and plugins
    # that report what theirs noted (pytest-json-report) end the session.
    verdicts.raise_unless_measured(item)
    verdicts.raise_unless_good(item)


__all__ = [
    "llm_bench",
    "llm_cell",
    "llm_client",
    "llm_result",
    "llm_selftest",
    "llm_sim",
    "llm_sut",
    "llm_warmup",
    "llm_workload",
]
