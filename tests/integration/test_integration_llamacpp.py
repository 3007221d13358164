"""The TTFT suite on a real engine: llama.cpp's server with random weights."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import plain_http
import pytest
from measured_rows import counted_rows
from pytest_apart import Session

from pytest_llmbench import SyntheticWorkload, Uniform, launched_server
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.harness.workloads.exact_lengths import MOST_CALLS, ExactLengths, TokenCounter, bound
from pytest_llmbench.metrics.latency import request_latency_ms
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.reply_checks import StructuredOutput
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.probes.access import Access
from pytest_llmbench.probes.endpoint import examine
from pytest_llmbench.probes.token_count import ServerTokenCount
from pytest_llmbench.registry import names
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.adapted import WithoutOutput

SUITE = """
import pytest
from pytest_llmbench import SyntheticWorkload, Uniform, WarmupPolicy, llmbench

SHORT = SyntheticWorkload("short-random", Uniform(8, 32), Uniform(8, 24))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=4, output_tokens=16, concurrency=2, probes=4)

@llmbench.ttft(p50_ms=5000, concurrency=2, requests=24, workload=SHORT)
def test_closed_loop(llm_result):
    assert llm_result.completion_rate.point == 1.0

@llmbench.ttft(p50_ms=5000, rate=8, requests=16, workload=SHORT)
def test_open_loop(llm_result):
    assert llm_result.completion_rate.point == 1.0
"""

EXACT_SUITE = """
import pytest
from pytest_llmbench import WarmupPolicy, llmbench

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=2, output_tokens=16, concurrency=2, probes=3)

@llmbench.ttft(p50_ms=5000, concurrency=2, requests=24, workload="exact")
def test_exact_lengths(): ...
"""
WORKLOADS = """
[workloads.exact]
input_tokens = { kind = "uniform", min = 70, max = 200 }
output_tokens = 4
exact = true
"""


def run_suite(folder: Path, suite: str, endpoint: str, *options: str) -> str:
    """What the suite printed; its report lies in ``out``."""
    (folder / "test_suite.py").write_text(suite, "utf-8")
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n", "utf-8")
    # An engine of its own threads beside it: of the sends none may be late.
    options = (f"--llm-endpoint={endpoint}", "--llm-inconclusive=pass", "--llm-remeasure=6", *options)
    return Session(folder, "-v", "--llm-report=out", *options).text(600)


@pytest.fixture(scope="module")
def measured(slower_llama_cpp: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a session that both tests read."""
    folder = tmp_path_factory.mktemp("llama_ttft")
    printed = run_suite(folder, SUITE, slower_llama_cpp)
    assert "2 passed" in printed, printed
    return folder / "out"


def test_the_slower_model_is_served(slower_llama_cpp):
    """And so it is there before the tests of timing, which have the machine for themselves."""
    (listed,) = plain_http.get(f"{slower_llama_cpp}/models").json()["data"]
    assert listed["meta"]["n_vocab"] == 2048


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize("prompt", ["text", pytest.param("token_ids", marks=pytest.mark.slow)])
def test_prompts_have_exact_lengths_in_the_model_s_own_vocabulary(llama_cpp, llama_model, tmp_path, prompt):
    """The server counts them as long as asked, chat template included, though it was asked about few."""
    api = "openai-chat" if prompt == "text" else "openai-completions"
    (tmp_path / "sut.toml").write_text(
        f'[tokenizer]\nfile = "{llama_model.parent}"\n[request]\nprompt = "{prompt}"\n', "utf-8"
    )
    (tmp_path / "workloads.toml").write_text(WORKLOADS, "utf-8")
    options = ["--llm-sut=sut.toml", "--llm-workloads=workloads.toml", f"--llm-api={api}"]
    printed = run_suite(tmp_path, EXACT_SUITE, llama_cpp, *options)
    assert "1 passed" in printed, printed
    (entry,) = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["tests"]
    rows = counted_rows(tmp_path / "out", entry)
    assert len(rows) == 24
    assert {row["token_source"] for row in rows} == {"server_usage"}
    assert [row["input_tokens"] for row in rows] == [row["requested_input_tokens"] for row in rows]
    findings = {found["check"]: found for found in entry["validity"]["findings"]}
    assert findings["prompt_lengths"]["ok"]
    assert "prompt_length_drift" not in findings
    if prompt == "text":
        # Another's template and special tokens come on top, as many for each prompt.
        assert findings["tokenizer_agreement"]["value"] == 0
    assert entry["facts"]["tokenizer.vocab_size"]["value"] == 2048


