"""``--llm-import``: vLLM's list of performance tests, collected and measured in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from plugin_suite import Suite

pytestmark = pytest.mark.usefixtures("without_pictures")

RANDOM = {"dataset_name": "random", "random-input-len": 128, "random-output-len": 16}
LIST: dict[str, Any] = {
    "defaults": {
        "qps_list": ["inf"],
        "max_concurrency_list": [2, 4],
        "server_parameters": {"model": "sim-fast", "tensor_parallel_size": 1},
        "client_parameters": {"model": "sim-fast", "backend": "vllm", "temperature": 0, "num_prompts": 20},
    },
    "tests": [
        {"test_name": "serving_random", "client_parameters": RANDOM},
        {
            "test_name": "serving_random_rates",
            "qps_list": [10],
            "max_concurrency_list": [20],
            "client_parameters": RANDOM,
        },
        {
            "test_name": "serving_sonnet",
            "max_concurrency_list": [2],
            "client_parameters": {"dataset_name": "sonnet"},
        },
    ],
}


def written(suite: Suite, content: Any) -> Path:
    path = suite.path / "serving-tests.json"
    path.write_text(json.dumps(content))
    return path


def test_the_entries_are_tests_at_their_loads(suite: Suite) -> None:
    written(suite, LIST)
    result = suite.measure("replay", "--llm-import=serving-tests.json", "-rs")
    result.assert_outcomes(passed=3, skipped=1)
    loads = {entry["nodeid"].rpartition("::")[2]: entry["facts"] for entry in suite.report["tests"]}
    assert [*loads] == [
        "test_serving_random_qps_inf_concurrency_2",
        "test_serving_random_qps_inf_concurrency_4",
        "test_serving_random_rates_qps_10_concurrency_20",
    ]
    result.stdout.fnmatch_lines(
        [
            "llmbench: 4 tests of serving-tests.json; none launches a server, which has to run with",
            "  model sim-fast, tensor_parallel_size 1",
            "  sent to completions by vLLM: give --llm-api=openai-completions",
            "SKIPPED*serving-tests.json*no equal here: dataset_name 'sonnet': random and sharegpt *",
        ]
    )


def test_a_list_stands_beside_the_tests_of_a_suite_and_is_collected_once(suite: Suite) -> None:
    suite.write("def test_own(): ...")
    written(suite, [{**LIST["tests"][1], "client_parameters": RANDOM | {"num_prompts": 10}}])
    name = "serving-tests.json::test_serving_random_rates_qps_10_concurrency_20"
    for chosen, found in (((), [name, "test_suite.py::test_own"]), ((name,), [name])):
        result = suite.run("--llm-import=serving-tests.json", "--collect-only", "-q", *chosen)
        assert sorted(line for line in result.outlines if "::" in line) == found


def test_another_model_than_the_list_is_about_fails(suite: Suite) -> None:
    entry = {**LIST["tests"][1], "client_parameters": RANDOM | {"model": "llama", "num_prompts": 10}}
    written(suite, [entry])
    result = suite.measure("replay", "--llm-import=serving-tests.json")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*is about the model llama, and sim-fast was measured*"])


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"tests": 5}, "no list of tests"),
        ([], "it has no tests"),
        ([3], "entry 1 is 3: no JSON object"),
        ([{"a": 1}], "entry 1 has neither test_name nor client_parameters"),
        ([{"test_name": "x", "client_parameters": [1]}], "no JSON object"),
        ([{"test_name": "x", "qps_list": "4"}], "x.qps_list is '4': no list of numbers"),
        ([{"test_name": "x", "qps_list": [-1]}], "no finite number of at least zero"),
        ([{"test_name": "x", "qps_list": [float("nan")]}], "entry is nan"),
        ([{"test_name": "x", "max_concurrency_list": [1.5]}], "1.5: no whole number"),
        ([{"test_name": "x", "qps_list": [*range(1, 1100)]}], "it has 1099 tests, most are 1000"),
    ],
)
def test_what_is_no_list_ends_the_session(suite: Suite, content: Any, told: str) -> None:
    written(suite, content)
    result = suite.run("--llm-import=serving-tests.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
