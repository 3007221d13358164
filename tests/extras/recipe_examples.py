"""Files in the forms that ``--llm-import`` reads, small and of our own making."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANDOM = {"dataset_name": "random", "random-input-len": 128, "random-output-len": 16}
SERVING: dict[str, Any] = {
    "defaults": {
        "qps_list": ["inf"],
        "max_concurrency_list": [2, 20],
        "server_environment_variables": {"LOADED_BY": "recipes"},
        "server_parameters": {"model": "sim-fast", "tensor_parallel_size": 1, "disable_log_stats": ""},
        "client_parameters": {"model": "sim-fast", "backend": "vllm", "temperature": 0, "num_prompts": 20},
    },
    "tests": [
        {"test_name": "serving_random", "client_parameters": RANDOM},
        {"test_name": "serving_tp2", "server_parameters": {"tensor_parallel_size": 2},
         "max_concurrency_list": [4], "client_parameters": RANDOM},
        {"test_name": "serving_prefix", "qps_list": [10], "client_parameters": {
            "dataset_name": "prefix_repetition", "prefix_repetition_prefix_len": 64,
            "prefix_repetition_suffix_len": 32, "prefix_repetition_num_prefixes": 4,
            "prefix_repetition_output_len": 8}},
        {"test_name": "serving_sonnet", "client_parameters": {"dataset_name": "sonnet"}},
    ],
}  # fmt: skip
"""Two rows of two loads with one server, a row with another, one that has no equal here."""
PERF_EVAL = """
name: small-h200
vllm:
  model: org/small
  env: {ENGINE_THREADS: 2}
  serve_args: >-
    --tensor-parallel-size 4
    --chat-template "a b.jinja" SERVE_ARGS_OF_MORE_THAN_200_CHARACTERS
vllm_bench:
  configs:
    - {name: 8k-1k, backend: openai-chat, dataset: random, input_len: 8192, output_len: 1024,
       num_prompts: [10, 256], max_concurrency: [1, 128], repetitions: 3, args: {num_warmups: 4}}
""".replace("SERVE_ARGS_OF_MORE_THAN_200_CHARACTERS", " ".join(f"--flag-{number} on" for number in range(30)))
TENSORRT = """
metadata: {model_name: small}
server_configs:
  - name: tp2
    model_name: small
    server_env_var: "FIRST=1 SECOND=two"
    tensor_parallel_size: 2
    kv_cache_config: {dtype: fp8}
    client_configs:
      - {name: con4, concurrency: 4, iterations: 10, isl: 1024, osl: 128, backend: openai,
         dataset_file: d.json}
"""
GUIDELLM = {
    "metadata": {"labels": {"name": "chat"}},
    "spec": {
        "backend": {"kind": "openai_http", "request_format": "/v1/completions"},
        "profile": {"kind": "concurrent", "streams": [10]},
        "data": [{"kind": "synthetic_text", "prompt_tokens": 50, "prompt_tokens_stdev": 9,
                  "prompt_tokens_min": 10, "prompt_tokens_max": 90, "output_tokens": 30,
                  "prefix_buckets": [{"prefix_tokens": 100, "prefix_count": 2}]}],
        "constraints": [{"kind": "max_requests", "count": 300}],
    },
    "benchmarks": [{"profile.streams": [10]}, {"profile.streams": [20], "constraints[0].count": 600}],
}  # fmt: skip
GUIDELLM_FLAT = {
    "rate_type": "poisson", "rate": [5, 10], "max_seconds": 60, "data": "prompt_tokens=256,output_tokens=128"
}  # fmt: skip
INFERENCE_PERF = """
load: {type: constant, stages: [{rate: 1, duration: 30}, {rate: 2, duration: 30}]}
api: {type: completion}
server: {type: vllm, model_name: org/small, ignore_eos: true}
data:
  type: shared_prefix
  shared_prefix: {num_unique_system_prompts: 10, num_users_per_system_prompt: 5, system_prompt_len: 100,
                  question_len: 50, output_len: 20}
"""
SCRIPT = r"""
# aiperf profile --concurrency 3: a comment
export MODEL=org/small
vllm serve $MODEL --tensor-parallel-size 2 --port 8000 &
aiperf profile -m ${MODEL} --endpoint-type chat --streaming \
    --synthetic-input-tokens-mean 128 --output-tokens-mean 64 --output-tokens-stddev 8 \
    --request-count 100 --concurrency 8,16 --url ${HOST:-localhost}:8000
python3 -m sglang.bench_serving --backend sglang-oai-chat --dataset-name random --random-input 1024 \
    --random-output 256 --random-range-ratio 0.5 --num-prompts 300 --request-rate 4 | tee log
guidellm benchmark run --target http://host --profile constant --rate 5 --max-seconds 20 \
    --data '{"prompt_tokens": 64, "output_tokens": 8}'
vllm bench serve --model $UNSET --quantum-flag 3 --num-prompts 10
"""
SGLANG = """
import unittest
from sglang.test.test_utils import DEFAULT_MODEL_NAME_FOR_TEST, run_bench_serving

class TestServing(unittest.TestCase):
    def test_offline(self):
        res = run_bench_serving(
            model=DEFAULT_MODEL_NAME_FOR_TEST, num_prompts=50, request_rate=float("inf"),
            other_server_args=["--attention-backend", "triton"],
        )
        self.assertGreater(res["output_throughput"], 3050)

    def test_two(self):
        def run(rate):
            return run_bench_serving(model="org/small", num_prompts=20, request_rate=rate)

        run(1)
        run_bench_serving(model="org/small", num_prompts=20, request_rate=2, other_server_args=[])

    def test_online(self):
        run_bench_serving(model="org/small", num_prompts=100, request_rate=1, other_server_args=[],
                          random_input_len=256, random_output_len=64, lora_name=["adapter"])
"""
FILES: dict[str, Any] = {
    "perf-eval.yaml": PERF_EVAL, "perf-sanity.yml": TENSORRT, "scenario.json": GUIDELLM,
    "flat.json": GUIDELLM_FLAT, "config.yaml": INFERENCE_PERF, "bench.sh": SCRIPT, "test_serving.py": SGLANG,
    "serving-tests.json": SERVING,
}  # fmt: skip


def written(folder: Path, name: str, content: Any = None) -> Path:
    content = FILES[name] if content is None else content
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return path