@pytest.mark.timing
def test_measured_ttft_agrees_with_the_server_s_own_timings(measured):
    report = json.loads((measured / "report.json").read_text("utf-8"))
    for entry in report["tests"]:
        assert entry["validity"]["verdict"] == "valid"
        requests = 24 if "closed" in entry["nodeid"] else 16
        assert entry["counts"]["ok"] == requests
        rows = counted_rows(measured, entry)
        assert len(rows) == requests
        beyond_prefill = []
        for row in rows:
            ttft_ms = (row["first_content_ns"] - row["submitted_ns"]) / 1e6
            # The prompt's evaluation lies inside TTFT; the rest is queueing, one step and the wire.
            prompt_ms = row["server_timings"]["prompt_ms"]
            assert ttft_ms > prompt_ms - 1.0
            beyond_prefill.append(ttft_ms - prompt_ms)
            assert row["token_source"] == "server_usage"
            assert row["output_tokens"] == row["requested_max_tokens"]
            assert sum(row["chunk_tokens"]) == row["output_tokens"]
        own = [row["server_timings"]["prompt_ms"] for row in rows]
        # On a slow machine nearly all requests queue for a slot; the first do not, and show the agreement.
        _, second, *_ = sorted(beyond_prefill)
        assert second < max(25.0, statistics.median(own)), beyond_prefill


@pytest.mark.timing
def test_the_whole_stream_agrees_with_the_server_s_own_timings(measured):
    report = json.loads((measured / "report.json").read_text("utf-8"))
    entry = next(entry for entry in report["tests"] if "closed" in entry["nodeid"])
    rows = counted_rows(measured, entry)
    ratios = [
        (row["last_content_ns"] - row["first_content_ns"]) / 1e6 / row["server_timings"]["predicted_ms"]
        for row in rows
    ]
    # predicted_ms covers the first token's step too, so the client's span is a little shorter.
    assert 0.6 < statistics.median(ratios) < 1.2, ratios


@pytest.mark.parametrize("by", ["its own count", "completions"])
def test_prompts_of_exact_lengths_are_not_in_its_cache(llama_cpp, by, monkeypatch):
    """What it has run it finds in its cache: that is so of every prompt where completions are asked."""
    if by == "completions":
        monkeypatch.setattr(ServerTokenCount, "_tokenizers", lambda _: [])

    def counts() -> ServerTokenCount:
        return ServerTokenCount(llama_cpp, "tiny-random", "openai-chat", Access(), most_calls=MOST_CALLS)

    count = TokenCounter(counts, llama_cpp)
    exact = bound(ExactLengths(SyntheticWorkload("long", Uniform(300, 300), Uniform(1, 1))), count)
    try:
        sent = [str(request.text) for request in exact.requests(3, seed=5)]
    finally:
        count.close()
    for text in sent:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
        usage = plain_http.post(f"{llama_cpp}/chat/completions", json=body, timeout=60.0).json()["usage"]
        assert usage["prompt_tokens"] == 300
        # The template, and a word or two.
        assert usage["prompt_tokens_details"]["cached_tokens"] < 30


BEYOND = """
import pytest
from pytest_llmbench import WarmupPolicy, llmbench

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=2, output_tokens=16, concurrency=2, probes=3)

# Of ten requests one may meet a kept connection that this server closes.
@llmbench.accuracy(
    dataset="questions.jsonl", scorer="regex:(?s).+", concurrency=2, max_tokens=4, golden=1.0,
    max_error_share=0.2,
)
def test_random_weights_know_nothing(llm_result): ...

@llmbench.grid(input_tokens=64, output_tokens=8, concurrency=[1, 2], prompts=8, runs=1)
def test_cells(llm_result):
    assert llm_result.metrics["output_tokens_per_user_second"].point > 0

@llmbench.batch(prompts=4, runs=1)
def test_batch(llm_result):
    assert llm_result.facts.value("load.release") == "last_byte"
"""


