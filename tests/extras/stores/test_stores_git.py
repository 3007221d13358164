"""Baselines in a branch of Git: nothing in the working tree moves, and nobody's commit is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_llmbench.errors import StoreError, SuiteError
from pytest_llmbench.extras import stores
from pytest_llmbench.extras.stores import GitBranch, store

FIRST, SECOND = "Linux-64bit/0001_main.json", "Linux-64bit/0002_main.json"


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, a change that is staged and one that is not; Git knows nobody's name."""
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    path = tmp_path / "code"
    git("init", "--quiet", "--initial-branch=main", str(path))
    monkeypatch.chdir(path)
    git("config", "user.useConfigOnly", "true")
    (path / "a.py").write_text("1\n")
    git("add", "a.py")
    git("-c", "user.name=me", "-c", "user.email=me@host", "commit", "--quiet", "-m", "Begin")
    (path / "a.py").write_text("2\n")
    git("add", "a.py")
    (path / "a.py").write_text("3\n")
    return path


def test_sessions_are_commits_of_a_branch_of_their_own() -> None:
    before = git("status", "--porcelain=v2", "--branch"), git("diff"), git("diff", "--cached")
    own = store("llmbench-history:nightly")
    assert own.names() == []
    assert own.add(FIRST, '{"é": 1}\n')
    assert own.add(SECOND, "{}")
    assert not own.add(FIRST, "another")
    assert own.names() == [FIRST, SECOND]
    assert own.read(FIRST) == '{"é": 1}\n'
    assert (git("status", "--porcelain=v2", "--branch"), git("diff"), git("diff", "--cached")) == before
    assert git("log", "--format=%s %cn", "llmbench-history").splitlines() == [
        f"Baseline nightly/{SECOND} pytest-llmbench",
        f"Baseline nightly/{FIRST} pytest-llmbench",
    ]


def test_other_files_of_the_branch_stay(repository: Path) -> None:
    git("branch", "shared")
    assert store("shared").add(FIRST, "{}")
    assert git("ls-tree", "-r", "--name-only", "shared").split() == ["a.py", f"llmbench/{FIRST}"]
    assert (repository / "a.py").read_text() == "3\n"


def test_whoever_is_late_commits_on_top_of_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    git("init", "--quiet", "--bare", "../hub")
    git("remote", "add", "origin", "../hub")
    own, other = store("origin/history"), store("origin/history")
    committed, once = GitBranch._committed, [1]

    def slow(self: GitBranch, tip: str, path: str, text: str) -> str:
        made = committed(self, tip, path, text)
        if once and once.pop():
            assert other.add(FIRST, "theirs")
        return made

    monkeypatch.setattr(GitBranch, "_committed", slow)
    assert own.add(SECOND, "mine")
    assert own.names() == [FIRST, SECOND]
    assert git("branch", "--list").split() == ["*", "main"]
    assert git("-C", "../hub", "show", f"history:llmbench/{FIRST}") == "theirs"


def test_a_branch_that_cannot_be_moved_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_MOST_TRIES", 1)
    git("remote", "add", "origin", "../nowhere")
    with pytest.raises(StoreError, match="nowhere"):
        store("origin/history").names()


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("main", "the branch main is checked out"),
        ("a..b", "is not a branch"),
        ("", "is not a branch"),
        ("history:../up", "is not a branch with a directory"),
    ],
)
def test_what_is_no_branch_for_baselines_is_refused(where: str, said: str) -> None:
    with pytest.raises(SuiteError, match=said):
        store(where)


def test_outside_of_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SuiteError, match="this is not a Git repository"):
        store("history")
