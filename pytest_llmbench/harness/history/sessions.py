"""The saved sessions of a storage folder, what the commands about them share, and ``pytest-llmbench list``: a
table of them for each folder, which is that of a machine."""

from __future__ import annotations

import argparse
import difflib
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pytest_llmbench.errors import LLMBenchError, StoreError, SuiteError, shown
from pytest_llmbench.model.facts import SUTFact
from pytest_llmbench.redaction import terminal_text
from pytest_llmbench.reports.terminal import text_table
from pytest_llmbench.store.baselines import Baseline, BaselineTest, read_baseline, saved_baselines
from pytest_llmbench.store.elsewhere import mirror_of
from pytest_llmbench.store.files import STORAGE, write_csv

_COMMIT_DIGITS = 12


@dataclass(frozen=True)
class Session:
    """One saved session."""

    path: Path
    baseline: Baseline
    name: str
    """The name of the session, ``0001_main``; with its folder if another session has the same name."""

    @property
    def saved(self) -> str:
        """Time at which it was saved, as ``2026-01-20 09:30``, UTC."""
        return self.baseline.saved[:16].replace("T", " ")

    @property
    def day(self) -> str:
        return self.baseline.saved[:10]

    @property
    def commit(self) -> str:
        """The commit, ``3f2a1c9b04de``, with a ``+`` where files differed from it; empty where there was
        none."""
        commit = self.baseline.commit
        return "" if commit is None else commit.id[:_COMMIT_DIGITS] + ("+" if commit.uncommitted else "")

    def test(self, nodeid: str) -> BaselineTest | None:
        return next((test for test in self.baseline.tests if test.nodeid == nodeid), None)


def read_sessions(storage: Path) -> tuple[list[Session], list[str]]:
    """The sessions in the order in which they were saved, and messages on files that cannot be read.

    StoreError where there is none at all.
    """
    found: list[Session] = []
    problems: list[str] = []
    for path, name in session_names(saved_baselines(storage)).items():
        try:
            found.append(Session(path, read_baseline(path), name))
        except StoreError as error:
            problems.append(" ".join(str(error).split()))
    if not found:
        raise StoreError(
            problems[0] if problems else "no session has been saved here",
            where=str(storage),
            remedy="save one with --llm-save NAME or --llm-autosave, or name the folder with --storage",
        )
    return sorted(found, key=lambda each: (each.baseline.saved, each.path)), problems


def session_names(paths: Sequence[Path]) -> dict[Path, str]:
    """Path → the name of its session among them: no more of its path than tells it apart."""
    names = {}
    for path in paths:
        forms = (path.stem, f"{path.parent.name}/{path.stem}", str(path))
        alike = [other for other in paths if other != path and other.stem == path.stem]
        folders = {other.parent.name for other in alike}
        names[path] = forms[0 if not alike else 1 if path.parent.name not in folders else 2]
    return names


def _storage(given: str) -> Path:
    """The folder, or that of the copy of a store, which is brought up to date."""
    try:
        mirror = mirror_of(given, "--storage")
    except LLMBenchError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    print_lines([], [] if mirror is None else mirror.fetch())
    return Path(given) if mirror is None else mirror.folder


def add_common(parser: argparse.ArgumentParser, columns: Iterable[str] = ()) -> None:
    """Add the options that all the commands take, and ``--columns`` where there are some to choose from."""
    parser.add_argument(
        "--storage", type=_storage, default=Path(STORAGE), metavar="DIR",
        help="where baselines are kept: a folder (default: .llmbench), or git:[REMOTE/]BRANCH[:PATH]",
    )  # fmt: skip
    parser.add_argument("--csv", type=Path, metavar="FILE", help="also write everything as CSV")
    if columns:
        told = f"comma-separated, from {', '.join(columns)} (default: by width)"
        parser.add_argument("--columns", metavar="NAMES", help=told)


