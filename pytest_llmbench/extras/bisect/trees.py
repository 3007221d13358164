"""The commits between a good and a bad one, each checked out and built in a work tree of its own.

Git is asked; the user's own work tree and branches stay as they are.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from pytest_llmbench.errors import SuiteError

_BUILT = "built"
_DIGITS = 12


def short(commit: str) -> str:
    return commit[:_DIGITS]


def git(folder: Path, *arguments: str) -> str:
    """The output of a Git command. SuiteError, with what Git says, if it fails."""
    try:
        ran = subprocess.run(
            ["git", *arguments], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise SuiteError(f"git cannot be run: {error.strerror}", remedy="install Git") from None
    if ran.returncode:
        told = " ".join(ran.stderr.decode(errors="replace").split())
        raise SuiteError(told or f"git ended with status {ran.returncode}", where=f"git {arguments[0]}")
    return ran.stdout.decode(errors="surrogateescape").strip()


def line_of(folder: Path, good: str, bad: str) -> list[str]:
    """The commits from the good to the bad one, along first parents: a merge stands for what it brought.

    SuiteError where one is no commit, or the good one is no ancestor of the bad one.
    """
    first, last = (
        git(folder, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}") for name in (good, bad)
    )
    if first == last or git(folder, "merge-base", first, last) != first:
        raise SuiteError(
            f"{good} is no ancestor of {bad}",
            where="bisect",
            remedy="give the good commit first, then a bad one that was made from it",
        )
    between = git(folder, "rev-list", "--first-parent", "--reverse", f"{first}..{last}")
    return [first, *between.splitlines()]


@dataclass
class Trees:
    """Work trees below ``folder``, of which at most ``most`` are kept, beside those of ``always``."""

    repository: Path
    folder: Path
    build: str | None
    most: int
    always: Collection[str]
    _used: list[str] = field(default_factory=list)
    """Commits with a built tree, that of the last use last."""

    def __post_init__(self) -> None:
        self._used = [
            path.name for path in self.folder.glob("*") if path.is_dir() and self._marker(path.name).exists()
        ]

    @property
    def built(self) -> tuple[str, ...]:
        return tuple(self._used)

    def path(self, commit: str) -> Path:
        return self.folder / commit

    def ready(self, commit: str) -> str | None:
        """Have the commit checked out and built; returns why that failed, None if it is there."""
        if commit in self._used:
            self._used.remove(commit)
            self._used.append(commit)
            return None
        self._removed(commit)  # what a killed build has left
        git(self.repository, "worktree", "add", "--detach", "--force", str(self.path(commit)), commit)
        log = self.folder.parent / f"build-{short(commit)}.txt"
        if self.build is not None:
            with log.open("wb") as file:
                ran = subprocess.run(
                    self.build,
                    shell=True,  # it is a command line of the user's own shell
                    cwd=self.path(commit),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    check=False,
                )
            if ran.returncode:
                self._removed(commit)
                return f"--build ended with status {ran.returncode}, see {log}"
        self._marker(commit).touch()
        self._used.append(commit)
        spare = [each for each in self._used if each not in self.always]
        for old in spare[: -self.most]:
            self._removed(old)
        return None

    def remove(self) -> None:
        for commit in [path.name for path in self.folder.glob("*") if path.is_dir()]:
            self._removed(commit)

    def _marker(self, commit: str) -> Path:
        return self.folder / f"{commit}.{_BUILT}"

    def _removed(self, commit: str) -> None:
        self._marker(commit).unlink(missing_ok=True)
        if commit in self._used:
            self._used.remove(commit)
        if self.path(commit).exists():
            shutil.rmtree(self.path(commit))
        git(self.repository, "worktree", "prune")
