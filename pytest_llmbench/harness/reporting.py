"""The report of a session, built by the one process that has all entries."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.redaction import outward, outward_value, without_credentials
from pytest_llmbench.store.environment import this_environment
from pytest_llmbench.store.journal import JournalHead
from pytest_llmbench.store.schema import (
    FactEntry,
    Generator,
    IncompleteEntry,
    Report,
    Sut,
    TestEntry,
    iso_utc,
)

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


@dataclass(frozen=True)
class Written:
    """What became of the files of a report."""

    paths: list[str] = field(default_factory=list)
    """The most useful first; those of CI systems as one folder."""
    problems: list[str] = field(default_factory=list)
    """What could not be written, and why, a line each."""
    annotations: list[str] = field(default_factory=list)
    """Lines to print for GitHub Actions, which runs the session; none elsewhere."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong and costs nothing that was measured, a line each."""


def shown(error: BaseException) -> str:
    """One printable line about any exception."""
    return " ".join(outward(str(error)).split())[:300]
