"""A report directory that is used again holds the files of one session, the last one."""

from __future__ import annotations

import os
from pathlib import Path, PurePosixPath

import pytest
from plugin_suite import Suite, refused

from pytest_llmbench.__main__ import main
from pytest_llmbench.harness.report_files import RENDERED, _is_read

TWO = """
@llmbench.ttft(rate=20, requests=20)
def test_one(): ...

@llmbench.ttft(rate=25, requests=20)
def test_two(): ...
"""
PASS = "--llm-inconclusive=pass"


def files(directory: Path) -> set[str]:
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith("earlier-")}


def earlier(suite: Suite) -> Path:
    (found,) = (suite.path / "out").glob("earlier-*")
    return found


def test_files_of_two_sessions_are_not_mixed(suite: Suite) -> None:
    suite.write(TWO)
    suite.measure("replay", PASS, "--llm-records=sequence")
    out = suite.path / "out"
    first, told = files(out), (out / "report.json").read_bytes()
    assert len(first) >= 10
    result = suite.measure("replay", PASS, "-k", "test_one")
    result.stdout.fnmatch_lines(["llmbench: the files of an earlier session are now in *out/earlier-*Z"])
    assert files(earlier(suite)) == first
    assert (earlier(suite) / "report.json").read_bytes() == told
    (entry,) = suite.report["tests"]
    assert files(out / "records") == {Path(entry[key]).name for key in ("records_file", "loads_file")}
    assert main(["recompute", str(earlier(suite))]) == 0
    assert main(["recompute", str(out)]) == 0


def test_a_session_that_measures_nothing_changes_nothing(suite: Suite) -> None:
    suite.write(TWO)
    suite.measure("replay", PASS, "-k", "test_one")
    before = files(suite.path / "out")
    suite.run("--llm-report=out").assert_outcomes(skipped=2)
    suite.measure("replay", "--collect-only")
    suite.measure("replay", "--llm-plan")
    assert files(suite.path / "out") == before
    assert not list((suite.path / "out").glob("earlier-*"))


def test_a_file_of_the_user_stays_where_it_is(suite: Suite) -> None:
    suite.write(TWO)
    theirs = suite.path / "out" / "records" / "notes.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("mine", "utf-8")
    foreign = suite.path / "out" / "records" / "mine.jsonl"
    foreign.write_text('{"mine": 1}\n', "utf-8")
    suite.measure("replay", PASS, "-k", "test_one")
    assert not list((suite.path / "out").glob("earlier-*"))
    suite.measure("replay", PASS, "-k", "test_one")
    assert theirs.read_text("utf-8") == "mine"
    assert foreign.read_text("utf-8") == '{"mine": 1}\n'
    assert not (earlier(suite) / "records" / foreign.name).exists()


@pytest.mark.parametrize(
    "name", ["report.html", "report.json", "summary.md", "ci/bencher.json", "journal.jsonl"]
)
def test_no_file_of_others_is_replaced(suite: Suite, name: str) -> None:
    suite.write(TWO)
    theirs = suite.path / "out" / name
    theirs.parent.mkdir(parents=True)
    theirs.write_text('{"of": "another plugin"}\n', "utf-8")
    refused(suite.measure("replay", PASS, "-k", "test_one")).fnmatch_lines(
        [f"*{name.rpartition('/')[2]}*", "*move it, or name another directory with --llm-report"]
    )
    assert theirs.read_text("utf-8") == '{"of": "another plugin"}\n'
    assert [path.name for path in (suite.path / "out").rglob("*") if path.is_file()] == [theirs.name]


def test_what_others_write_meanwhile_is_not_replaced_either(suite: Suite) -> None:
    suite.write("""
    from pathlib import Path
    @llmbench.ttft(rate=20, requests=20)
    def test_one():
        Path("out/report.html").write_text("another plugin's page")
    """)
    result = suite.measure("replay", PASS)
    assert (suite.path / "out" / "report.html").read_text() == "another plugin's page"
    result.stdout.fnmatch_lines(
        ["*report.html: not written: a file with that name exists, and pytest-llmbench did not*"]
    )
    assert (suite.path / "out" / "report.json").is_file()


def test_what_cannot_be_put_aside_is_told_and_costs_nothing(suite: Suite) -> None:
    suite.write(TWO)
    suite.measure("replay", PASS, "-k", "test_one")
    out = suite.path / "out"
    for name in files(out):
        os.utime(out / name, (1768901400, 1768901400))
    (out / "earlier-20260120T093000Z").symlink_to("nowhere")  # taken, and no folder
    result = suite.measure("replay", PASS, "-k", "test_two")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["llmbench: *files of an earlier session cannot be moved aside: File exists*"]
    )
    assert [entry["nodeid"].split("::")[1] for entry in suite.report["tests"]] == ["test_two"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, set()),
        ({"CI": "false"}, set()),
        ({"CI": "true"}, {"github", "gitlab", "bencher", "ctrf"}),
        ({"CI": "true", "GITHUB_ACTIONS": "true"}, {"github", "bencher", "ctrf"}),
        ({"GITLAB_CI": "true"}, {"gitlab", "bencher", "ctrf"}),
        ({"BUILDKITE": "true"}, {"bencher", "ctrf"}),
    ],
)
def test_files_for_ci_have_a_reader(variables: dict[str, str], expected: set[str]) -> None:
    read = {PurePosixPath(name) for name in RENDERED if _is_read(name, variables)}
    in_ci = {path.name for path in read if path.parent.name == "ci"}
    assert {name.partition("-")[0].partition(".")[0] for name in in_ci} == expected
    assert {path.name for path in read} - in_ci == {"summary.md", "minimum.txt"}


def test_files_for_ci_are_written_where_they_are_read(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    suite.write(TWO)
    suite.measure("replay", PASS, "-k", "test_one")
    found = {path.name.partition("-")[0].partition(".")[0] for path in (suite.path / "out" / "ci").glob("*")}
    assert found == {"github", "bencher", "ctrf"}
