"""Every option × values that nobody means: one message and exit status 4, or a run; never a traceback."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.beforehand import mistakes_of
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.plugin.options import OPTIONS, Option

VALUES = {
    "empty": "",
    "blank": " ",
    "negative": "-1",
    "zero": "0",
    "nan": "nan",
    "inf": "inf",
    "1e400": "1e400",
    "1e308": "1e308",
    "big": "1" + "0" * 30,
    "bigger": "1" + "0" * 5000,
    "range": "0-99999999999",
    "no UTF-8": "\udc80",
    "long": "x" * 100_000,
    "lines": "a\nb",
    "escape": "\x1b[31mx",
    "nul": "a\0b",
    "equals": "=",
    "names": "a=b",
    "missing": "no/such/file",
    "directory": "a_directory",
    "pipe": "a_pipe",
    "device": "/dev/zero",
    "random": "random",
    "deep": "deep",
    "brackets": "http://" + "[" * 2000,
    "port": "http://h:99999999999",
    "format": "%s%d%(x)s{}",
    "ray": "ray?workers=" + "9" * 30,
    "preset": "sim:h100-8b?max_num_seqs=1e400",
    "scenario": "replay:fast?seed=" + "9" * 5000,
}
ALLOWED = {0, 1, 4, 5}
SUITE = """
from pytest_llmbench import llmbench

@llmbench.ttft(requests=20)
def test_x(): ...
"""


@pytest.fixture
def place(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("LLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_suite=SUITE)
    pytester.makeini(
        "[pytest]\nllm_workers = 0\nllm_scale = quick\nasyncio_default_fixture_loop_scope = function\n"
    )
    here = pytester.path
    (here / "a_directory").mkdir()
    os.mkfifo(here / "a_pipe")
    (here / "random").write_bytes(bytes(range(256)) * 16)
    (here / "deep").write_text("a = " + "[" * 100_000)
    return here


def _checked(given: Mapping[str, Any]) -> str:
    """What is wrong with the options, as far as it is said before anything runs."""
    try:
        settings = Settings.from_options(given)
        if settings.workloads is not None:
            read_workload_file(settings.workloads)
    except LLMBenchError as error:
        return str(error)
    return "\n".join(mistakes_of(settings))


def _number(option: Option, value: str) -> Any:
    """As argparse hands it on, which refuses what is none."""
    if not option.number:
        return [value] if option.many else value
    try:
        return int(value)
    except ValueError:
        return None


@pytest.mark.parametrize("option", [each for each in OPTIONS if not each.flag], ids=lambda each: each.name)
def test_the_checks_of_a_session(place: Path, option: Option) -> None:
    for value in VALUES.values():
        given = {option.name.replace("-", "_"): _number(option, value)}
        if option.name != "endpoint":
            given["endpoint"] = "http://127.0.0.1:9/v1"
        told = _checked(given)
        assert len(told) < 3000, f"{value[:40]!r}: a message of {len(told)} characters"
        assert "value error" not in told


def run(pytester: pytest.Pytester, option: Option, value: str) -> None:
    given = f"--llm-{option.name}" + ("" if option.flag else f"={value}")
    system = [] if option.name == "endpoint" else ["--llm-endpoint=replay"]
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", given, *system)
    said = f"{result.stdout}\n{result.stderr}"
    assert int(result.ret) in ALLOWED, said[:2000]
    assert "INTERNALERROR" not in said
    assert "Traceback" not in said
    if int(result.ret) == pytest.ExitCode.USAGE_ERROR:
        assert "ERROR: " in said or "error: " in said


CASES = [(option, name) for option in OPTIONS for name in (["empty"] if option.flag else VALUES)]


@pytest.mark.slow
@pytest.mark.parametrize(("option", "name"), CASES, ids=lambda each: getattr(each, "name", each))
def test_a_session(place: Path, pytester: pytest.Pytester, option: Option, name: str) -> None:
    run(pytester, option, VALUES[name])


@pytest.mark.parametrize(("option", "name"), CASES[::23], ids=lambda each: getattr(each, "name", each))
def test_a_session_with_some_of_them(
    place: Path, pytester: pytest.Pytester, option: Option, name: str
) -> None:
    run(pytester, option, VALUES[name])


@pytest.mark.parametrize("name", ["endpoint", "compare", "model", "sut"])
def test_what_an_unset_variable_leaves_behind_is_a_mistake(
    place: Path, pytester: pytest.Pytester, name: str
) -> None:
    """``--llm-compare=$BASELINE`` would drop the gate without a word."""
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", f"--llm-{name}=", "--llm-require")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"*--llm-{name} is empty: give a value, or leave it out"])


def test_an_ini_file_with_a_nul_byte(place: Path, pytester: pytest.Pytester) -> None:
    (place / "pyproject.toml").write_text('[tool.pytest.ini_options]\nllm_report = "a\\u0000b"\n')
    (place / "tox.ini").unlink()
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--llm-endpoint=replay")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--llm-report: it contains a line break or another control character*"])
