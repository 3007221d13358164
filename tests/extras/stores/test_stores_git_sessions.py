"""Sessions and commands read what sessions kept in a branch of Git."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from plugin_suite import Suite

from pytest_llmbench.__main__ import main

EXAMPLE = Path(__file__).parents[3] / "example_suites" / "stores"
SAVED = ("--llm-runs=3", "--llm-save=main", "--llm-inconclusive=pass")


def test_a_branch_of_git_is_read_by_sessions_and_commands(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(EXAMPLE, suite.path, dirs_exist_ok=True)
    subprocess.run(["git", "init", "--quiet"], cwd=suite.path, check=True)
    storage = "git:llmbench-history"
    for options in (SAVED, (*SAVED, "--llm-compare=main")):
        suite.measure("replay", *options, f"--llm-storage={storage}").assert_outcomes(passed=1)
    monkeypatch.chdir(suite.path)
    shutil.rmtree(".llmbench")
    capsys.readouterr()
    assert main(["list", "--storage", storage, "--columns", "name,tests"]) == 0
    assert re.findall(r"000\d_main", capsys.readouterr().out) == ["0001_main", "0002_main"]
