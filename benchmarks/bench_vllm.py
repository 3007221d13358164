"""vLLM's own ``vllm bench serve`` and this plugin on one vLLM, in turns: which figures agree, which do not.

    python benchmarks/bench_vllm.py --vllm .venv-vllm/bin/vllm [--rounds 3] [--requests 60]

Starts vLLM with random weights, on the CPU if that is what the program is built for: once as it is, and once
with ``--stream-interval 4``. Both send prompts of 64 random tokens, two at a time, for replies of 64 tokens.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pytest_llmbench import Fixed, SyntheticWorkload, launched_server
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.metrics.itl import choose_option, itl_distribution, itl_samples
from pytest_llmbench.metrics.latency import tpot_ms, ttft_ms
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan

TOKENS, CONCURRENCY, VOCABULARY = 64, 2, 2048
MODEL = Path(__file__).parents[1] / "tests/integration/tiny_safetensors.py"
CPU = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
ROWS = ("input tokens", "TTFT mean", "TTFT P50", "TTFT P99", "TPOT mean", "gap mean", "gap P99")


@contextmanager
def serving(vllm: str, model: Path, *options: str) -> Iterator[str]:
    """Without prefix cache: ``vllm bench serve`` sends the same prompts in every round."""
    command = [vllm, "serve", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1"]
    command += ["--port", "{port}", "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--no-enable-prefix-caching", *options]
    with launched_server(command, env=CPU | QUIET, timeout_s=600.0) as server:
        yield server.url


def ours(url: str, requests: int, seed: int) -> tuple[Mapping[str, float], str]:
    """Figures in ms, and the name that the gaps have."""
    sut = Path(tempfile.mkdtemp()) / "sut.toml"
    sut.write_text('[request]\nprompt = "token_ids"\nchunk_tokens = "usage"\n', "utf-8")
    workload = SyntheticWorkload("equal", Fixed(TOKENS), Fixed(TOKENS), highest_token_id=VOCABULARY - 1)
    session = BenchSession(Settings(endpoint=url, model="tiny", api="openai-completions", sut=sut))
    try:
        plan = LoadPlan("load", workload, ClosedLoop(CONCURRENCY), requests, seed=seed, ignore_eos=True)
        records = session.execute(plan, url).records
    finally:
        session.close()
    option = choose_option(records)
    gaps = itl_distribution(itl_samples(records, option))
    ttft = ttft_ms(records)
    found = (
        float(records.input_tokens.mean()),
        float(ttft.mean()),
        statistics.median(ttft),
        statistics.quantiles(ttft, n=100)[98],
        float(tpot_ms(records).mean()),
        gaps["itl.mean"].point or 0.0,
        gaps["itl.p99"].point or 0.0,
    )
    return dict(zip(ROWS, found, strict=True)), "TBC" if option == "A" else "ITL"


def theirs(vllm: str, url: str, model: Path, requests: int) -> Mapping[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [vllm, "bench", "serve", "--backend", "openai", "--base-url", url.removesuffix("/v1")]
        command += [
            "--endpoint",
            "/v1/completions",
            "--model",
            "tiny",
            "--tokenizer",
            str(model),
            "--ignore-eos",
        ]
        command += ["--dataset-name", "random", "--random-input-len", str(TOKENS)]
        command += ["--random-output-len", str(TOKENS), "--random-range-ratio", "0"]
        command += ["--num-prompts", str(requests), "--max-concurrency", str(CONCURRENCY), "--disable-tqdm"]
        command += ["--percentile-metrics", "ttft,tpot,itl", "--save-result", "--result-dir", folder]
        subprocess.run(
            [*command, "--result-filename", "out.json"],
            env=os.environ | CPU | QUIET, check=True, capture_output=True, text=True,
        )  # fmt: skip
        told = json.loads((Path(folder) / "out.json").read_text("utf-8"))
    found = (
        told["total_input_tokens"] / told["completed"],
        *(told[name] for name in ("mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms")),
        *(told[name] for name in ("mean_itl_ms", "p99_itl_ms")),
    )
    return dict(zip(ROWS, found, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", default="vllm", help="the program (default: that of the PATH)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=60)
    options = parser.parse_args()
    model = Path(tempfile.mkdtemp()) / "model"
    subprocess.run([sys.executable, MODEL, model], check=True)
    for further in ((), ("--stream-interval", "4")):
        with serving(options.vllm, model, *further) as url:
            ours(url, 8, 0)  # the first requests meet a cold engine
            rounds = []
            for number in range(1, options.rounds + 1):
                measured, label = ours(url, options.requests, number)
                rounds.append((measured, theirs(options.vllm, url, model, options.requests)))
        print(f"\nvllm serve {' '.join(further)}   (ms; median of {len(rounds)} rounds, least to most)")
        print(f"{'':14}{'this':>24}{'vllm bench serve':>24}")
        for row in ROWS:
            name = row.replace("gap", label) if row.startswith("gap") else row
            print(f"{name:14}" + "".join(f"{spread([r[at][row] for r in rounds]):>24}" for at in (0, 1)))


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


if __name__ == "__main__":
    main()
