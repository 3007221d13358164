"""What each tool calls the fields of a load: a table a tool, in the order in which a name wins.

vLLM: ``vllm bench serve``, ``latency`` and ``throughput``. SGLang: ``sglang.bench_serving``, and
``run_bench_serving`` of its tests. AIPerf, and GenAI-Perf before it: ``profile``. TensorRT-LLM:
``client_configs`` of its perf-sanity files. GuideLLM and inference-perf: their files, made flat.
"""

from __future__ import annotations

from typing import Final

from pytest_llmbench.extras.foreign.recipes import Words


def _ignored(text: str) -> dict[str, str]:
    return dict.fromkeys(text.split(), "")


_STREAMED: Final = "replies are not streamed there, here they are"
_SERVER: Final = "host port base-url url server-url u tokenizer tokenizer-mode trust-remote-code header"
_OUTPUT: Final = (
    "disable-tqdm save-result save-detailed append-result result-dir result-filename label metadata "
    "percentile-metrics metric-percentiles goodput output-file output-json output-details profile seed "
    "num-warmups ready-check-timeout-sec tag"
)
_COMPLETIONS, _CHAT, _EMBEDDINGS = "openai-completions", "openai-chat", "openai-embeddings"

VLLM: Final = Words(
    names={
        "qps-list": "rate", "request-rate": "rate", "max-concurrency-list": "concurrency",
        "max-concurrency": "concurrency", "burstiness": "burstiness", "num-prompts": "requests",
        "model": "model", "backend": "api", "endpoint-type": "api", "dataset-name": "dataset",
        "dataset-path": "path", "random-input-len": "input", "input-len": "input",
        "prefix-repetition-suffix-len": "input",
        "random-output-len": "output", "output-len": "output", "prefix-repetition-output-len": "output",
        "random-range-ratio": "spread", "random-prefix-len": "prefix",
        "prefix-repetition-prefix-len": "prefix", "prefix-repetition-num-prefixes": "prefixes",
        "temperature": "temperature", "ignore-eos": "ignore_eos",
        **_ignored(f"{_SERVER} {_OUTPUT} served-model-name endpoint dataset"),
    },
    apis={
        "": _COMPLETIONS, "vllm": _COMPLETIONS, "openai": _COMPLETIONS, "openai-chat": _CHAT,
        "openai-embeddings": _EMBEDDINGS, "vllm-rerank": "rerank",
    },
    datasets={"": "random", "random": "random", "prefix_repetition": "random", "sharegpt": "sharegpt"},
    defaults={"requests": 1000, "input": 1024, "output": 128},
    forced_lengths=True,
)  # fmt: skip
VLLM_BATCH: Final = Words(
    names={
        "model": "model", "batch-size": "concurrency", "num-iters": "waves", "input-len": "input",
        "output-len": "output", **_ignored("num-iters-warmup output-json profile disable-detokenize"),
    },
    apis={"": _COMPLETIONS},
    datasets={"": "random"},
    defaults={"concurrency": 8, "waves": 30, "input": 32, "output": 128},
    forced_lengths=True,
    told={"model": "one batch after the other runs there, here as many requests stay in flight"},
)  # fmt: skip
PERF_EVAL: Final = Words(
    names={
        **VLLM.names,
        "dataset": "dataset",
        "repetitions": "runs",
        **_ignored("name speed-bench-dataset-subset speed-bench-category"),
    },
    apis=VLLM.apis,
    datasets=VLLM.datasets,
    forced_lengths=True,
)
SGLANG: Final = Words(
    names={
        "request-rate": "rate", "max-concurrency": "concurrency", "num-prompts": "requests",
        "num-prompt": "requests", "model": "model", "backend": "api", "dataset-name": "dataset",
        "dataset-path": "path",
        "random-input-len": "input", "random-input": "input", "gsp-question-len": "input",
        "random-output-len": "output", "random-output": "output", "gsp-output-len": "output",
        "random-range-ratio": "spread", "gsp-system-prompt-len": "prefix", "gsp-num-groups": "prefixes",
        "disable-ignore-eos": "keep_eos", "disable-stream": "",
        **_ignored(f"{_SERVER} {_OUTPUT} device need-warmup warmup-requests flush-cache "
                   "gsp-prompts-per-group other-server-args"),
    },
    apis={
        "": _COMPLETIONS, "sglang": _COMPLETIONS, "sglang-native": _COMPLETIONS, "sglang-oai": _COMPLETIONS,
        "vllm": _COMPLETIONS, "sglang-oai-chat": _CHAT, "vllm-chat": _CHAT, "sglang-embedding": _EMBEDDINGS,
    },
    datasets={
        "": "sharegpt", "sharegpt": "sharegpt", "random": "random", "random-ids": "random",
        "generated-shared-prefix": "random",
    },
    defaults={"requests": 1000, "input": 1024, "output": 1024, "spread": 0.0},
    spread="below",
    told={"disable-stream": _STREAMED},
)  # fmt: skip
AIPERF: Final = Words(
    names={
        "request-rate": "rate", "request-rate-mode": "arrival", "arrival-pattern": "arrival",
        "concurrency": "concurrency", "request-count": "requests", "num-requests": "requests",
        "benchmark-duration": "seconds", "model": "model", "m": "model", "model-names": "model",
        "endpoint-type": "api",
        "synthetic-input-tokens-mean": "input", "isl": "input", "prompt-input-tokens-mean": "input",
        "synthetic-input-tokens-stddev": "input_sd", "isl-stddev": "input_sd",
        "output-tokens-mean": "output", "osl": "output", "output-tokens-stddev": "output_sd",
        "osl-stddev": "output_sd", "prefix-prompt-length": "prefix", "num-prefix-prompts": "prefixes",
        "num-profile-runs": "runs",
        **_ignored(f"{_SERVER} random-seed streaming warmup-request-count profile-export-file artifact-dir "
                   "measurement-interval generate-plots ui ui-type service-kind num-dataset-entries "
                   "tokenizer-trust-remote-code v verbose"),
    },
    apis={"": _CHAT, "chat": _CHAT, "completions": _COMPLETIONS, "embeddings": _EMBEDDINGS},
    datasets={"": "random"},
    defaults={"input": 550, "output": 128},
)  # fmt: skip
TENSORRT: Final = Words(
    names={
        "concurrency": "concurrency", "iterations": "waves", "isl": "input", "osl": "output",
        "random-range-ratio": "spread", "backend": "api", "dataset-file": "",
        **_ignored("name streaming use-chat-template trust-remote-code use-nv-sa-benchmark"),
    },
    apis={"": _COMPLETIONS, "openai": _COMPLETIONS, "openai-chat": _CHAT},
    datasets={"": "random"},
    forced_lengths=True,
    told={"dataset-file": "its prompts are replaced by random ones of isl and osl"},
)  # fmt: skip
GUIDELLM: Final = Words(
    names={
        "rate": "rate", "arrival": "arrival", "streams": "concurrency", "max-requests": "requests",
        "min-requests": "requests", "max-seconds": "seconds", "max-duration": "seconds", "model": "model",
        "request-type": "api", "request-format": "api",
        "prompt-tokens": "input", "prompt-tokens-stdev": "input_sd", "prompt-tokens-min": "input_min",
        "prompt-tokens-max": "input_max", "output-tokens": "output", "output-tokens-stdev": "output_sd",
        "output-tokens-min": "output_min", "output-tokens-max": "output_max",
        "prefix-tokens": "prefix", "prefix-count": "prefixes",
        **_ignored("target backend backend-type seed random-seed warmup cooldown rampup outputs output-path "
                   "processor processor-args stream data-kind source samples rampup-duration"),
    },
    apis={
        "": _CHAT, "chat_completions": _CHAT, "/v1/chat/completions": _CHAT,
        "text_completions": _COMPLETIONS, "/v1/completions": _COMPLETIONS,
    },
    datasets={"": "random"},
)  # fmt: skip
INFERENCE_PERF: Final = Words(
    names={
        "rate": "rate", "type": "arrival", "duration": "seconds", "concurrency-level": "concurrency",
        "num-requests": "requests", "model-name": "model", "api": "api", "data": "dataset",
        "dataset-path": "path", "ignore-eos": "ignore_eos",
        **{f"{side}-{ours or 'mean'}": f"{side}{ours and '_' + ours}"
           for side in ("input", "output") for ours in ("", "min", "max", "sd")},
        "system-prompt-len": "prefix", "num-unique-system-prompts": "prefixes", "num-groups": "prefixes",
        **_ignored("num-users-per-system-prompt num-prompts-per-group"),
    },
    apis={"": _COMPLETIONS, "completion": _COMPLETIONS, "chat": _CHAT, "embeddings": _EMBEDDINGS},
    datasets={"random": "random", "synthetic": "random", "shared_prefix": "random", "shareGPT": "sharegpt"},
)  # fmt: skip
