"""The Git repository that a session runs in: its commit, and whether files differ from it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

_TIMEOUT_S = 10
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class CheckedOut(NamedTuple):
    commit: str
    """Hash of the commit, in hexadecimal."""
    uncommitted: bool
    """Whether files under version control have been changed since."""


def checked_out(folder: Path) -> CheckedOut | None:
    """The commit that a folder has checked out; None outside of a repository, in one without a commit, and
    where Git is missing or does not answer."""
    commit = _git(folder, "rev-parse", "--verify", "HEAD")
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return None if changed is None else CheckedOut(commit, bool(changed))


def _git(folder: Path, *arguments: str) -> str | None:
    """The output of a Git command, None if it fails. Git takes no lock, so that it disturbs nobody."""
    try:
        ran = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=True,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
