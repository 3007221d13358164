"""How the plugin gets on with others (pytest-asyncio, assertion rewriting, the columns and rows of
pytest-html), and how it keeps secrets out of logs and of pytest's own channels.

A failure's text, a traceback with its locals and captured output reach the terminal, JUnit, pytest-html and
pytest-xdist through the report; so that is where secrets come out.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import pytest

from pytest_llmbench.redaction import known_secrets, outward


def silence_asyncio_default(config: pytest.Config) -> None:
    """Silence the warning of pytest-asyncio, which comes with us, about its unset loop scope.

    For someone without async tests that warning is ours to avoid: under ``-W error`` pytest would not even
    start. The filter lives only as long as pytest's own configure phase.
    """
    if config.pluginmanager.hasplugin("asyncio"):
        warnings.filterwarnings("ignore", message=".*asyncio_default_fixture_loop_scope.*is unset")


_TELLS_OF_REQUESTS = (
    "httpx",
    *(f"httpcore.{part}" for part in ("connection", "http11", "http2", "proxy", "socks")),
    *("hpack.hpack", "hpack.table"),
)
"""Loggers of the libraries that requests are sent with. URLs and headers with their keys are told there; a
filter of a logger does not see what its children are told."""


def keep_secrets_in_logs() -> None:
    """Remove secrets from what the libraries of requests log, whatever writes it: ``--log-cli-level``,
    ``--log-file``, a handler of the suite."""
    for name in _TELLS_OF_REQUESTS:
        logging.getLogger(name).addFilter(_without_secrets)


def _without_secrets(record: logging.LogRecord) -> bool:
    if record.name.startswith("hpack."):  # headers in Huffman codes, in which no secret would be found
        return False
    record.msg, record.args = outward(record.getMessage()), ()
    return True


class _OwnModules(MetaPathFinder):
    """Finds the modules below this package as Python itself does."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(name, path, target) if name.startswith("pytest_llmbench.") else None


def import_as_compiled() -> None:
    """Import our modules without assertion rewriting, which pytest does for every module of a distribution
    with a plugin. Ours are no tests: where byte code is not kept (``PYTHONDONTWRITEBYTECODE``, usual in
    containers), that is a third of the computing of a quick test.

    pytest offers no other way: packages are only ever added to those that it rewrites, and a module whose
    docstring says ``PYTEST_DONT_REWRITE`` is compiled afresh at each start all the same. So ours are found
    before its finder is asked, which takes as long as all the rest of an import.
    """
    if not any(isinstance(finder, _OwnModules) for finder in sys.meta_path):
        sys.meta_path.insert(0, _OwnModules())


def register(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("html"):
        config.pluginmanager.register(HtmlReport(), "llmbench-html")


class HtmlReport:
    """Adds to pytest-html the columns Verdict, Value, Limit, Interval and Compliance, and to each row the
    tables and the plot. Rows can be filtered by their compliance class."""

    def __init__(self) -> None:
        self._classes: set[str] = set()
        self._shown: dict[str, str] = {}

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_header(self, cells: list[str]) -> None:
        from pytest_llmbench.reports.html_blocks import header_cells

        cells[2:2] = header_cells()

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_table_row(self, report: Any, cells: list[str]) -> None:
        from pytest_llmbench.reports.html_blocks import compliance_class, row_cells

        # pytest-html drops a row whose cells were emptied on purpose
        if cells:
            entry = getattr(report, "llmbench", None)
            cells[2:2] = row_cells(entry)
            if report.when == "call" or report.outcome != "passed":  # of others pytest-html shows no row
                self._classes.add(compliance_class(entry))

    @pytest.hookimpl(optionalhook=True)
    def pytest_html_results_summary(self, summary: list[str]) -> None:
        from pytest_llmbench.reports.html_blocks import class_filter

        boxes = class_filter(self._classes)
        if boxes is not None:
            summary.append(boxes)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        report = yield
        entry = getattr(report, "llmbench", None)
        # Installed is not asked for: drawing costs more than a quick load in virtual time.
        if entry is not None and item.config.getoption("htmlpath", None):
            from pytest_html import extras

            from pytest_llmbench.reports.html_blocks import extra_block

            report.extras = [
                *getattr(report, "extras", []),
                extras.html(str(extra_block(entry, self._shown))),
            ]
        return report


def clean_report(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Remove secrets from the report. If a failure contained one, it loses its colours."""
    secrets = known_secrets()
    if not secrets:
        return
    redact, told = secrets.text, report.longrepr
    if isinstance(told, tuple):  # of a skipped test: file, line, reason
        report.longrepr = (told[0], told[1], redact(told[2]))
    elif told is not None and (text := str(told)) != (clean := redact(text)):
        report.longrepr = clean
    report.sections = [(redact(title), redact(content)) for title, content in report.sections]
    if isinstance(report, pytest.TestReport):
        report.user_properties = [
            (name, redact(value) if isinstance(value, str) else value)
            for name, value in report.user_properties
        ]


def clean_warnings(config: pytest.Config) -> None:
    """Remove secrets from the warnings of pytest's summary, which has not been printed yet."""
    reporter, secrets = config.pluginmanager.getplugin("terminalreporter"), known_secrets()
    if not secrets or reporter is None:
        return
    for warning in reporter.stats.get("warnings", []):
        warning.message = secrets.text(warning.message)


def print_internal_error(excrepr: Any, config: pytest.Config) -> bool | None:
    """Print an internal error in place of pytest if it contains a secret; None leaves it to pytest."""
    text = str(excrepr)
    clean = known_secrets().text(text)
    reporter = config.pluginmanager.getplugin("terminalreporter")
    if clean == text or reporter is None:
        return None
    for line in clean.split("\n"):
        reporter.write_line(f"INTERNALERROR> {line}")
    return True
