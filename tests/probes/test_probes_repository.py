"""Which commit is checked out, of a real repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pytest_llmbench.probes.host import checked_out


def git(folder: Path, *arguments: str) -> str:
    named = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    ran = subprocess.run(["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return ran.stdout.strip()


@pytest.fixture(autouse=True)
def no_repository_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))


def test_the_commit_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert checked_out(tmp_path) is None  # no commit yet
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-q", "-m", "first")
    (tmp_path / "unknown").write_text("of no interest")
    assert checked_out(tmp_path) == (git(tmp_path, "rev-parse", "HEAD"), False)
    (tmp_path / "a").write_text("2")
    found = checked_out(tmp_path)
    assert found is not None
    assert found.uncommitted


def test_there_is_none_outside_of_a_repository_or_without_git(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checked_out(tmp_path) is None
    assert checked_out(tmp_path / "none") is None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checked_out(tmp_path) is None
