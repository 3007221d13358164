"""What the engine's model does, seen over HTTP: full queues, thoughts, filters, little memory, caches."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import httpx
import plain_http
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served_load import TOKENS, load, raw_chat, serve_and_load
from three_attempts import three_attempts
from waiting import wait_for

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, OUTCOMES
from pytest_llmbench.probes.engine_metrics import read_page
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload


def post(engine: EmbeddedEngine, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    url = engine.url.removesuffix("/v1") + path
    return plain_http.post(url, json=body, timeout=15.0)


def samples(engine: EmbeddedEngine) -> dict[str, float]:
    """Each series of ``/metrics`` by name and the labels that tell it from others."""
    page = plain_http.get(engine.url.removesuffix("/v1") + "/metrics")
    assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page.text):
        assert family.documentation
        for sample in family.samples:
            assert sample.labels["model_name"] == engine.model
            own = {k: v for k, v in sample.labels.items() if k not in ("engine", "model_name")}
            found["/".join([sample.name.removeprefix("vllm:"), *own.values()])] = sample.value
    return found


@pytest.mark.parametrize("status", [503, 429])
def test_a_full_queue_turns_requests_away(status: int) -> None:
    scenario = f"fast?max_num_seqs=1&max_waiting=1&full_status={status}&step_base_us=50000"
    with EmbeddedEngine.start(scenario) as engine:
        ends = [threading.Thread(target=post, args=(engine,), kwargs={"prompt": "a", "max_tokens": 20})]
        ends[0].start()
        wait_for(lambda: engine.status()["running"] == 1)
        ends.append(threading.Thread(target=post, args=(engine,), kwargs={"prompt": "a", "max_tokens": 1}))
        ends[1].start()
        wait_for(lambda: engine.status()["waiting"] == 1)
        turned_away = post(engine, prompt="a")
        row = load(engine).only
        rejections = samples(engine)["admission_rejections_total/max_num_queued_reqs"]
        for end in ends:
            end.join(10.0)
    assert (turned_away.status_code, turned_away.headers["retry-after"]) == (status, "1")
    assert "1 requests wait already" in turned_away.json()["error"]["message"]
    assert row.outcome is Outcome.RATE_LIMITED
    assert rejections == 2


@three_attempts
def test_a_model_that_thinks() -> None:
    with EmbeddedEngine.start("fast?think_mean_tokens=5&think_spread=0&step_base_us=10000") as engine:
        row = load(engine).only
        (truth,) = engine.ground_truth()
        quiet = post(engine, "/v1/chat/completions", reasoning_effort="none", **_CHAT).json()
    assert (row.outcome, row.output_tokens, row.reasoning_tokens) == (Outcome.OK, TOKENS, 5)
    assert (truth.reasoning_tokens, truth.think_reason) == (5, "converged")
    assert row.first_content_ns is not None
    assert row.first_reasoning_ns is not None
    assert row.first_reasoning_ns < row.first_content_ns
    assert row.first_content_ns - truth.received_ns >= (5 + 1) * 10e6
    assert "reasoning_content" not in quiet["choices"][0]["message"]


@pytest.mark.parametrize("ahead", [0, 1])
def test_thoughts_and_answers_are_drawn_as_in_replay_by_the_place_among_all_requests(ahead: int) -> None:
    """Whatever was asked before has drawn its own, as the request does that examines an endpoint: so a limit
    of tokens may meet other thoughts than in a replay, and leave no answer."""
    thinking = "fast?think_mean_tokens=30&eos_mean_tokens=12&seed=3"
    plan = LoadPlan("w", SyntheticWorkload("w", Fixed(20), Fixed(50)), ClosedLoop(1), 30, seed=1)
    with EmbeddedEngine.start(thinking) as engine:
        for _ in range(ahead):
            assert post(engine, prompt="a", max_tokens=1).status_code == 200
        with LoadGenerator(Target.parse(engine.url), OpenAIChat(), model=engine.model) as generator:
            served = generator.run(plan).records
    replayed = ReplayEngine(parse_scenario(thinking)).run(plan.with_(requests=30 + ahead)).records
    for told in (
        "outcome", "error", "finish_reason", "http_status", "output_tokens",
        "reasoning_tokens", "token_source", "reasoning_token_source", "thinking_end_reason",
    ):  # fmt: skip
        assert list(getattr(served, told)) == list(getattr(replayed, told)[ahead:]), told
    # Of a thought and an answer that a busy machine reads at once, the end of the thoughts is not known.
    known = served.last_reasoning_ns != served.first_content_ns
    for column in ("first_content_ns", "last_content_ns", "thinking_end_ns", "last_reasoning_ns"):
        rows = known if column == "thinking_end_ns" else slice(None)
        here, there = getattr(served, column) == MISSING, getattr(replayed, column)[ahead:] == MISSING
        assert here[rows].tolist() == there[rows].tolist(), column
    assert {OUTCOMES[number] for number in served.outcome} == {Outcome.OK, Outcome.EMPTY}


def test_replies_page_and_ground_truth_agree_on_critical_evictions() -> None:
    pressed = (
        "fast?think_mean_tokens=60&kv_blocks=40&context_limit_tokens=512&max_num_seqs=16&scheduler=phase"
    )
    work = LoadPlan("pressed", SyntheticWorkload("w", Fixed(40), Fixed(200)), ClosedLoop(16), 30, seed=7)
    with EmbeddedEngine.start(pressed) as engine:
        with LoadGenerator(Target.parse(engine.url), OpenAIChat(), model=engine.model) as generator:
            records = generator.run(work).records
        truths = {truth.request_id: truth for truth in engine.ground_truth()}
        counted = samples(engine)["critical_evictions_total"]
        page = plain_http.get(f"{engine.url.removesuffix('/v1')}/metrics").text
    assert records.ok.all()
    ends = read_page(page, {"thinking_ended": "vllm:thinking_ended_total{reason}"})
    for reason, count in Counter(truth.think_reason for truth in truths.values()).items():
        assert ends[f"thinking_ended[{reason}]"] == count
    told = dict(zip(records.request_id, records.critical_evictions.tolist(), strict=True))
    assert told == {name: truth.critical_evictions for name, truth in truths.items()}
    assert counted == sum(told.values()) > 0
    assert list(records.thinking_end_reason) == [truths[name].think_reason for name in records.request_id]


_CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "sea"}], "max_tokens": 4}


def test_an_input_filter_takes_its_time_and_refuses() -> None:
    with EmbeddedEngine.start("fast?input_filter=enabled&input_filter_us=60000") as engine:
        load(engine)
        (truth,) = engine.ground_truth()
    assert truth.queued_ns is not None
    assert truth.queued_ns - truth.received_ns >= 60_000_000
    assert serve_and_load("fast?input_filter=enabled&input_refusal_share=1").only.outcome is Outcome.REFUSED


def test_an_output_filter_holds_windows_back() -> None:
    figures = "output_filter_window_tokens=4&output_filter_us=50000&output_filter_us_per_token=0"
    with EmbeddedEngine.start(f"fast?output_filter=enabled&{figures}&trace=true") as engine:
        row = load(engine).only
        (truth,) = engine.ground_truth()
    assert (row.outcome, row.output_tokens) == (Outcome.OK, TOKENS)
    assert truth.token_ns is not None
    assert truth.first_visible_ns is not None
    assert truth.last_write_ns is not None
    assert truth.first_visible_ns >= truth.token_ns[3] + 50_000_000
    assert truth.last_write_ns >= truth.first_visible_ns + 40_000_000
    assert (truth.finish_reason, truth.aborted) == ("length", False)


def test_an_output_filter_breaks_answers_off() -> None:
    figures = "output_filter_window_tokens=4&output_refusal_share=1"
    with EmbeddedEngine.start(f"fast?output_filter=enabled&{figures}") as engine:
        seen = load(engine, 6)
        truths = engine.ground_truth()
    assert seen.outcomes == [Outcome.REFUSED] * 6
    assert {len(row.chunk_ns) for row in seen.rows} <= {0, 4}
    assert {truth.finish_reason for truth in truths} == {"content_filter"}


def test_a_client_that_leaves_while_output_is_held_back_is_recorded() -> None:
    figures = "output_filter_window_tokens=64&output_filter_us=2000000"
    with EmbeddedEngine.start(f"fast?output_filter=enabled&{figures}") as engine:
        url = f"{engine.url}/completions"
        with pytest.raises(httpx.ReadTimeout):
            plain_http.post(url, json={"prompt": "a", "max_tokens": 3}, timeout=0.5)
        wait_for(lambda: len(engine.ground_truth()) == 1)
        (truth,) = engine.ground_truth()
    assert (truth.aborted, truth.finish_reason, truth.output_tokens) == (True, None, 0)


# 40 blocks of 16 tokens; each request comes to 3 + 400 tokens, 26 blocks. A reply takes most of a second, so
# that the requests of a crowd meet however late one of them is sent.
SHORT_OF_MEMORY = "fast?kv_blocks=40&context_limit_tokens=640&step_base_us=2000"


def crowd(engine: EmbeddedEngine) -> list[httpx.Response]:
    replies: list[httpx.Response] = []
    body = {"prompt": [1, 2, 3], "max_tokens": 400}
    work = [threading.Thread(target=lambda: replies.append(post(engine, **body))) for _ in range(3)]
    for each in work:
        each.start()
    for each in work:
        each.join(20.0)
    return replies


def test_preemptions_are_in_the_ground_truth_and_the_metrics() -> None:
    with EmbeddedEngine.start(SHORT_OF_MEMORY) as engine:
        replies = crowd(engine)
        truths = engine.ground_truth()
        found = samples(engine)
    assert [reply.json()["usage"]["completion_tokens"] for reply in replies] == [400] * 3
    preemptions = sum(truth.preemptions for truth in truths)
    assert preemptions > 0
    assert found["num_preemptions_total"] == preemptions
    assert sum(truth.lost_tokens for truth in truths) > 0


def test_out_of_memory_fails_a_request() -> None:
    with EmbeddedEngine.start(f"{SHORT_OF_MEMORY}&preemption=off") as engine:
        replies = crowd(engine)
        truths = engine.ground_truth()
    failed = [reply for reply in replies if reply.status_code == 500]
    assert 0 < len(failed) < 3
    assert "out of memory" in failed[0].json()["error"]["message"]
    assert sum(truth.finish_reason == "error" for truth in truths) == len(failed)


def test_out_of_memory_fells_the_engine_for_its_recovery_time() -> None:
    scenario = f"{SHORT_OF_MEMORY}&preemption=off&out_of_memory=engine&recovery_ms=600"
    with EmbeddedEngine.start(scenario) as engine:
        replies = crowd(engine)
        down = post(engine, prompt="a")
        wait_for(lambda: post(engine, prompt="a", max_tokens=1).status_code == 200)
    assert [reply.status_code for reply in replies] == [500] * 3
    assert down.status_code == 503


def test_cached_tokens_are_reported() -> None:
    with EmbeddedEngine.start("fast?prefix_caching=true") as engine:
        usages = [post(engine, prompt=list(range(100)), max_tokens=2).json()["usage"] for _ in range(2)]
        truths = engine.ground_truth()
        found = samples(engine)
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0, 96]
    assert [truth.cached_tokens for truth in truths] == [0, 96]
    assert (found["prefix_cache_queries_total"], found["prefix_cache_hits_total"]) == (200, 96)


def test_metrics_agree_with_the_ground_truth() -> None:
    with EmbeddedEngine.start("fast") as engine:
        load(engine, 5)
        truths = engine.ground_truth()
        found = samples(engine)
    assert found["request_success_total/length"] == 5
    assert found["generation_tokens_total"] == 5 * TOKENS
    assert found["prompt_tokens_total"] == sum(truth.prompt_tokens for truth in truths)
    assert found["time_to_first_token_seconds_count"] == 5
    assert found["inter_token_latency_seconds_count"] == 5 * (TOKENS - 1)
    ttft_s = sum((truth.first_token_ns or 0) - truth.received_ns for truth in truths) / 1e9
    assert found["time_to_first_token_seconds_sum"] == pytest.approx(ttft_s)
    assert found["request_generation_tokens_bucket/5.0"] == 0
    assert found["request_generation_tokens_bucket/10.0"] == 5
    assert found["e2e_request_latency_seconds_bucket/+Inf"] == 5
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (0, 0)
    assert found["kv_cache_usage_perc"] == 0


@pytest.mark.parametrize(
    ("body", "ids"),
    [
        ({"prompt": "the wide sea"}, reference_tokenizer("cl100k_base").encode("the wide sea")),
        (
            {"messages": [{"role": "user", "content": "the sea"}, {"role": "user", "content": "is wide"}]},
            reference_tokenizer("cl100k_base").encode("the sea")
            + reference_tokenizer("cl100k_base").encode("is wide"),
        ),
        ({"prompt": [5, 6, 7]}, [5, 6, 7]),
    ],
)
def test_tokenize(fast: EmbeddedEngine, body: dict[str, Any], ids: list[int]) -> None:
    reply = post(fast, "/tokenize", **body)
    refused = post(fast, "/tokenize", prompt=5)
    assert reply.json() == {"count": len(ids), "max_model_len": 131584, "tokens": ids}
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt")


def test_the_stream_says_when_the_engine_gives_up() -> None:
    with EmbeddedEngine.start(
        "fast?kv_blocks=40&context_limit_tokens=640&preemption=off&out_of_memory=engine"
    ) as engine:
        raw: list[bytes] = []
        work = [
            threading.Thread(target=lambda: raw.append(raw_chat(engine, max_tokens=600))) for _ in range(2)
        ]
        for each in work:
            each.start()
        for each in work:
            each.join(20.0)
    assert all(b'"error":' in reply and reply.endswith(b"data: [DONE]\n\n") for reply in raw)
