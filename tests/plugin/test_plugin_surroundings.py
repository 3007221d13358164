"""Suites in surroundings of their own: folders, encodings, configuration files, what pytest 9 brought."""

from __future__ import annotations

import os
import re
import shlex

import pytest
from plugin_suite import SMALL_WARMUP, Suite
from pytest_apart import WITHOUT_OTHERS

since_9 = pytest.mark.skipif(pytest.version_tuple < (9,), reason="of pytest 9")
ONE = """
from pytest_llmbench import llmbench

@llmbench.ttft(rate=20, p50_ms=0.001)
def test_first_token(): ...
"""


def test_the_printed_command_runs_where_the_session_ran(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = suite.pytester.mkdir("gates")
    suite.pytester.makeini("[pytest]")
    (folder / "test_here.py").write_text(ONE, "utf-8")
    monkeypatch.chdir(folder)
    suite.pytester.makeconftest(SMALL_WARMUP)
    given = ("--llm-endpoint=replay", "--llm-scale=quick", "--llm-report=../out")
    suite.pytester.runpytest_subprocess(*given, *WITHOUT_OTHERS)  # what was typed is the process's
    assert suite.report["environment"]["root"] == ".."
    assert suite.report["tests"][0]["nodeid"] == "gates/test_here.py::test_first_token"
    text = (suite.path / "out" / "summary.md").read_text("utf-8")
    (command,) = re.findall(r"^pytest (.*)$", text, re.MULTILINE)
    again = suite.run(*shlex.split(command))
    again.assert_outcomes(failed=1)


def test_equal_names_of_two_files_are_told_apart(suite: Suite) -> None:
    for name in ("a", "b"):
        suite.pytester.makepyfile(**{f"test_{name}": ONE})
    suite.pytester.makeconftest(SMALL_WARMUP)
    result = suite.measure("replay")
    result.stdout.fnmatch_lines(["  test_a.py::*first_token *FAIL*", "  test_b.py::*first_token *FAIL*"])
    text = (suite.path / "out" / "summary.md").read_text("utf-8")
    assert "test_a.py::test_first_token" in text
    assert "test_b.py::test_first_token" in text


def test_the_cause_of_a_test_without_a_measurement_is_what_was_raised(suite: Suite) -> None:
    suite.write("""
        import pytest
        @pytest.fixture
        def llm_sut():
            raise ConnectionError("the server did not start")

        @llmbench.ttft(rate=20)
        def test_raises(): ...

        @llmbench.ttft(rate=20)
        def test_lacks(no_such_fixture): ...
    """)
    suite.measure("replay").assert_outcomes(errors=2)
    errors = [test["error"] for test in suite.report["tests"]]
    assert errors == ["ConnectionError: the server did not start", "fixture 'no_such_fixture' not found"]
    text = (suite.path / "out" / "summary.md").read_text("utf-8")
    assert "ConnectionError: the server did not start" in text
    assert "@pytest.fixture" not in text


def test_a_storage_that_cannot_be_written_is_told_before_the_load(suite: Suite) -> None:
    suite.write(ONE)
    (suite.path / "file").touch()
    result = suite.measure("replay", "--llm-save=main", "--llm-storage=file/storage")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*file/storage: the folder cannot be written*", "*--llm-storage*"])
    assert "test_first_token" not in str(result.stdout)


@since_9
def test_a_number_in_toml_is_a_number(suite: Suite) -> None:
    suite.write("def test_options(pytestconfig): ...")
    suite.pytester.makepyprojecttoml("[tool.pytest]\nllm_workers = 2\nllm_timeout = 0.5\nllm_seed = '7'")
    result = suite.run("-o", "llm_caps=requests=9", "--llm-endpoint=replay")
    assert result.ret == 0
    suite.pytester.makepyprojecttoml("[tool.pytest]\nllm_plan = 2")
    result = suite.run()
    result.stderr.fnmatch_lines(["*'llm_plan' expects a bool*"])
    suite.pytester.makepyprojecttoml("[tool.pytest]\nllm_workers = -2")
    result = suite.run()
    assert "llm_workers" in str(result.stderr) or "--llm-workers" in str(result.stderr)
    assert result.ret == pytest.ExitCode.USAGE_ERROR


@since_9
def test_subtests_are_no_attempts_and_take_no_measurement(suite: Suite) -> None:
    suite.write(
        """
        import pytest
        @pytest.mark.parametrize("highest", [1, 9])
        @llmbench.ttft(rate=20)
        def test_parts(subtests, highest):
            for number in range(3):
                with subtests.test(number=number):
                    assert number < highest
        """,
        conftest=SMALL_WARMUP,
    )
    suite.measure("replay")
    failed, passed = suite.report["tests"]
    assert (failed["outcome"], failed["error"]) == ("failed", "contains 2 failed subtests")
    assert (passed["outcome"], passed["error"]) == ("passed", None)
    assert {test["attempts"] for test in (failed, passed)} == {1}
    assert all(test["metrics"] for test in (failed, passed))


@pytest.mark.slow
def test_a_file_system_in_ascii_ends_in_no_traceback(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.pytester.makeconftest(SMALL_WARMUP)
    folder = suite.pytester.mkdir("gates é")
    (folder / "test_here.py").write_text(ONE, "utf-8")
    for name, value in (("LC_ALL", "C"), ("PYTHONUTF8", "0"), ("PYTHONCOERCECLOCALE", "0")):
        monkeypatch.setenv(name, value)
    given = ("--llm-endpoint=replay", "--llm-scale=quick", "--llm-report=é", "-p", "no:cacheprovider")
    result = suite.pytester.runpytest_subprocess(*given, os.fspath(folder))
    result.assert_outcomes(failed=1)
    told = str(result.stdout) + str(result.stderr)
    assert "UnicodeEncodeError" not in told
    assert (suite.path / "é" / "summary.md").is_file()
