"""vLLM's own counters and histograms beside our figures of the same requests."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import plain_http
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tiny_gguf import VOCABULARY
from vllm_server import MAX_NUM_SEQS, program, serving

from pytest_llmbench import SUT, Fixed, SyntheticWorkload, Uniform
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.metrics.latency import tpot_ms, ttft_ms
from pytest_llmbench.metrics.server_side import contradicted_by_ns, outside_ms, prefill_ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, SessionSlots
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.adapted import SharedPrefix, WithoutOutput
from pytest_llmbench.workloads.sessions import SessionWorkload

pytestmark = [pytest.mark.slow, pytest.mark.timing]
HERE = Path(__file__).parent
SHORT = SyntheticWorkload("short", Uniform(16, 64), Uniform(16, 32))
ENGINE_ALONE = """
[sut]
boundary = "model_engine"
components = ["vLLM"]
prefix_caching = "disabled"
[sut.model]
name = "tiny"
version = "random weights"
quantization = "none"
[sut.hardware]
disclosed = true
accelerator_type = "cpu"
accelerator_count = 0
accelerator_memory_gib = 0
[sut.software]
engine = "vLLM"
version = "0.32.0"
[guardrails]
input_filter = "absent"
output_filter = "absent"
systems = []
[tokenizer]
file = "{model}"
[tokenizer.special]
bos_eos = "excluded"
system_prompt = "none"
tool_format = "not_used"
chat_template = "not_used"
[warmup]
model_loaded = true
"""
"""All that the draft asks to be disclosed of an engine by itself."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program()
    folder = tmp_path_factory.mktemp("model")
    subprocess.run([sys.executable, HERE / "tiny_safetensors.py", folder], check=True, timeout=120)
    return folder


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[str]:
    """A server without prefix cache, which tells of cached tokens."""
    with serving(model, "--no-enable-prefix-caching", "--enable-prompt-tokens-details") as url:
        yield url


def measured(
    url: str,
    workload: Workload,
    load: Load,
    requests: int,
    *,
    sut: Path | None = None,
    api: str = "auto",
) -> Observation:
    """One load, sent by hand, after one that nothing is asked of."""
    session = BenchSession(Settings(endpoint=url, model="tiny", sut=sut, remeasure=6))
    try:
        served = SUT(url, model="tiny", api=api)
        session.execute(LoadPlan("before", workload, ClosedLoop(2), 8, seed=1), served)
        plan = LoadPlan("load", workload, load, requests, seed=42, ignore_eos=api == "auto")
        return session.execute(plan, served)
    finally:
        session.close()


def counters(url: str) -> dict[str, float]:
    """Its metrics page, label sets summed."""
    page = plain_http.get(f"{url.removesuffix('/v1')}/metrics", timeout=30.0).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            name = sample.name.removeprefix("vllm:")
            found[name] = found.get(name, 0.0) + sample.value
    return found


def grown(url: str, before: Mapping[str, float]) -> dict[str, float]:
    return {name: value - before.get(name, 0.0) for name, value in counters(url).items()}


def mean_ms(counted: Mapping[str, float], histogram: str) -> float:
    return 1e3 * counted[f"{histogram}_sum"] / counted[f"{histogram}_count"]


def test_times_and_counts_are_those_of_its_histograms(plain):
    before = counters(plain)
    seen = measured(plain, SHORT, ClosedLoop(2), 60)
    records, own = seen.records, grown(plain, before)
    assert records.ok.all()
    assert seen.selfcheck.transport == "http/1.1"
    readings = seen.engine
    assert readings is not None
    assert readings.grown("requests_finished") == 60
    assert readings.grown("generated_tokens") == records.output_tokens.sum()
    assert readings.grown("prompt_tokens") == records.input_tokens.sum()
    # Its histograms are of both loads, alike in law, and of the small request of the preflight.
    assert own["time_to_first_token_seconds_count"] == 69
    # Its TTFT ends in the server: ours has the way through the server's HTTP process and the wire on top.
    beyond = float(ttft_ms(records).mean()) - mean_ms(own, "time_to_first_token_seconds")
    assert -1.0 < beyond < max(25.0, mean_ms(own, "time_to_first_token_seconds")), beyond
    ratio = float(tpot_ms(records).mean()) / mean_ms(own, "request_time_per_output_token_seconds")
    assert 0.85 < ratio < 1.15, ratio


