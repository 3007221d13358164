"""What the served engine tells: timings, instants of tokens, its metrics page; how its cache is emptied."""

from __future__ import annotations

import json
from typing import Any

import httpx
import plain_http
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served_load import TOKENS, chunks, raw_chat

from pytest_llmbench.model.observation import TOTALS
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

NAMES = {"queue_ms", "prompt_ms", "preemptions", "preempted_tokens"}


def post(engine: EmbeddedEngine, path: str = "/v1/completions", **body: Any) -> httpx.Response:
    return plain_http.post(engine.url.removesuffix("/v1") + path, json=body, timeout=15.0)


def samples(engine: EmbeddedEngine) -> dict[str, tuple[dict[str, str], float]]:
    page = plain_http.get(engine.url.removesuffix("/v1") + "/metrics").text
    families = text_string_to_metric_families(page)
    return {each.name: (each.labels, each.value) for family in families for each in family.samples}


@pytest.mark.parametrize(
    ("options", "usage", "holder"),
    [
        ("", True, "usage"),
        ("", False, "finish_reason"),
        ("usage=finish", False, "finish_reason"),
        ("usage=empty_delta", False, "usage"),
        ("tokens_per_chunk=3", True, "usage"),
    ],
)
def test_the_last_event_has_the_timings(options: str, usage: bool, holder: str) -> None:
    with EmbeddedEngine.start(f"fast?{options}&trace=true" if options else "fast") as engine:
        events = chunks(raw_chat(engine, stream_options={"include_usage": usage}))
        (truth,) = engine.ground_truth()
    assert ["timings" in event for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert "usage" in last if holder == "usage" else last["choices"][0]["finish_reason"] == "length"
    assert set(last["timings"]) == NAMES
    assert truth.queued_ns is not None
    assert truth.admitted_ns is not None
    assert truth.first_token_ns is not None
    assert last["timings"]["queue_ms"] * 1e6 == pytest.approx(truth.admitted_ns - truth.queued_ns)
    assert last["timings"]["prompt_ms"] * 1e6 == pytest.approx(truth.first_token_ns - truth.admitted_ns)
    assert last["timings"]["preemptions"] == last["timings"]["preempted_tokens"] == 0


def test_a_whole_body_has_them_and_the_option_takes_them_out() -> None:
    with EmbeddedEngine.start("fast") as engine:
        assert set(post(engine, prompt="a", max_tokens=2).json()["timings"]) == NAMES
    with EmbeddedEngine.start("fast?server_timings=false") as engine:
        assert "timings" not in post(engine, prompt="a", max_tokens=2).json()
        assert b"timings" not in raw_chat(engine, stream_options={"include_usage": True})


@pytest.mark.parametrize("options", ["", "&tokens_per_chunk=3", "&output_filter=enabled"])
def test_each_chunk_has_the_instants_of_its_tokens(options: str) -> None:
    with EmbeddedEngine.start(f"fast?server_timestamps=true&trace=true{options}") as engine:
        events = chunks(raw_chat(engine))
        (truth,) = engine.ground_truth()
    told = [event["token_times_ns"] for event in events if "token_times_ns" in event]
    assert [ns for own in told for ns in own] == truth.token_ns
    assert len(truth.token_ns or ()) == TOKENS
    content = [event for event in events if event["choices"] and event["choices"][0]["delta"].get("content")]
    assert len(told) == len(content)


def test_cached_tokens_are_told_from_the_first_request_on() -> None:
    with EmbeddedEngine.start("fast?prefix_caching=on") as engine:
        events = chunks(raw_chat(engine, stream_options={"include_usage": True}))
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_the_prefix_cache_can_be_emptied_while_the_engine_works() -> None:
    ids = list(range(100))
    with EmbeddedEngine.start("fast?prefix_caching=on&step_base_us=20000") as engine:

        def hits() -> int:
            reply = post(engine, prompt=ids, max_tokens=1).json()
            return int(reply["usage"]["prompt_tokens_details"]["cached_tokens"])

        assert [hits(), hits()] == [0, 96]
        with plain_http.stream(
            "POST",
            engine.url + "/completions",
            json={"prompt": ids, "max_tokens": 60, "stream": True},
            timeout=15.0,
        ) as running:
            lines = running.iter_lines()
            assert json.loads(next(lines)[6:])["choices"]
            reset = post(engine, "/reset_prefix_cache")
            assert (reset.status_code, reset.content) == (200, b"")
            assert engine.status()["running"] == 1
            assert [hits(), hits()] == [0, 96]
            assert sum(line.startswith("data: {") for line in lines) == 60
        assert hits() == 96
        assert samples(engine)["vllm:kv_cache_usage_perc"][1] == 0
    with EmbeddedEngine.start("fast") as engine:
        assert post(engine, "/reset_prefix_cache").status_code == 200


def test_the_metrics_page_has_all_that_readings_need() -> None:
    with EmbeddedEngine.start("fast?max_num_seqs=7&prefix_caching=on") as engine:
        for _ in range(3):
            post(engine, prompt=list(range(40)), max_tokens=5)
        found = samples(engine)
    series = {
        "preemptions": "num_preemptions_total",
        "prefix_queries_tokens": "prefix_cache_queries_total",
        "prefix_hits_tokens": "prefix_cache_hits_total",
        "prompt_tokens": "prompt_tokens_total",
        "generated_tokens": "generation_tokens_total",
        "queue_wait_s": "request_queue_time_seconds_sum",
        "queue_wait_count": "request_queue_time_seconds_count",
        "prefill_s": "request_prefill_time_seconds_sum",
        "prefill_count": "request_prefill_time_seconds_count",
        "decode_s": "request_decode_time_seconds_sum",
        "decode_count": "request_decode_time_seconds_count",
    }
    # Critical evictions are counted by a scheduler that knows of phases, transfers where prefill is apart,
    # drafts with speculative decoding.
    others = {"requests_finished", "critical_evictions", "kv_transfer_s", "kv_transfer_count"}
    others |= {"drafts", "draft_tokens", "accepted_draft_tokens"}
    assert {*series, *others} == set(TOTALS)
    values = {name: found[f"vllm:{own}"][1] for name, own in series.items()}
    assert values["prefix_queries_tokens"] == 120
    assert values["prefix_hits_tokens"] == 2 * 32
    assert values["prompt_tokens"] == 120 - 64
    assert values["generated_tokens"] == 15
    assert values["queue_wait_count"] == values["prefill_count"] == 3
    assert 0.0036 < values["prefill_s"] < 60
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert found[f"vllm:{gauge}"][1] == 0
    cache = found["vllm:cache_config_info"][0]
    assert (cache["block_size"], cache["num_gpu_blocks"], cache["enable_prefix_caching"]) == (
        "16",
        "33024",
        "True",
    )
    assert found["vllm:scheduler_config_info"][0]["max_num_seqs"] == "7"
