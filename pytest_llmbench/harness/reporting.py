"""The report files of a session, written by the one process that has all entries."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.redaction import outward, outward_value, without_credentials
from pytest_llmbench.reports.html import html_report
from pytest_llmbench.reports.markdown import markdown_report
from pytest_llmbench.reports.minimum import minimum_report
from pytest_llmbench.store.environment import this_environment
from pytest_llmbench.store.instants import iso_utc
from pytest_llmbench.store.journal import JournalHead
from pytest_llmbench.store.json_file import write_text
from pytest_llmbench.store.report_file import document_of, write_report
from pytest_llmbench.store.schema import Report, TestEntry
from pytest_llmbench.store.session_schema import FactEntry, Generator, IncompleteEntry, Sut

_NO_ENDPOINT = "not given"


def head_of(settings: Settings, started_ns: int) -> JournalHead:
    """What a report says of its session beside the tests; ``started_ns`` is wall-clock time."""
    words = (Path(sys.argv[0]).name, *sys.argv[1:])
    environment = this_environment().model_copy(
        update={
            "command": _without_secrets(list(words), settings),
            "settings": _without_secrets(settings.model_dump(mode="json", exclude_none=True), settings),
        }
    )
    return JournalHead(
        pid=os.getpid(),
        started=iso_utc(started_ns),
        generator=Generator(version=version("pytest-llmbench")),
        environment=environment,
        sut=Sut(endpoint=settings.endpoint or _NO_ENDPOINT, model=settings.model, api=settings.api),
    )


def build_report(
    head: JournalHead, entries: Sequence[Mapping[str, Any]], incomplete: IncompleteEntry | None = None
) -> Report:
    """The session's report from the tests' entries."""
    tests = [TestEntry.model_validate(entry) for entry in entries]
    return Report(
        generator=head.generator,
        started=head.started,
        environment=head.environment,
        sut=_sut(head.sut, tests),
        tests=tests,
        incomplete=incomplete,
    )


def _without_secrets(value: Any, settings: Settings) -> Any:
    """User information and query of an endpoint go whole, wherever it stands."""
    text = json.dumps(value)
    for url in settings.urls:
        text = text.replace(json.dumps(url)[1:-1], json.dumps(without_credentials(url))[1:-1])
    return outward_value(json.loads(text))


def _sut(told: Sut, tests: Sequence[TestEntry]) -> Sut:
    """The disclosure is that of the first test that has one; each test carries its own facts beside."""
    facts: dict[str, FactEntry] = next((test.facts for test in tests if test.facts), {})
    endpoint, model, api = (facts.get(f"endpoint.{name}") for name in ("url", "model", "api"))
    found = str(endpoint.value) if endpoint else _NO_ENDPOINT
    return Sut(
        endpoint=found if told.endpoint == _NO_ENDPOINT else told.endpoint,
        model=str(model.value) if model else told.model,
        api=str(api.value) if api else told.api,
        facts={
            key: fact for key, fact in facts.items() if key.startswith(("sut.", "tokenizer.", "guardrails."))
        },
    )


class Written(NamedTuple):
    paths: list[str]
    """The most useful first."""
    problems: list[str]
    """What could not be written, and why, a line each."""


def write_reports(directory: Path, report: Report) -> Written:
    """Writes every file of the report. One that fails takes no other with it."""
    document = document_of(report)
    makers: dict[str, Callable[[Path], None]] = {
        "report.html": lambda path: write_text(path, html_report(document)),
        "report.json": lambda path: write_report(path, document),
        "report.md": lambda path: write_text(path, markdown_report(document)),
        "minimum.txt": lambda path: write_text(path, minimum_report(document)),
    }
    found = Written([], [])
    for name, make in makers.items():
        path = directory / name
        try:
            make(path)
        except LLMBenchError as error:
            found.problems.append(" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 - of ours, and must not cost the verdicts and other files
            found.problems.append(f"{path}: cannot be made: {type(error).__name__}: {shown(error)}")
        else:
            found.paths.append(str(path))
    return found


def shown(error: BaseException) -> str:
    """One printable line about any exception."""
    return " ".join(outward(str(error)).split())[:300]
