"""vLLM's list of performance tests: what each entry sends, and what has no equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.extras.foreign.foreign_run import ForeignLoad
from pytest_llmbench.extras.foreign.vllm_serving_tests import ServingTest, read_serving_tests

CLIENT = {
    "model": "m",
    "backend": "openai-chat",
    "dataset_name": "random",
    "random_input_len": 1024,
    "random_output_len": 128,
    "num_prompts": 200,
}


def read(folder: Path, **changed: Any) -> tuple[ServingTest, ...]:
    client = {
        name: value for name, value in (CLIENT | changed.pop("client", {})).items() if value is not None
    }
    path = folder / "list.json"
    path.write_text(json.dumps([{"test_name": "serving_x", "client_parameters": client, **changed}]))
    return read_serving_tests(path)


def test_every_rate_with_every_number_in_flight(tmp_path: Path) -> None:
    found = read(tmp_path, qps_list=[4, "inf"], max_concurrency_list=[8, 200])
    assert [(test.name, test.load, bool(test.obstacles)) for test in found] == [
        ("serving_x_qps_4_concurrency_8", ForeignLoad(4.0, "poisson", None, 8), True),
        (
            "serving_x_qps_4_concurrency_200",
            ForeignLoad(4.0, "poisson"),
            False,
        ),  # as many as there are requests
        ("serving_x_qps_inf_concurrency_8", ForeignLoad(float("inf"), concurrency=8), False),
        ("serving_x_qps_inf_concurrency_200", ForeignLoad(float("inf")), True),
    ]


def test_lengths_with_and_without_a_spread(tmp_path: Path) -> None:
    (fixed,) = read(tmp_path, qps_list=[1])
    assert (fixed.input_tokens, fixed.output_tokens) == ((1024, 1024), (128, 128))
    (spread,) = read(tmp_path, qps_list=[1], client={"random-range-ratio": 0.1})
    assert (spread.input_tokens, spread.output_tokens) == ((921, 1127), (115, 141))


@pytest.mark.parametrize(
    ("client", "obstacle"),
    [
        ({"dataset_name": "sonnet"}, "dataset_name 'sonnet'"),
        ({"dataset_name": "sharegpt", "dataset_path": "./none.json"}, "none.json' is not there"),
        ({"random_input_len": None}, "random prompts without a length"),
        ({"backend": "openai-embeddings"}, "backend 'openai-embeddings'"),
        ({"temperature": 0.7}, "temperature 0.7: workloads here have 0"),
        ({"random-prefix-len": 50}, "client parameter 'random-prefix-len'"),
    ],
)
def test_what_has_no_equal_is_named(tmp_path: Path, client: dict[str, Any], obstacle: str) -> None:
    (test,) = read(tmp_path, qps_list=[1], client=client)
    assert obstacle in "; ".join(test.obstacles)


def test_what_is_not_taken_over_is_told(tmp_path: Path) -> None:
    parameters = {"tensor_parallel_size": 4, "api-key": "sk-4711", "max_num_batched_tokens": 8192}
    server = {"server_parameters": parameters, "server_environment_variables": {"HF_TOKEN": "hf_4711"}}
    (test,) = read(tmp_path, qps_list=[1], client={"backend": "vllm", "ignore-eos": ""}, **server)
    assert test.obstacles == ()
    assert [said.split(":")[0] for said in test.told] == [
        "sent to completions by vLLM",
        "vLLM lets replies go on to their limit",
    ]
    assert test.server == {
        "tensor_parallel_size": "4", "api-key": "…", "max_num_batched_tokens": "8192", "$HF_TOKEN": ""
    }  # fmt: skip


def test_a_file_of_sharegpt_beside_the_list(tmp_path: Path) -> None:
    (tmp_path / "share.json").write_text("[]")
    (test,) = read(
        tmp_path, qps_list=[1], client={"dataset_name": "sharegpt", "dataset_path": "./share.json"}
    )
    assert (test.dataset, test.obstacles) == (tmp_path / "share.json", ())