@pytest.mark.skipif(not names("cells"), reason="the extra of grids is left out")
@pytest.mark.usefixtures("however_late")
def test_questions_and_cells_go_to_a_real_server(llama_cpp, tmp_path):
    rows = [json.dumps({"question": f"What is {at} + {at}?", "answer": 2 * at}) for at in range(10, 20)]
    (tmp_path / "questions.jsonl").write_text("\n".join(rows), "utf-8")
    printed = run_suite(tmp_path, BEYOND, llama_cpp, "--llm-records=full,events")
    assert "1 failed, 3 passed" in printed, printed
    tests = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["tests"]
    entry = next(entry for entry in tests if entry["test"] == "accuracy")
    assert entry["metrics"]["accuracy_of_set"]["point"] == 0.0
    # What it said was read, and is not the answer.
    rows_of_ten = counted_rows(tmp_path / "out", entry)
    told = [row["answer_check"] for row in rows_of_ten if row["outcome"] == "ok"]
    assert len(rows_of_ten) == 10
    assert len(told) >= 8
    assert all(each == "cut_by_limit" or each.startswith("wrong: ") for each in told)
    assert (tmp_path / "out" / "grid.csv").read_text("utf-8").count("test_cells[in64-out8-c") == 2
    assert (tmp_path / "out" / "events.jsonl.gz").exists()


SCHEMA = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["C", "F"]}, "warm": {"type": "boolean"}},
    "required": ["unit", "warm"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "tells", "parameters": SCHEMA}}


@dataclass(frozen=True)
class CallsAndForms:
    """Requests for a call and for an answer by a schema, in turn."""

    name: str = "calls-and-forms"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        call, form = StructuredOutput.of([TOOL]), StructuredOutput.of([TOOL], SCHEMA)
        text = call.tools + " the weather"
        return [
            PlannedRequest(i, 120, 40, text=text, structured=form if i % 2 else call) for i in range(count)
        ]

    def specification(self) -> Mapping[str, Any]:
        return {}


@pytest.mark.skipif(not names("document_dialects"), reason="the extra of documents is left out")
@pytest.mark.parametrize(("pooling", "api"), [("mean", "openai-embeddings"), ("rank", "rerank")])
def test_vectors_and_scores_of_a_model(llama_model, pooling, api):
    """Its own counter of prompt tokens is our sum, and it has predicted none."""
    server_file = Path(__file__).with_name("llama_server.py")
    command = [sys.executable, str(server_file), str(llama_model), "{port}", "4", "8192", pooling]
    with launched_server(command, timeout_s=120.0) as server:
        examined = examine(server.url, api=api)
        before = counters(server.url)
        spoken = dialect(examined.api)
        with LoadGenerator(Target.parse(server.url), spoken, model=examined.model) as generator:
            inputs = WithoutOutput(SyntheticWorkload("short", Uniform(8, 24), Uniform(1, 2)))
            seen = generator.run(LoadPlan("measure", inputs, ClosedLoop(2), 24, seed=1))
        after = counters(server.url)
    records = seen.records
    assert records.counts()["ok"] == 24, list(records.error)
    assert (records.output_tokens == MISSING).all()
    assert len(request_latency_ms(records)) == 24
    assert records.input_tokens.sum() == after["prompt_tokens_total"] - before["prompt_tokens_total"]
    assert after["tokens_predicted_total"] == 0


def counters(url: str) -> dict[str, float]:
    page = plain_http.get(f"{url.removesuffix('/v1')}/metrics").text
    lines = (line.split() for line in page.splitlines() if not line.startswith("#"))
    return {name.removeprefix("llamacpp:"): float(value) for name, value in lines}


def test_a_grammar_makes_random_weights_keep_to_a_schema(llama_cpp):
    """The server takes tools and schemas as they are sent; a call may not be through at its limit."""
    with LoadGenerator(Target.parse(llama_cpp), OpenAIChat(), model="tiny-random") as generator:
        records = generator.run(LoadPlan("measure", CallsAndForms(), ClosedLoop(2), 8, seed=1)).records
    checks = dict(zip(records.index.tolist(), records.schema_check, strict=True))
    # It closes connections behind streams, and now and then just as the next request arrives on one.
    failed = {i: error for i, error in zip(records.index.tolist(), records.error, strict=True) if error}
    assert len(failed) <= 2, failed
    assert all("it was a kept one" in error for error in failed.values()), failed
    assert {checks[i] for i in range(1, 8, 2) if i not in failed} == {"valid"}
    assert {checks[i] for i in range(0, 8, 2) if i not in failed} <= {"valid", "cut_by_limit"}
