"""What each form of file asks for, as recipes: loads, prompts, servers, and what has no equal here."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from recipe_examples import written

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad
from pytest_llmbench.extras.foreign.recipe_files import read_recipes
from pytest_llmbench.extras.foreign.recipes import Recipe, Server
from pytest_llmbench.workloads.lengths import Fixed, Normal, Uniform

CLIENT = {
    "model": "m",
    "backend": "openai-chat",
    "dataset_name": "random",
    "random_input_len": 1024,
    "random_output_len": 128,
    "num_prompts": 200,
}
AT_ONCE = ForeignLoad(math.inf)


def read(folder: Path, name: str, content: Any = None) -> tuple[Recipe, ...]:
    return read_recipes(written(folder, name, content), folder)


def row(folder: Path, client: Mapping[str, Any] | None = None, **changed: Any) -> tuple[Recipe, ...]:
    """The recipes of a list of vLLM with one row."""
    given = {name: value for name, value in (CLIENT | (client or {})).items() if value is not None}
    return read(folder, "list.json", [{"test_name": "serving_x", "client_parameters": given, **changed}])


def test_every_rate_with_every_number_in_flight(tmp_path: Path) -> None:
    found = row(tmp_path, qps_list=[4, "inf"], max_concurrency_list=[8, 200])
    assert [(test.name, test.load, test.requests, bool(test.obstacles)) for test in found] == [
        ("serving_x_qps_4_concurrency_8", ForeignLoad(4.0, "poisson", None, 8), 200, False),
        ("serving_x_qps_4_concurrency_200", ForeignLoad(4.0, "poisson"), 200, False),
        ("serving_x_qps_inf_concurrency_8", ForeignLoad(math.inf, concurrency=8), 200, False),
        ("serving_x_qps_inf_concurrency_200", ForeignLoad(math.inf, concurrency=200), 200, False),
    ]


def test_all_at_once_is_a_load(tmp_path: Path) -> None:
    (test,) = row(tmp_path, qps_list=["inf"])
    assert (test.load, test.obstacles) == (AT_ONCE, ())


def test_lengths_with_and_without_a_spread(tmp_path: Path) -> None:
    (fixed,) = row(tmp_path)
    assert fixed.lengths == (Fixed(1024), Fixed(128))
    (spread,) = row(tmp_path, {"random-range-ratio": 0.1})
    assert spread.lengths == (Uniform(921, 1127), Uniform(115, 141))


@pytest.mark.parametrize(
    ("client", "obstacle"),
    [
        ({"dataset_name": "sonnet"}, "dataset-name 'sonnet'"),
        ({"dataset_name": "sharegpt", "dataset_path": "./none.json"}, "none.json' is not there"),
        ({"backend": "openai-audio"}, "backend 'openai-audio'"),
        ({"temperature": 0.7}, "temperature 0.7: workloads here have 0"),
        ({"lora-modules": "a b"}, "parameter 'lora-modules'"),
        ({"random-range-ratio": 1.5}, "random-range-ratio 1.5: it must be below 1"),
    ],
)
def test_what_has_no_equal_is_named(tmp_path: Path, client: dict[str, Any], obstacle: str) -> None:
    (test,) = row(tmp_path, client)
    assert obstacle in "; ".join(test.obstacles)


def test_the_server_of_a_row_is_a_command(tmp_path: Path) -> None:
    parameters = {"model": "m", "port": 1, "tensor_parallel_size": 4, "async_scheduling": ""}
    (test,) = row(tmp_path, server_parameters=parameters, server_environment_variables={"A_B": 1})
    command = ("vllm", "serve", "m", "--tensor-parallel-size", "4", "--async-scheduling", "--port", "{port}")
    assert test.server == Server(command, (("A_B", "1"),))


def test_embeddings_and_a_file_of_sharegpt_beside_the_list(tmp_path: Path) -> None:
    (tmp_path / "share.json").write_text("[]")
    client = {"backend": "openai-embeddings", "dataset_name": "sharegpt", "dataset_path": "./share.json"}
    (test,) = row(tmp_path, client)
    assert (test.api, test.dataset, test.obstacles) == (
        "openai-embeddings", tmp_path / "share.json", ()
    )  # fmt: skip


def test_latency_and_throughput_lists_of_the_engine_alone(tmp_path: Path) -> None:
    engine = {"model": "m", "tensor_parallel_size": 2, "load_format": "dummy"}
    latency, throughput = read(
        tmp_path,
        "latency-tests.json",
        [
            {"test_name": "latency_m", "parameters": {**engine, "num_iters_warmup": 5, "num-iters": 15}},
            {"test_name": "throughput_m",
             "parameters": {**engine, "backend": "vllm", "dataset_name": "random", "num_prompts": 50}},
        ],
    )  # fmt: skip
    assert (latency.load, latency.requests) == (ForeignLoad(math.inf, concurrency=8), 8 * 15)
    assert latency.lengths == (Fixed(32), Fixed(128))
    assert (throughput.load, throughput.requests) == (AT_ONCE, 50)
    assert latency.server == throughput.server
    assert latency.server is not None
    assert latency.server.command[2:7] == ("m", "--tensor-parallel-size", "2", "--load-format", "dummy")


def test_perf_eval(tmp_path: Path) -> None:
    one, many = read(tmp_path, "perf-eval.yaml")
    assert [(each.load.concurrency, each.requests, each.runs) for each in (one, many)] == [
        (1, 10, 3),
        (128, 256, 3),
    ]
    assert (one.api, one.model, one.lengths) == ("openai-chat", "org/small", (Fixed(8192), Fixed(1024)))
    assert one.server is not None
    assert one.server.command[:7] == (
        "vllm", "serve", "org/small", "--tensor-parallel-size", "4", "--chat-template", "a b.jinja"
    )  # fmt: skip
    assert one.server.command[-4:] == ("--flag-29", "on", "--port", "{port}")


def test_tensorrt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLM_MODELS_ROOT", "/models")
    (test,) = read(tmp_path, "perf-sanity.yml")
    assert (test.name, test.load.concurrency, test.requests) == ("tp2-con4", 4, 40)
    assert test.server is not None
    assert test.server.command[:2] == ("trtllm-serve", "/models/small")
    assert test.server.env == (("FIRST", "1"), ("SECOND", "two"))
    assert test.server.settings == '{"tensor_parallel_size": 2, "kv_cache_config": {"dtype": "fp8"}}'
    assert test.told == ("its prompts are replaced by random ones of isl and osl",)


def test_guidellm(tmp_path: Path) -> None:
    found = read(tmp_path, "scenario.json")
    assert [(each.load.concurrency, each.requests, each.obstacles) for each in found] == [
        (10, 300, ()),
        (20, 600, ()),
    ]
    assert found[0].lengths == (Normal(50.0, 9.0, 10, 90), Fixed(30))
    assert (found[0].prefix, found[0].api) == ((100, 2), "openai-completions")
    flat = read(tmp_path, "flat.json")
    assert [(each.load, each.requests) for each in flat] == [
        (ForeignLoad(5.0, "poisson"), 300),
        (ForeignLoad(10.0, "poisson"), 600),
    ]
    (sweep,) = read(tmp_path, "sweep.json", {"spec": {"profile": {"kind": "sweep"}, "data": []}})
    assert "parameter 'profile sweep'" in sweep.obstacles


def test_inference_perf(tmp_path: Path) -> None:
    found = read(tmp_path, "config.yaml")
    assert [(each.load, each.requests) for each in found] == [
        (ForeignLoad(1.0, "uniform"), 30),
        (ForeignLoad(2.0, "uniform"), 60),
    ]
    first = found[0]
    assert (first.lengths, first.prefix, first.ignore_eos) == ((Fixed(50), Fixed(20)), (100, 10), True)


def test_the_commands_of_a_script(tmp_path: Path) -> None:
    few, many, sglang, guidellm, unknown = read(tmp_path, "bench.sh")
    assert [(each.load.concurrency, each.requests, each.model) for each in (few, many)] == [
        (8, 100, "org/small"),
        (16, 100, "org/small"),
    ]
    assert few.lengths == (Fixed(128), Normal(64.0, 8.0, 1, 112))
    assert (sglang.load, sglang.requests) == (ForeignLoad(4.0, "poisson"), 300)
    assert (sglang.lengths, sglang.api) == ((Uniform(512, 1024), Uniform(128, 256)), "openai-chat")
    assert (guidellm.load, guidellm.requests) == (ForeignLoad(5.0, "uniform"), 100)
    assert not [what for each in (few, many, sglang, guidellm) for what in each.obstacles]
    assert unknown.obstacles == ("parameter 'quantum-flag'", "parameter 'the unset variable $UNSET'")
    command = ("vllm", "serve", "org/small", "--tensor-parallel-size", "2", "--port", "{port}")
    assert {each.server for each in (few, sglang, guidellm, unknown)} == {Server(command)}


def test_a_test_file_of_sglang(tmp_path: Path) -> None:
    offline, at_two, computed, online = read(tmp_path, "test_serving.py")
    assert {(each.name, each.load.rate, each.obstacles) for each in (at_two, computed)} == {
        ("two_1", 2.0, ()),
        ("two_2", math.inf, ("parameter 'request-rate (computed)'",)),
    }
    assert (offline.name, offline.load, offline.requests) == ("offline", AT_ONCE, 50)
    assert offline.lengths == (Uniform(1, 4096), Uniform(1, 2048))
    assert offline.ignore_eos
    assert offline.server == Server(
        (sys.executable, "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B-Instruct",
         "--attention-backend", "triton", "--port", "{port}")
    )  # fmt: skip
    assert (online.load, online.obstacles) == (ForeignLoad(1.0, "poisson"), ("parameter 'lora-name'",))


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("x.json", {"tests": 5}, "expected a list of the tests, got 5"),
        ("x.json", [], "it has no tests"),
        ("x.json", [3], "is 3: not an object"),
        ("x.json", [{"a": 1}], "entry 1 has neither test_name nor client_parameters"),
        ("x.json", [{"test_name": "x", "client_parameters": [1]}], "not an object"),
        ("x.json", [{"test_name": "x", "qps_list": "4"}], "x.qps-list is '4': not a number"),
        ("x.json", [{"test_name": "x", "qps_list": [-1]}], "not a finite number of at least zero"),
        ("x.json", [{"test_name": "x", "qps_list": [0]}], "not a list of numbers above zero"),
        ("x.json", [{"test_name": "x", "max_concurrency_list": [1.5]}], "1.5: not a whole number"),
        ("x.json", [{"test_name": "x", "qps_list": [*range(1, 1100)]}], "it has 1099 tests, most are 1000"),
        ("x.json", {"schemaVersion": "9", "benchmark": {}}, "its fields: 'schemaVersion', 'benchmark'"),
        ("x.yaml", "a: [", "while parsing a flow node"),
        ("x.yaml", "- " * 90 + "x", "more than 64 deep"),
        ("x.yaml", "vllm: {serve_args: 3}\nvllm_bench: {configs: []}", "vllm.serve_args is 3: not text"),
        ("x.json", {"spec": {}, "benchmarks": [{"profile.streams": 1}]}, "which spec does not have"),
        ("x.py", "def (", "invalid syntax"),
        ("x.sh", "echo hello", "it has no tests"),
        ("x.sh", "aiperf profile --model 'm", "No closing quotation"),
    ],
)  # fmt: skip
def test_what_is_of_no_known_form_is_refused(tmp_path: Path, name: str, content: Any, told: str) -> None:
    with pytest.raises(SuiteError) as refused:
        read(tmp_path, name, content)
    assert told in str(refused.value)


def test_the_mistakes_of_all_entries_are_told_at_once(tmp_path: Path) -> None:
    entries = [
        {"test_name": "a", "client_parameters": {"num_prompts": "many"}}, "nonsense",
        {"test_name": "b", "qps_list": ["x"]}, {"test_name": "c", "client_parameters": {"num_prompts": 4}},
    ]  # fmt: skip
    with pytest.raises(SuiteError) as refused:
        read(tmp_path, "x.json", entries)
    said = str(refused.value)
    assert "3 mistakes" in said
    for told in (
        "- a.num-prompts is 'many'",
        "- entry 2 of the tests is 'nonsense'",
        "- b.qps-list.entry is 'x'",
    ):
        assert told in said
    assert said.count("→") == 1