def test_what_it_tells_of_each_request_s_times(model):
    with serving(model, "--enable-per-request-metrics") as url:
        before = counters(url)
        records = measured(url, SHORT, ClosedLoop(2), 40).records
        own = grown(url, before)
    assert records.ok.all()
    assert (records.queue_wait_ns >= 0).all()
    assert (records.prefill_ns > 0).all()
    assert (contradicted_by_ns(records) < 0).all(), "its parts are within what passed here"
    assert len(outside_ms(records)) == 40
    ratio = float(prefill_ms(records).mean()) / mean_ms(own, "request_prefill_time_seconds")
    assert 0.7 < ratio < 1.4, ratio


def test_log_probabilities_of_prompts(plain):
    before = counters(plain)
    seen = measured(plain, WithoutOutput(SHORT), ClosedLoop(2), 24, api="logprobs")
    own = grown(plain, before)
    assert seen.records.ok.all(), list(seen.records.error)
    assert (seen.records.output_tokens == MISSING).all()
    assert seen.engine is not None
    assert seen.engine.grown("prompt_tokens") == seen.records.input_tokens.sum()
    assert own["request_success_total"] >= 32


def test_vectors_of_a_pooling_model(model):
    with serving(model, "--runner", "pooling", "--convert", "embed") as url:
        seen = measured(url, WithoutOutput(SHORT), ClosedLoop(2), 24, api="openai-embeddings")
    assert seen.records.ok.all(), list(seen.records.error)
    assert seen.engine is not None
    assert seen.engine.grown("prompt_tokens") == seen.records.input_tokens.sum()


@pytest.mark.parametrize("told", ["usage", "ids"])
def test_tokens_of_each_chunk_where_a_chunk_has_several(model, tmp_path, told):
    sut = tmp_path / "sut.toml"
    sut.write_text(f'[request]\nchunk_tokens = "{told}"\n', "utf-8")
    with serving(model, "--stream-interval", "4") as url:
        records = measured(url, SHORT, ClosedLoop(2), 20, sut=sut).records
    assert records.ok.all()
    told_in_chunks = np.add.reduceat(records.chunk_tokens, records.chunk_offsets[:-1])
    assert told_in_chunks.tolist() == records.output_tokens.tolist()
    assert records.chunk_tokens.max() == 4


def test_what_its_prefix_cache_hit(model, plain):
    shared = SharedPrefix("shared", SHORT, Fixed(96), fraction=1.0)
    without = measured(plain, shared, ClosedLoop(2), 24)
    assert without.engine is not None
    assert without.engine.grown("prefix_queries_tokens") == 0
    assert without.records.cached_tokens.max() <= 0
    with serving(model, "--enable-prefix-caching", "--enable-prompt-tokens-details") as url:
        seen = measured(url, shared, ClosedLoop(2), 24)
    assert seen.engine is not None
    cached = np.where(seen.records.cached_tokens == MISSING, 0, seen.records.cached_tokens)
    assert seen.engine.grown("prefix_hits_tokens") == cached.sum() > 0
    assert seen.engine.grown("prefix_queries_tokens") == seen.records.input_tokens.sum()
    assert set(cached % 32) == {0}


def test_preemptions_are_on_its_page(model):
    """768 tokens of KV cache, and eight streams that want 300 each."""
    grows = SyntheticWorkload("grows", Fixed(40), Fixed(256))
    with serving(model, "--num-gpu-blocks-override", "24", "--max-model-len", "512") as url:
        seen = measured(url, grows, ClosedLoop(MAX_NUM_SEQS), 16)
    assert seen.records.ok.all()
    assert seen.engine is not None
    assert (seen.engine.grown("preemptions") or 0) > 0


