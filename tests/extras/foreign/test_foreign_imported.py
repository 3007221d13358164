"""``--llm-import``: lists of other tools, collected, planned and measured, with servers that are launched."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from plugin_suite import SMALL_WARMUP, Suite
from recipe_examples import RANDOM, SERVING, written

LIST = "--llm-import=serving-tests.json"
ONE_ROW = {
    **SERVING["tests"][0],
    "qps_list": [10],
    "client_parameters": RANDOM | {"model": "sim-fast", "num_prompts": 10},
}
RUN = {
    "perf-eval.yaml": "2 of 2", "perf-sanity.yml": "1 of 1", "scenario.json": "2 of 2",
    "flat.json": "2 of 2", "config.yaml": "2 of 2", "bench.sh": "4 of 5", "test_serving.py": "2 of 4",
    "serving-tests.json": "5 of 7",
}  # fmt: skip
VLLM = """#!/bin/sh
echo "$LOADED_BY $*" >> {log}
for port; do :; done
exec {python} -m pytest_llmbench.simulator --preset fast --port "$port"
"""
"""A program ``vllm``: the embedded engine, which notes how it was called."""


@pytest.fixture
def calls(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The calls of a program ``vllm`` that is on the path."""
    log, program = suite.path / "calls", suite.path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(VLLM.format(log=log, python=sys.executable), "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return log


def test_the_entries_are_tests_at_their_loads(suite: Suite) -> None:
    written(suite.path, "serving-tests.json")
    result = suite.measure("replay", LIST, "-rs")
    result.assert_outcomes(passed=5, skipped=2)
    loads = {entry["nodeid"].rpartition("::")[2]: entry["test"] for entry in suite.report["tests"]}
    assert loads == dict.fromkeys(
        [
            "test_serving_random_qps_inf_concurrency_2",
            "test_serving_random_qps_inf_concurrency_20",
            "test_serving_prefix_qps_10_concurrency_2",
            "test_serving_tp2_qps_inf_concurrency_4",
            "test_serving_prefix_qps_10_concurrency_20",
        ],
        "job",
    )
    result.stdout.fnmatch_lines(
        [
            "llmbench: 5 of 7 tests of serving-tests.json run",
            "  skipped: dataset-name 'sonnet': there are random, prefix_repetition, sharegpt (2 tests)",
            "  it has to run with: LOADED_BY=… vllm serve sim-fast --tensor-parallel-size 1 *",
            "  sent to openai-completions there: give --llm-api=openai-completions",
            "  replies go on to their limit there: request.ignore_eos in the SUT file",
            "SKIPPED*serving-tests.json*no equal here: dataset-name 'sonnet'*",
        ]
    )


@pytest.mark.usefixtures("however_late")
def test_a_server_is_launched_once_for_all_that_ask_for_it(suite: Suite, calls: Path) -> None:
    written(suite.path, "serving-tests.json")
    suite.pytester.makeconftest(SMALL_WARMUP)
    result = suite.run(
        LIST, "--llm-scale=quick", "--llm-report=out", "--llm-inconclusive=pass", "-k", "random or tp2"
    )
    result.assert_outcomes(passed=3, deselected=4)
    flags = ["recipes serve sim-fast --tensor-parallel-size {} --disable-log-stats --port"]
    started = [line.rpartition(" ")[0] for line in calls.read_text().splitlines()]
    assert started == [flags[0].format(number) for number in (1, 2)]


def test_without_program_and_endpoint_nothing_is_measured(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    written(suite.path, "serving-tests.json", [SERVING["tests"][0] | {"server_parameters": {"model": "m"}}])
    result = suite.run(LIST, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["  give --llm-endpoint: program vllm is not installed (1 tests)"])
    result.stdout.fnmatch_lines(["SKIPPED*program vllm is not installed, and no --llm-endpoint is given"])
    suite.run(LIST, "--llm-require").assert_outcomes(errors=1)


def test_an_endpoint_of_the_settings_is_one_too(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with (suite.path / "tox.ini").open("a") as settings:
        settings.write("\nllm_endpoint = replay\n")
    written(suite.path, "serving-tests.json", [ONE_ROW])
    suite.run(LIST, "--llm-scale=quick", "--llm-inconclusive=pass").assert_outcomes(passed=1)


def test_an_api_that_is_given_is_not_asked_for(suite: Suite) -> None:
    written(suite.path, "serving-tests.json", [ONE_ROW])
    asked = "  sent to openai-completions there: give --llm-api=openai-completions"
    for given, told in (((), True), (("--llm-api=openai-completions",), False)):
        result = suite.run(LIST, "--llm-endpoint=replay", "--collect-only", *given)
        assert (asked in result.outlines) is told


def test_a_list_stands_beside_the_tests_of_a_suite_and_is_collected_once(suite: Suite) -> None:
    suite.write("def test_own(): ...")
    written(suite.path, "serving-tests.json", [ONE_ROW])
    name = "serving-tests.json::test_serving_random_qps_10"
    for chosen, found in (((), [name, "test_suite.py::test_own"]), ((name,), [name])):
        result = suite.run(LIST, "--collect-only", "-q", *chosen)
        assert sorted(line for line in result.outlines if "::" in line) == found


def test_another_model_than_the_list_is_about_is_an_error_before_any_load(suite: Suite) -> None:
    client = ONE_ROW["client_parameters"] | {"model": "llama"}
    written(suite.path, "serving-tests.json", [ONE_ROW | {"client_parameters": client}])
    result = suite.measure("replay", LIST)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*is about the model llama, and the endpoint serves sim-fast*"])
    assert not [*(suite.path / "out").rglob("*.jsonl")]


@pytest.mark.parametrize(("name", "run"), RUN.items())
def test_a_plan_says_how_many_of_how_many_run(suite: Suite, name: str, run: str) -> None:
    written(suite.path, name)
    result = suite.run(f"--llm-import={name}", "--llm-plan", "--llm-scale=quick")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"llmbench: {run} tests of {name} run", "  *"])


def test_tests_with_servers_of_their_own_share_no_warm_up(suite: Suite) -> None:
    written(suite.path, "serving-tests.json")
    planned = suite.run(LIST, "--llm-plan", "--llm-scale=quick", "-k", "random or tp2").outlines
    test = ""
    shared = {}
    for line in planned:
        test = line.strip() if "::" in line and "shared" not in line else test
        if "warm-up shared" in line:
            shared[test.rpartition("::")[2]] = line.rpartition("::")[2]
    assert shared == {
        "test_serving_random_qps_inf_concurrency_20": "test_serving_random_qps_inf_concurrency_2"
    }


def test_what_is_no_list_ends_the_session(suite: Suite) -> None:
    written(suite.path, "serving-tests.json", {"tests": 5})
    result = suite.run(LIST)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "expected a list of the tests" in result.stderr.str()
