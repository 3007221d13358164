"""Live answers of real engines: turns read what the engine says to the same messages when asked by hand.

The weights are random, so replies are a jumble of pieces of words, with halves of characters among them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from pytest_apart import Session
from vllm_server import program, serving

from pytest_llmbench.arrivals import LiveAnswers, turn_of
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, SessionSlots
from pytest_llmbench.model.records import MISSING, Records
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

TURNS = 4
TALK = SessionWorkload(
    "talk", Fixed(TURNS), Uniform(10, 20), Uniform(20, 40), system_tokens=40, answers="live"
)
SHORT = SyntheticWorkload("short", Fixed(8), Fixed(4))
SUITE = """
import pytest
from pytest_llmbench import WarmupPolicy, llmbench

TALK = {"sessions": {"turns": (3, 4), "input_tokens": (10, 20), "output_tokens": (20, 40), "pause_s": 0.05,
                     "system_tokens": 40, "answers": "live"}}

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=4, output_tokens=32, concurrency=2, probes=4)

@llmbench.sessions(workload=TALK, sessions=2, total_sessions=8, job_p50_s=600)
def test_talks(llm_result):
    assert llm_result.metrics["session_completion_rate"].point == 1.0
"""


def records_of(url: str, sessions: int = 3) -> tuple[list[PlannedRequest], Records]:
    """What was planned and what came of it, one session at a time. A load before tells the generator of a
    server that closes connections behind its replies."""
    requests = turns_of(TALK, sessions, 5)
    plan = LoadPlan("talk", TALK, SessionSlots(1), requests, seed=5)
    with LoadGenerator(Target.parse(url), OpenAIChat(), model="tiny-random") as generator:
        generator.run(LoadPlan("before", SHORT, ClosedLoop(2), 12, seed=1))
        return list(TALK.requests(requests, 5)), generator.run(plan).records


def asked_by_hand(url: str, planned: list[PlannedRequest]) -> dict[int, tuple[int, int]]:
    """Input and output tokens by index, where each turn reads the answers that the server gives here."""
    answers, found = LiveAnswers(), dict[int, tuple[int, int]]()
    for request in planned:
        spoken = answers.asked(request)
        assert spoken.messages is not None
        body = {
            "model": "tiny-random",
            "messages": [message.as_chat() for message in spoken.messages.messages],
            "max_tokens": request.max_tokens,
            "temperature": 0.0,
        }
        reply = httpx.post(f"{url}/chat/completions", json=body, timeout=120.0, trust_env=False)
        told: dict[str, Any] = reply.raise_for_status().json()
        usage = told["usage"]
        found[request.index] = usage["prompt_tokens"], usage["completion_tokens"]
        said = told["choices"][0]["message"]["content"]
        answers.note(turn_of(request), said, usage["completion_tokens"])
    return found


def assert_reads_what_it_says(url: str) -> Records:
    planned, records = records_of(url)
    assert records.ok.all(), list(records.error)
    by_hand = asked_by_hand(url, planned)
    columns = (records.index, records.input_tokens, records.output_tokens)
    seen = {i: (asked, got) for i, asked, got in zip(*(each.tolist() for each in columns), strict=True)}
    assert seen == by_hand
    return records


def assert_finds_its_history(records: Records) -> None:
    """What a turn finds in the cache ends behind the prompt of the turn before, in the answer to that."""
    cached = np.where(records.cached_tokens == MISSING, 0, records.cached_tokens)
    prompts: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for session, asked, found in zip(records.session, records.input_tokens, cached, strict=True):
        prompts[int(session)].append((int(asked), int(found)))
    for turns in prompts.values():
        for (before, _), (_, found) in pairwise(turns):
            assert found > before - 8, turns


def test_llama_cpp_is_told_its_own_answers(llama_cpp):
    assert_finds_its_history(assert_reads_what_it_says(llama_cpp))


@pytest.mark.usefixtures("however_late")
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_suite_against_llama_cpp(llama_cpp, tmp_path, workers):
    (tmp_path / "test_talks.py").write_text(SUITE, "utf-8")
    options = (f"--llm-workers={workers}", "--llm-report=out", "--llm-inconclusive=pass")
    session = Session(tmp_path, "-q", "test_talks.py", f"--llm-endpoint={llama_cpp}", *options)
    said = session.text(300)
    assert session.returncode == 0, said[-4000:]
    (entry,) = json.loads((tmp_path / "out" / "report.json").read_text("utf-8"))["tests"]
    assert entry["facts"]["workload.answers"]["value"] == "live"
    assert entry["facts"]["wire.messages"]["value"] == "roles"
    assert entry["metrics"]["turn_cacheable_share[2+]"]["point"] is None
    assert entry["metrics"]["turn_cached_share[2+]"]["point"] > 0.4
    assert {each["check"] for each in entry["validity"]["findings"]} >= {"live_answers"}


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program()
    folder = tmp_path_factory.mktemp("model")
    made = Path(__file__).with_name("tiny_safetensors.py")
    subprocess.run([sys.executable, made, folder], check=True, timeout=120)
    options = ("--enable-prefix-caching", "--enable-prompt-tokens-details")
    with serving(folder, *options, "--served-model-name", "tiny-random") as url:
        yield url


@pytest.mark.slow
@pytest.mark.timing
def test_vllm_is_told_its_own_answers(vllm):
    """Its cache has blocks of 32 tokens: what a turn finds begins with whole ones alone."""
    records = assert_reads_what_it_says(vllm)
    found = records.cached_tokens[(records.turn > 1) & (records.cached_tokens != MISSING)]
    assert len(found)
    assert (found % 32 == 0).all()