def test_refused_admission_is_rate_limited_and_no_error_of_the_server(model):
    long = SyntheticWorkload("long", Fixed(16), Fixed(64))
    with serving(model, "--max-num-queued-reqs", "4") as url:
        before = counters(url)
        records = measured(url, long, ClosedLoop(4 * MAX_NUM_SEQS), 120).records
        refused = grown(url, before)["admission_rejections_total"]
    limited = records.has_outcome(Outcome.RATE_LIMITED)
    assert limited.sum() == refused
    assert records.ok.sum() == len(records) - refused > 0
    # Some are turned away within a stream of status 200.
    assert set(records.http_status[limited]) <= {200, 503}


def test_cached_tokens_by_turn_are_those_of_its_counters(model):
    """The context of a turn was computed by the turn before, up to its last whole block of 32."""
    talk = SessionWorkload("talk", turns=Fixed(4), input_tokens=Fixed(48), output_tokens=Fixed(32))
    with serving(model, "--enable-prefix-caching", "--enable-prompt-tokens-details") as url:
        seen = measured(url, talk, SessionSlots(2), 40)
    records = seen.records
    assert records.ok.all()
    assert seen.engine is not None
    cached = np.where(records.cached_tokens == MISSING, 0, records.cached_tokens)
    assert seen.engine.grown("prefix_hits_tokens") == cached.sum()
    shares = [
        cached[records.turn == turn].sum() / records.input_tokens[records.turn == turn].sum()
        for turn in (1, 2, 3, 4)
    ]
    assert shares[0] < 0.35
    assert shares == sorted(shares)
    assert shares[3] > 0.5


@pytest.mark.parametrize("prompt", ["text", "token_ids"])
def test_its_token_stream_over_grpc(model, tmp_path, prompt):
    """The engine by itself, without its HTTP server; vLLM has it with the package smg-grpc-servicer[vllm]."""
    sut = tmp_path / "sut.toml"
    sut.write_text(f'[request]\nprompt = "{prompt}"\n', "utf-8")
    workload = replace(SHORT, highest_token_id=VOCABULARY - 1)
    with serving(model, "--grpc", url="grpc://127.0.0.1:{port}") as url:
        seen = measured(url, workload, ClosedLoop(4), 40, sut=sut)
    records = seen.records
    assert records.ok.all()
    assert seen.selfcheck.transport == "grpc"
    assert seen.facts.value("streaming.protocol") == "grpc"
    assert records.output_tokens.tolist() == records.requested_max_tokens.tolist()
    told_in_chunks = np.add.reduceat(records.chunk_tokens, records.chunk_offsets[:-1])
    assert told_in_chunks.tolist() == records.output_tokens.tolist()
    if prompt == "token_ids":
        assert records.input_tokens.tolist() == records.requested_input_tokens.tolist()


def test_the_engine_alone_over_grpc_lacks_nothing_but_requests(model, tmp_path):
    """The boundary of the engine, where gRPC is advised: what stands between the run and *unconditional* is
    the number of its requests. (With ten thousand of them it is: docs/how-to/measure-over-grpc.md.)"""
    (tmp_path / "sut.toml").write_text(ENGINE_ALONE.format(model=model), "utf-8")
    (tmp_path / "test_engine.py").write_text(
        "from pytest_llmbench import llmbench\n\n"
        "@llmbench.ttft(p50_ms=60_000, rate=0.5, requests=60, workload='synthetic-uniform')\n"
        "def test_first_token(): ...\n",
        "utf-8",
    )
    grpc = ("--grpc", "--no-enable-prefix-caching", "--max-model-len", "4096")
    with serving(model, *grpc, url="grpc://127.0.0.1:{port}") as url:
        command = [sys.executable, "-m", "pytest", "-q", "test_engine.py", f"--llm-endpoint={url}"]
        command += ["--llm-model=tiny", "--llm-sut=sut.toml", "--llm-report=out"]
        subprocess.run(command, cwd=tmp_path, timeout=900, check=False)
    (told,) = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["tests"]
    assert told["validity"]["verdict"] == "valid"
    judged = told["compliance"]["requirements"]
    lacking = [each["id"] for each in judged if each["status"] == "unmet" and each["effect"] != "none"]
    assert lacking == ["M-5.1.2.1-request-count-p99", "M-5.1.4.1-percentiles", "P-5.1.4.3-sample-floor"]
