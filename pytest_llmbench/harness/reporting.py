"""The report files of a session, written by the one process that has all entries."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import markdown_report
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.store.environment import this_environment
from pytest_llmbench.store.instants import iso_utc
from pytest_llmbench.store.json_file import write_text
from pytest_llmbench.store.redaction import without_credentials
from pytest_llmbench.store.report_file import write_report
from pytest_llmbench.store.schema import FactEntry, Generator, Report, Sut, TestEntry


def build_report(settings: Settings, entries: Sequence[Mapping[str, Any]], started_ns: int) -> Report:
    """The session's report from the tests' entries; ``started_ns`` is wall-clock time."""
    tests = [TestEntry.model_validate(entry) for entry in entries]
    words = (Path(sys.argv[0]).name, *sys.argv[1:])
    environment = this_environment().model_copy(
        update={
            "command": [_without_secrets(word, settings) for word in words],
            "settings": {
                name: _without_secrets(value, settings) if isinstance(value, str) else value
                for name, value in settings.model_dump(mode="json", exclude_none=True).items()
            },
        }
    )
    return Report(
        generator=Generator(version=version("pytest-llmbench")),
        started=iso_utc(started_ns),
        environment=environment,
        sut=_sut(settings, tests),
        tests=tests,
    )


def _without_secrets(word: str, settings: Settings) -> str:
    """User information and query of an endpoint may be secrets; nothing else of a command line is one."""
    endpoint = settings.endpoint
    return word if endpoint is None else word.replace(endpoint, without_credentials(endpoint))


def _sut(settings: Settings, tests: Sequence[TestEntry]) -> Sut:
    """The disclosure is that of the first test that has one; each test carries its own facts beside."""
    facts: dict[str, FactEntry] = next((test.facts for test in tests if test.facts), {})
    model = facts.get("endpoint.model")
    api = facts.get("endpoint.api")
    endpoint = facts.get("endpoint.url")
    return Sut(
        endpoint=settings.endpoint or (str(endpoint.value) if endpoint else "not given"),
        model=str(model.value) if model else settings.model,
        api=str(api.value) if api else settings.api,
        facts={
            key: fact for key, fact in facts.items() if key.startswith(("sut.", "tokenizer.", "guardrails."))
        },
    )


def write_reports(
    settings: Settings, entries: Sequence[Mapping[str, Any]], started_ns: int | None = None
) -> list[str]:
    """Write every file of the report; returns the paths, the most useful first."""
    assert settings.report is not None
    report = build_report(settings, entries, time.time_ns() if started_ns is None else started_ns)
    document = report.plain()
    directory = settings.report
    write_report(directory / "report.json", report)
    texts = {
        "report.html": html_report(document),
        "report.md": markdown_report(document),
        "minimum.txt": minimum_report(document),
    }
    for name, text in texts.items():
        write_text(directory / name, text)
    return [str(directory / name) for name in ("report.html", "report.json", "report.md", "minimum.txt")]


__all__ = ["build_report", "write_reports"]
