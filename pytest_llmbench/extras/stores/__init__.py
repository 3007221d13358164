"""Where baselines are kept that are not in a folder: ``git:[REMOTE/]BRANCH[:PATH]``, a directory in a branch
of the repository that the session runs in, a commit for each session.

Plumbing alone: neither the working tree nor its index is touched. A branch that is not there begins with the
first session. Of a remote the branch is fetched before and pushed after; whoever is late, here or there,
commits again on top of the other.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_llmbench.errors import StoreError, SuiteError, shown
from pytest_llmbench.registry import Extra

EXTRA = Extra(stores={"git": "pytest_llmbench.extras.stores:store"})

_TIMEOUT_S = 30
_MOST_TRIES = 10
_NOBODY = {
    "GIT_AUTHOR_NAME": "pytest-llmbench",
    "GIT_AUTHOR_EMAIL": "pytest-llmbench@localhost",
    "GIT_COMMITTER_NAME": "pytest-llmbench",
    "GIT_COMMITTER_EMAIL": "pytest-llmbench@localhost",
}
"""Who commits where Git knows no one, as on a runner of CI."""


def _git(*arguments: str, text: str = "", env: Mapping[str, str] | None = None, absent: bool = False) -> str:
    """The output of a command. StoreError if it fails; where that may be, ``absent``, an empty output."""
    try:
        ran = subprocess.run(
            ["git", *arguments],
            input=text.encode("utf-8", "surrogateescape"),
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", **(env or {})},
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise StoreError(f"git {arguments[0]}: {error}") from error
    if ran.returncode and not absent:
        raise StoreError(f"git {arguments[0]}: {ran.stderr.decode(errors='replace').strip()[:300]}")
    return "" if ran.returncode else ran.stdout.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class GitBranch:
    branch: str
    directory: str
    remote: str | None

    def names(self) -> list[str]:
        tip = self._tip()
        if not tip:
            return []
        listed = _git("ls-tree", "-r", "-z", "--full-tree", "--name-only", tip, "--", f"{self.directory}/")
        return [path.removeprefix(f"{self.directory}/") for path in listed.split("\0") if path]

    def read(self, name: str) -> str:
        return _git("cat-file", "blob", f"{self._known()}:{self.directory}/{name}")

    def add(self, name: str, text: str) -> bool:
        refused = ""
        for _ in range(_MOST_TRIES):
            tip = self._tip()
            path = f"{self.directory}/{name}"
            if tip and _git("ls-tree", "--full-tree", "--name-only", tip, "--", path):
                return False
            commit = self._committed(tip, path, text)
            try:
                if self.remote is None:
                    _git("update-ref", "-m", "pytest-llmbench", self._ref, commit, tip or "0" * len(commit))
                else:
                    _git("push", "--quiet", "--no-verify", self.remote, f"{commit}:{self._ref}")
            except StoreError as error:
                refused = error.what
            else:
                return True
        raise StoreError(f"the branch {self.branch} cannot be moved: {refused}")

    @property
    def _ref(self) -> str:
        return f"refs/heads/{self.branch}"

    @property
    def _own_ref(self) -> str:
        """Where the branch is in this repository; that of a remote is nobody's branch here."""
        return self._ref if self.remote is None else f"refs/llmbench/{self.remote}/{self.branch}"

    def _known(self) -> str:
        return _git("rev-parse", "--verify", "--quiet", f"{self._own_ref}^{{commit}}", absent=True).strip()

    def _tip(self) -> str:
        """The last commit; empty where there is no such branch yet."""
        if self.remote is not None:
            if not _git("ls-remote", "--heads", self.remote, self._ref):
                return ""
            _git("fetch", "--quiet", "--no-write-fetch-head", self.remote, f"+{self._ref}:{self._own_ref}")
        return self._known()

    def _committed(self, tip: str, path: str, text: str) -> str:
        blob = _git("hash-object", "-w", "--stdin", text=text).strip()
        with tempfile.TemporaryDirectory(prefix="llmbench-index-") as folder:
            index = {"GIT_INDEX_FILE": str(Path(folder, "index"))}
            if tip:
                _git("read-tree", tip, env=index)
            _git("update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", env=index)
            tree = _git("write-tree", env=index).strip()
        who = {} if _git("var", "GIT_COMMITTER_IDENT", absent=True) else _NOBODY
        parents = ("-p", tip) if tip else ()
        return _git("commit-tree", tree, *parents, text=f"Baseline {path}\n", env=who).strip()


def store(where: str) -> GitBranch:
    """The store that ``[REMOTE/]BRANCH[:PATH]`` names. SuiteError outside of a repository, for what is no
    branch, and for the one that a working tree has checked out."""
    branch, _, directory = where.partition(":")
    option = f"--llm-storage git:{where}"
    remotes = _git("remote", absent=True).split()
    first, _, rest = branch.partition("/")
    remote = first if rest and first in remotes else None
    branch = rest if remote else branch
    directory = directory.strip("/") or "llmbench"
    if not _git("rev-parse", "--git-dir", absent=True):
        raise SuiteError("this is not a Git repository", where=option, remedy="run the session in one")
    if not _git("check-ref-format", "--branch", branch, absent=True) or {"..", "."} & {*directory.split("/")}:
        raise SuiteError(
            f"{shown(where)} is not a branch with a directory", where=option, remedy="git:BRANCH:PATH"
        )
    if remote is None and f"branch refs/heads/{branch}\n" in _git("worktree", "list", "--porcelain"):
        raise SuiteError(
            f"the branch {branch} is checked out, and its files would seem to be deleted",
            where=option,
            remedy="name a branch for baselines alone",
        )
    return GitBranch(branch, directory, remote)
