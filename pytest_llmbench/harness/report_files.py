"""The report of a session, built by the one process that has all entries, and its files, each with its
renderer, which is imported when the report is written.

What an earlier session left in the directory is put aside, so that none holds files of two. A runner of
GitHub Actions tells of itself by environment variables and is told by a summary and annotations:
``GITHUB_STEP_SUMMARY`` names a file that Markdown is appended to, ``GITHUB_ACTIONS`` is ``true``
(docs.github.com, "Variables reference", "Workflow commands").
"""

from __future__ import annotations

import json
import os
import re
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from pytest_llmbench.errors import LLMBenchError, StoreError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.input_files import open_file
from pytest_llmbench.model.facts import EndpointFact
from pytest_llmbench.model.numbers import Entry
from pytest_llmbench.redaction import outward, outward_value, without_credentials
from pytest_llmbench.registry import every, extras, names
from pytest_llmbench.store.environment import this_environment
from pytest_llmbench.store.files import REPORT_NAME, write_report, write_text
from pytest_llmbench.store.journal import JournalHead, ReadJournal, free_name
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


def head_of(settings: Settings, started_ns: int, root: str = ".") -> JournalHead:
    """The part of a report about the session as a whole; ``started_ns`` is wall-clock time, ``root`` the
    folder at which node ids begin."""
    words = [Path(sys.argv[0]).name, *_own_words(sys.argv[1:], settings)]
    environment = this_environment().model_copy(
        update={
            "command": _without_secrets(words, settings),
            "root": outward(root),
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


def _own_words(words: Sequence[str], settings: Settings) -> Iterator[str]:
    """The words of a command line that are our options with their values, or paths. Options of other plugins
    may hold secrets."""
    is_value = False
    for word in words:
        name, equals, _ = word.removeprefix("--llm-").replace("-", "_").partition("=")
        ours, is_path = word.startswith("--llm-"), False
        with suppress(OSError, ValueError):
            is_path = not word.startswith("-") and Path(word.partition("::")[0]).exists()
        if ours or is_value or is_path:
            yield word
        is_value = ours and not equals and not isinstance(getattr(settings, name, ""), bool)


def _without_secrets(value: Any, settings: Settings) -> Any:
    """The value with user information and query removed from the endpoints, wherever they occur."""
    text = json.dumps(value)
    for url in settings.urls:
        text = text.replace(json.dumps(url)[1:-1], json.dumps(without_credentials(url))[1:-1])
    return outward_value(json.loads(text))


def _sut(told: Sut, tests: Sequence[TestEntry]) -> Sut:
    """The system under test of the report. Its disclosure is that of the first test that has one; each test
    carries its own facts as well."""
    facts: dict[str, FactEntry] = next((test.facts for test in tests if test.facts), {})
    endpoint, model, api = map(facts.get, (EndpointFact.URL, EndpointFact.MODEL, EndpointFact.API))
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
    """The outcome of writing a report."""

    paths: list[str] = field(default_factory=list)
    """Paths of what was written, the most useful first; the files for CI systems as one folder."""
    problems: list[str] = field(default_factory=list)
    """What could not be written and why, a line each."""
    annotations: list[str] = field(default_factory=list)
    """Lines to print for GitHub Actions if that runs the session; else empty."""
    warnings: list[str] = field(default_factory=list)
    """What went wrong without loss of anything that was measured, a line each."""


def shown(error: BaseException) -> str:
    """One printable line for any exception."""
    return " ".join(outward(str(error)).split())[:300]


_HTML = "report.html"
_RENDERERS: Mapping[str, str] = MappingProxyType(
    {
        _HTML: "html.html_report",
        "summary.md": "markdown.markdown_report",
        "minimum.txt": "minimum.minimum_report",
        "ci/github-annotations.txt": "ci_files.annotations_text",
        "ci/gitlab-metrics.txt": "ci_files.gitlab_metrics",
        "ci/bencher.json": "ci_files.bencher",
        "ci/github-action-benchmark-smaller.json": "ci_files.smaller_is_better",
        "ci/github-action-benchmark-bigger.json": "ci_files.bigger_is_better",
        "ci/ctrf-report.json": "ci_files.ctrf",
    }
)
"""File → function in ``reports`` that makes its text from the report in plain JSON types."""
_SYSTEMS = {"GITHUB_ACTIONS": "ci/github-", "GITLAB_CI": "ci/gitlab-", "BUILDKITE": "ci/buildkite-"}
"""Variable by which a CI system tells of itself → beginning of the names of its files."""

RENDERED = tuple(name for name in _RENDERERS if name != _HTML)
"""The files that are made of the report alone, wherever they lie, and without pictures."""
_OWN_FILES = (_HTML, REPORT_NAME, *RENDERED)
_FORMER = ("report.md", "ci/buildkite-annotation.md")
"""Files that earlier versions wrote."""


def _is_read(name: str, environment: Mapping[str, str]) -> bool:
    """Whether a file has a reader here: those in ``ci/`` have one in a CI, those of one CI system in that, or
    where ``CI`` is set and tells of none."""
    if not name.startswith("ci/"):
        return True
    here = [begins for variable, begins in _SYSTEMS.items() if environment.get(variable)]
    if not here:
        return environment.get("CI", "") not in ("", "0", "false")
    return name.startswith(tuple(here)) or not name.startswith(tuple(_SYSTEMS.values()))


def report_files() -> tuple[str, ...]:
    """The names of the files of a report, relative to its directory. StoreError for one of an extra that is
    no name of a new file in it."""
    further = names("reports")
    for name in further:
        path = PurePosixPath(name)
        if name in _OWN_FILES or path.is_absolute() or ".." in path.parts or path.suffix == ".gz":
            raise StoreError(
                f"an extra names {name!r} as a file of the report",
                remedy="correct the extra: give a relative name that is not taken",
            )
    return (*_OWN_FILES, *further)


def write_reports(directory: Path, document: Entry) -> Written:
    """Write every file of the report, given in plain JSON types. A file that fails does not keep the others
    from being written, and a file of others is not replaced."""
    found, others = Written(), files_of_others(directory)
    tests = {entry["test"] for entry in document["tests"]}
    needless = {
        name for extra in extras() if extra.tests and not tests & {*extra.tests} for name in extra.reports
    }
    for name in report_files():
        path = directory / name
        if name in needless or not _is_read(name, os.environ):
            continue
        if name in others:
            found.problems.append(f"{path}: not written: {_NOT_OURS}")
            continue
        try:
            if name == REPORT_NAME:
                write_report(path, document)
            else:
                write_text(path, text_of(name, document))
        except LLMBenchError as error:
            found.problems.append(" ".join(str(error).split()))
        except Exception as error:  # noqa: BLE001 - of ours, and must not cost the verdicts and other files
            found.problems.append(f"{path}: cannot be made: {type(error).__name__}: {shown(error)}")
        else:
            found.paths.append(str(path if path.parent == directory else path.parent))
    return replace(found, paths=list(dict.fromkeys(found.paths)))


def text_of(name: str, document: Entry) -> str:
    """The text of one file."""
    if name not in _RENDERERS:
        made: str = every("reports")[name](document)
        return made
    module, _, function = _RENDERERS[name].rpartition(".")
    text: str = getattr(import_module(f"pytest_llmbench.reports.{module}"), function)(document)
    return text


_NOT_OURS = "a file with that name exists, and pytest-llmbench did not write it"
_OURS = re.compile(
    rb"\A## [^\n]{0,9}LLM benchmark: |\xe2\x80\x93 LLM benchmark report|"
    rb"\A=== LLM Benchmark Report |pytest-llmbench"
)
"""What is in the beginning of our files: of texts, of the page, of reports and records with their schema."""
_BEGINNING = 4096
_UNMARKED = frozenset(name for name in _RENDERERS if name.startswith("ci/") and "ctrf" not in name)
"""Files whose readers leave no room for a mark: they are ours beside a ``report.json`` of ours."""


def files_of_others(directory: Path) -> list[str]:
    """Names of the files of a report that somebody else has written in ``directory``. A folder of such a name
    is none: nothing can take its place."""
    known, places = is_ours(directory / REPORT_NAME), {name: directory / name for name in report_files()}
    unmarked = {*_UNMARKED, *names("reports")}
    found = [name for name, path in places.items() if path.exists() and not path.is_dir()]
    return [name for name in found if not (known if name in unmarked else is_ours(directory / name))]


def check_ours(directory: Path) -> None:
    """Raise StoreError where a report would take the place of files of others."""
    if others := files_of_others(directory):
        raise StoreError(
            f"{_NOT_OURS}: {', '.join(others)}",
            where=str(directory),
            remedy="move it, or name another directory with --llm-report",
        )


def is_ours(path: Path) -> bool:
    """Whether a file is one that this package wrote, or is empty, by its beginning."""
    try:
        with open_file(path) as file:
            beginning = file.read(_BEGINNING)
        if path.suffix == ".gz":
            beginning = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress(beginning, _BEGINNING)
    except (OSError, zlib.error):
        return False
    return not beginning or _OURS.search(beginning) is not None


EARLIER_PREFIX = "earlier-"
"""The prefix of the folders to which files of earlier sessions are moved."""

_MEASURED: tuple[str, ...] = (
    "records/*.jsonl.gz",
    "records/*.jsonl",
    "records/*.loads.json.gz",
    "records/*.loads.json",
    "events*.jsonl.gz",
    "telemetry*.jsonl",
)
_SEQUENCES = "sequence/*.json*"

Files = Mapping[Path, int]
"""Path → the time of its last change, in nanoseconds."""


def files_in(directory: Path) -> Files:
    """All files in a directory that belong to a report, to its records or to its sequences.

    The names are anybody's (``summary.md``): what is not ours by :func:`is_ours` is left out, and without a
    ``report.json`` of ours all that bears no mark.
    """
    measured = [path for name in _MEASURED for path in directory.glob(name) if is_ours(path)]
    found: list[Path] = []
    if (directory / REPORT_NAME).is_file() and is_ours(directory / REPORT_NAME):
        others = files_of_others(directory)
        found = [directory / name for name in (*report_files(), *_FORMER) if name not in others]
        found += directory.glob(_SEQUENCES)
    return {path: path.stat().st_mtime_ns for path in sorted([*measured, *found]) if path.is_file()}


def of_session(files: Files, directory: Path, journal: ReadJournal) -> Files:
    """The ``files`` that the session of ``journal`` wrote: it names them, or they changed since."""
    named = {entry.get(key) for entry in journal.course.entries for key in ("records_file", "loads_file")}
    started = journal.head.started
    return {
        path: changed_ns
        for path, changed_ns in files.items()
        if iso_utc(changed_ns) >= started or path.relative_to(directory).as_posix() in named
    }


def unchanged(files: Files) -> Files:
    """The ``files`` that nobody has rewritten or removed since."""
    return {
        path: changed_ns
        for path, changed_ns in files.items()
        if path.is_file() and path.stat().st_mtime_ns == changed_ns
    }


def put_aside(directory: Path, files: Files, place: Path | None = None) -> Path | None:
    """Move ``files`` of ``directory`` into ``place``, by default a new folder named after the last change.

    Returns the folder; None where there is no file. Raises StoreError where one cannot be moved.
    """
    if not files:
        return None
    place = place or free_name(directory, EARLIER_PREFIX, iso_utc(max(files.values())))
    try:
        for path in files:
            target = place / path.relative_to(directory)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
    except OSError as error:
        raise StoreError(
            f"the files of an earlier session cannot be moved aside: {error.strerror or error}",
            where=str(directory),
            remedy="remove it, or name another directory with --llm-report",
        ) from error
    return place


_SUMMARY = "GITHUB_STEP_SUMMARY"
_ACTIONS = "GITHUB_ACTIONS"


def github_wants_to_know(environment: Mapping[str, str]) -> bool:
    """Whether the session runs under GitHub Actions and something can be reported there."""
    return bool(environment.get(_SUMMARY)) or environment.get(_ACTIONS) == "true"


def tell_github(
    document: Entry, environment: Mapping[str, str], written: Written, *, path: str | None
) -> None:
    """Append the summary of the job, and note in ``written`` what is to be printed, which the runner takes as
    commands. Never raises: whatever goes wrong here costs no verdict and no file.

    ``path``: where the whole report is, None if it was not written.
    """
    from pytest_llmbench.reports.ci_files import workflow_commands
    from pytest_llmbench.reports.markdown import markdown_report

    name = environment.get(_SUMMARY)
    try:
        if environment.get(_ACTIONS) == "true":
            written.annotations.extend(workflow_commands(document))
        if name:
            with Path(name).open("a", encoding="utf-8", newline="\n") as file:
                file.write(f"{markdown_report(document, path=path and outward(path))}\n")
    except OSError as error:
        why = f"the summary of the job is not written: {name}: {error.strerror or error}"
        written.warnings.append(outward(why))
    except Exception as error:  # noqa: BLE001 - of ours, see above
        written.warnings.append(f"GitHub is not told: {type(error).__name__}: {shown(error)}")
