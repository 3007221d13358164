"""The commit that made a figure worse: probabilities, work trees, and a planted commit found in replay."""

from __future__ import annotations

import json
import math
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from plugin_suite import SMALL_WARMUP
from pytest_apart import WITHOUT_OTHERS

from pytest_llmbench.__main__ import main
from pytest_llmbench.extras.bisect import command
from pytest_llmbench.extras.bisect.command import Bisection, State, Suspects, Trees, line_of

SUITE = """
from pathlib import Path
import pytest
from pytest_llmbench import SUT, llmbench

@pytest.fixture(scope="session")
def llm_sut():
    return SUT("replay:fast?" + Path("engine.txt").read_text().strip())

@llmbench.ttft(p99_ms=60_000, requests=20)
def test_ttft(): ...
"""


def git(folder: Path, *arguments: str) -> str:
    person = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    ran = subprocess.run(["git", *person, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return ran.stdout.strip()


def commit(folder: Path, name: str, text: str, subject: str) -> str:
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", subject)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "engine"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def bisected(last: int, culprit: int, noise: float, change: float, seed: int) -> tuple[Suspects, Bisection]:
    rng, known, found = np.random.default_rng(seed), Bisection(last, least=0.02, rises=True), None
    while known.count < 400:
        at = known.next_commit(found)
        known.add(at, 100 * (1 + change * (at >= culprit)) * math.exp(noise * rng.standard_normal()))
        found = known.suspects()
        if known.both_ends and max(found.none, found.probability.max()) >= 0.975:
            return found, known
    raise AssertionError("undecided")


@pytest.mark.parametrize(("culprit", "last"), [(1, 50), (23, 50), (50, 50), (1, 1)])
def test_the_planted_commit_is_found_wherever_it_is(culprit: int, last: int) -> None:
    found, known = bisected(last, culprit, 0.01, 0.05, seed=culprit)
    assert found.probability.argmax() == culprit
    assert known.count < 25


def test_the_promise_is_kept_where_noise_and_change_are_as_large() -> None:
    right = [bisected(10, 7, 0.05, 0.1, seed)[0].probability.argmax() == 7 for seed in range(20)]
    assert sum(right) >= 19


def test_a_range_without_a_change_is_told() -> None:
    none = [bisected(20, 1, 0.01, 0.0, seed)[0].none for seed in range(5)]
    assert min(none) >= 0.975


def test_probabilities_add_up_and_an_improvement_is_no_worsening() -> None:
    known = Bisection(8, least=0.02, rises=True)
    for at, value in ((0, 100.0), (8, 90.0), (0, 100.5), (8, 90.4), (4, 95.0)):
        known.add(at, value)
    found = known.suspects()
    assert found.probability.sum() + found.none == pytest.approx(1.0)
    assert found.none > 0.5


def test_commits_that_cannot_be_measured_are_told_together(tmp_path: Path) -> None:
    commits = [letter * 40 for letter in "abcdef"]
    state = State(asked={}, measured=[("a" * 40, 1.0), ("d" * 40, 2.0)], failed={"b" * 40: ["no"] * 2})
    state.failed |= {"c" * 40: ["no"] * 2, "d" * 40: ["no"] * 2, "e" * 40: ["no"]}
    trees = Trees(tmp_path, tmp_path, None, 4, ())
    search = command._Search(commits, trees, tmp_path, "", state, 0.05, 0.02)
    assert search.groups == [range(1, 4), range(4, 5), range(5, 6)]
    assert search.skipped == {1, 2, 3}


def test_commits_are_built_beside_the_work_tree_and_few_are_kept(repository: Path, tmp_path: Path) -> None:
    made = [commit(repository, "x", str(number), f"make {number}") for number in range(4)]
    (repository / "x").write_text("being edited")
    assert line_of(repository, made[0][:9], "main") == made
    (tmp_path / "state" / "trees").mkdir(parents=True)
    trees = Trees(repository, tmp_path / "state" / "trees", "test $(cat x) != 2 && cp x y", 1, made[:1])
    assert [trees.ready(each) is None for each in made] == [True, True, False, True]
    assert trees.built == (made[0], made[3])
    assert (trees.path(made[3]) / "y").read_text() == "3"
    again = Trees(repository, tmp_path / "state" / "trees", "false", 1, made[:1])
    assert again.ready(made[3]) is None
    again.remove()
    assert git(repository, "worktree", "list").count("\n") == 0
    assert (repository / "x").read_text() == "being edited"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["main", "first"], "main is not an ancestor of first"),
        (["first", "first"], "first is not an ancestor of first"),
        (["nowhere", "main"], "nowhere is not a commit of this repository"),
        (["first", "main", "--state=inside"], "would be taken for a part of it"),
    ],
)
def test_mistakes_are_told(
    repository: Path,
    arguments: list[str],
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    commit(repository, "x", "1", "one")
    git(repository, "tag", "first")
    commit(repository, "x", "2", "two")
    monkeypatch.chdir(repository)
    assert main(["bisect", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_a_planted_commit_is_found_in_replay_and_a_second_call_goes_on(
    repository: Path,
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    suite = pytester.makepyfile(test_gate=SUITE)
    pytester.makeconftest(SMALL_WARMUP)

    def in_this_process(command: Any, cwd: Path, **rest: Any) -> Any:
        if command[1:3] != ["-m", "pytest"]:
            return subprocess.run(command, cwd=cwd, **rest)
        # The start of a process takes most of the time of such a session.
        with monkeypatch.context() as within:
            within.chdir(cwd)
            return SimpleNamespace(returncode=pytester.runpytest_inprocess(*command[3:]).ret)

    for number in range(5):
        slow = "prefill_us_per_token=300" if number >= 3 else "prefill_us_per_token=200"
        (repository / "broken").write_text("yes" if number == 1 else "")
        commit(repository, "engine.txt", f"{slow}&seed={number}\n", f"Change {number}")
    monkeypatch.chdir(repository)
    given = ["bisect", "main~4", "main", "--build=test ! -s broken", "--metric=ttft.p50"]
    of_pytest = ["--", str(suite), "-p", "no:cacheprovider", *WITHOUT_OTHERS, "--llm-scale=quick"]
    assert main([*given, "--max-runs=1", *of_pytest]) == 1  # in a process of its own
    monkeypatch.setattr(
        command, "subprocess", SimpleNamespace(run=in_this_process, DEVNULL=subprocess.DEVNULL)
    )
    assert main([*given, "--keep=1", *of_pytest]) == 0
    said = capsys.readouterr().out
    assert "undecided after 1 run of 1 commit: 4 of 4 left" in said
    assert "going on after 1 run" in said
    assert said.splitlines()[-3].endswith("A: Change 3")
    state = json.loads((repository.with_name("engine.llmbench-bisect") / "bisect.json").read_text())
    assert state["metric"] == "ttft.p50"
    assert git(repository, "status", "--porcelain") == ""
    assert git(repository, "worktree", "list").count("\n") == 0
    assert main(["bisect", "main~4", "main", "--metric=ttft.p90", *of_pytest]) == 2
