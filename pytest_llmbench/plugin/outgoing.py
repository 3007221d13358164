"""Keeps secrets out of pytest's own channels: reports of tests and of collections, internal errors,
warnings.

A failure's text, a traceback with its locals and captured output reach the terminal, JUnit, pytest-html and
pytest-xdist through the report; so that is where secrets come out.
"""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.redaction import known_secrets


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