def chosen(option: str, given: str, known: Sequence[str]) -> list[str]:
    """The names in a comma-separated list. SuiteError, with hints, for a name that is not known."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    wrong = []
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(known)}"
            wrong.append(f"{option} {shown(name)} is not known; {hint}")
    if wrong or not names:
        raise SuiteError.from_mistakes(wrong or [f"{option} is empty; there are: {', '.join(known)}"])
    return names


def width() -> int:
    """The width of a line in characters: that of the terminal, 80 where there is none."""
    return max(shutil.get_terminal_size().columns, 40)


def wrapped(text: str, width: int) -> list[str]:
    """The lines of a text below a title, wrapped to the width."""
    return textwrap.wrap(text, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def print_lines(lines: Iterable[str], problems: Iterable[str] = ()) -> None:
    for line in lines:
        print(terminal_text(line.replace("\n", " ")))
    for problem in problems:
        print(terminal_text(f"left out: {problem}"), file=sys.stderr)


def _identified(session: Session, *names: str) -> str:
    """What the tests of a session have under these names of their identity, separated by commas."""
    texts = [
        " ".join(str(value) for name in names if (value := test.identity.get(name)) is not None)
        for test in session.baseline.tests
    ]
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _host(session: Session) -> str:
    """The host in words: ``EPYC 7B13 × 16``, or ``virtual time``."""
    identities: list[Mapping[str, Any]] = [test.identity for test in session.baseline.tests]
    found = [f"{one.get('host.cpu')} × {one.get('host.cpus')}" for one in identities if "host.cpu" in one]
    return ", ".join(dict.fromkeys(found)) or "virtual time"


def _runs(session: Session) -> str:
    """The number of runs: ``3``, or ``1-3`` where its tests differ."""
    counts = sorted({test.runs for test in session.baseline.tests})
    return "" if not counts else str(counts[0]) if len(counts) == 1 else f"{counts[0]}-{counts[-1]}"


COLUMNS: Mapping[str, Callable[[Session], str]] = MappingProxyType(
    {
        "name": lambda session: session.name,
        "saved": lambda session: session.saved,
        "day": lambda session: session.day,
        "commit": lambda session: session.commit,
        "model": lambda session: _identified(session, "model"),
        "build": lambda session: _identified(session, SUTFact.SOFTWARE_ENGINE, SUTFact.SOFTWARE_VERSION),
        "endpoint": lambda session: _identified(session, "endpoint"),
        "machine": _host,
        "tests": lambda session: str(len(session.baseline.tests)),
        "runs": _runs,
        "scale": lambda session: _identified(session, "scale"),
        "seed": lambda session: _identified(session, "seed"),
        "version": lambda session: session.baseline.generator_version,
        "folder": lambda session: session.path.parent.name,
    }
)
_SHOWN = ("name", "saved", "commit", "model", "build", "endpoint", "machine", "tests", "runs")
"""The columns shown by default; those that are empty in every session are left out."""
_NARROW = {"saved": "day", "commit": ""}
"""Column → the column shown in its place on a narrow terminal; empty: none."""
_WIDE = 120
_WHOLE = ("name", "saved", "day", "commit")


def listed(
    sessions: Sequence[Session], *, columns: Sequence[str] | None = None, width: int = 80
) -> list[str]:
    """A table for each folder, oldest first."""
    lines: list[str] = []
    for folder in dict.fromkeys(session.path.parent for session in sessions):
        own = [session for session in sessions if session.path.parent == folder]
        filled = [name for name in _SHOWN if any(COLUMNS[name](session) for session in own)]
        if width < _WIDE:
            filled = [short for name in filled if (short := _NARROW.get(name, name))]
        names = list(columns or filled)
        rows = [[COLUMNS[name](session) for name in names] for session in own]
        lines += ["", str(folder), *text_table(names, rows, width=width, whole=_WHOLE)]
    return lines[1:]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="pytest-llmbench list",
        description="List the sessions that --llm-save and --llm-autosave saved.",
        epilog="Exit status: 0 listed, 2 there are none, or an option is wrong.",
    )
    add_common(parser, COLUMNS)
    parser.add_argument(
        "--sort", metavar="COLUMN", default="saved", help="column to sort by (default: saved, oldest first)"
    )
    given = parser.parse_args(list(arguments))
    columns = None if given.columns is None else chosen("--columns", given.columns, list(COLUMNS))
    (by,) = chosen("--sort", given.sort.replace(",", " "), list(COLUMNS))
    sessions, problems = read_sessions(given.storage)
    if by != "saved":
        sessions = sorted(sessions, key=COLUMNS[by])
    if given.csv is not None:
        names = list(columns or COLUMNS)
        write_csv(given.csv, names, ([COLUMNS[name](each) for name in names] for each in sessions))
    print_lines(listed(sessions, columns=columns, width=width()), problems)
    return 0
