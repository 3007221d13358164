"""The engine's metrics page: what is read of it for each engine, and what is said when it is not there."""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest
from canned_http import HTML, Canned, CannedServer
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.model.observation import ACCEPTED_AT, GAUGES, TOTALS
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.engine_metrics import ENGINES, EngineMetricsProbe, page_urls, read_page

PLAIN = {"Content-Type": "text/plain; version=0.0.4"}
KNOWN = {*GAUGES, *TOTALS, ACCEPTED_AT, "max_num_seqs"}

VLLM = """\
# HELP vllm:num_requests_running Requests in the batch.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a {b} \\"c\\" # d"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 5
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 99
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} 7.0
vllm:num_preemptions_created{engine="0"} 1.7e+09
# TYPE vllm:prefix_cache_queries_total counter
vllm:prefix_cache_queries_total{engine="0"} 1000.0
vllm:prefix_cache_hits_total{engine="0"} 250.0
vllm:prompt_tokens_total{engine="0"} 1.2e+04
vllm:generation_tokens_total{engine="0"} 800
vllm:request_success_total{engine="0",finished_reason="stop"} 4
vllm:request_success_total{engine="0",finished_reason="length"} 6
# TYPE vllm:request_queue_time_seconds histogram
vllm:request_queue_time_seconds_bucket{engine="0",le="0.3"} 9
vllm:request_queue_time_seconds_bucket{engine="0",le="+Inf"} 10
vllm:request_queue_time_seconds_count{engine="0"} 10
vllm:request_queue_time_seconds_sum{engine="0"} 1.5
vllm:request_prefill_time_seconds_count{engine="0"} 10
vllm:request_prefill_time_seconds_sum{engine="0"} 2.5
vllm:request_decode_time_seconds_count{engine="0"} 10
vllm:request_decode_time_seconds_sum{engine="0"} 4.5
vllm:spec_decode_num_drafts_total{engine="0"} 50
vllm:spec_decode_num_draft_tokens_total{engine="0"} 100
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 60
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="0"} 40
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 20
process_cpu_seconds_total 3.5
"""
VLLM_READ = {
    "running": 3,
    "waiting": 5,
    "kv_use": 0.25,
    "preemptions": 7,
    "prefix_queries_tokens": 1000,
    "prefix_hits_tokens": 250,
    "prompt_tokens": 12000,
    "generated_tokens": 800,
    "requests_finished": 10,
    "queue_wait_s": 1.5,
    "queue_wait_count": 10,
    "prefill_s": 2.5,
    "prefill_count": 10,
    "decode_s": 4.5,
    "decode_count": 10,
    "drafts": 50,
    "draft_tokens": 100,
    "accepted_draft_tokens": 60,
    "accepted_draft_tokens_at[0]": 40,
    "accepted_draft_tokens_at[1]": 20,
}
SGLANG = """\
sglang:num_running_reqs{tp_rank="0"} 2
sglang:num_queue_reqs{tp_rank="0"} 4
sglang:token_usage{tp_rank="0"} 0.5
sglang:num_retracted_reqs{pid="7"} 90
sglang:num_retracted_requests_total 3
sglang:prompt_tokens_total{is_streaming="true"} 700
sglang:prompt_tokens_total{is_streaming="false"} 300
sglang:cached_tokens_total{cache_source="device"} 100
sglang:cached_tokens_total{cache_source="host"} 20
sglang:generation_tokens_total 60
sglang:num_requests_total 8
sglang:spec_verify_calls_total 17
sglang:spec_accept_length{tp_rank="0"} 2.5
sglang:queue_time_seconds_sum 0.75
sglang:queue_time_seconds_count 8
sglang:per_stage_req_latency_seconds_sum{stage="prefill_forward",tp_rank="0"} 1.5
sglang:per_stage_req_latency_seconds_sum{stage="chunked_prefill",tp_rank="0"} 1.0
sglang:per_stage_req_latency_seconds_count{stage="prefill_forward",tp_rank="0"} 8
sglang:per_stage_req_latency_seconds_count{tp_rank="0"} 9
"""
SGLANG_READ = {
    "running": 2,
    "waiting": 4,
    "kv_use": 0.5,
    "preemptions": 3,
    "prefix_queries_tokens": 1000,
    "prefix_hits_tokens": 120,
    "prompt_tokens": 1000,
    "generated_tokens": 60,
    "requests_finished": 8,
    "drafts": 17,
    "acceptance_length": 2.5,
    "queue_wait_s": 0.75,
    "queue_wait_count": 8,
    "prefill_s": 1.5,
    "prefill_count": 8,
}
TENSORRT = """\
trtllm_num_requests_running{engine_type="trtllm"} 1
trtllm_num_requests_waiting{engine_type="trtllm"} 0
trtllm_kv_cache_utilization{engine_type="trtllm"} 0.125
trtllm_max_num_active_requests{engine_type="trtllm"} 64
trtllm_prompt_tokens_total{engine_type="trtllm"} 500
trtllm_prompt_cached_tokens_total{engine_type="trtllm"} 50
trtllm_request_success_total{finished_reason="end_id"} 3
trtllm_spec_decode_drafted_tokens_total{engine_type="trtllm",token_position="0"} 20
trtllm_spec_decode_drafted_tokens_total{engine_type="trtllm",token_position="1"} 12
trtllm_spec_decode_accepted_tokens_total{engine_type="trtllm",token_position="0"} 15
trtllm_spec_decode_accepted_tokens_total{engine_type="trtllm",token_position="1"} 6
trtllm_spec_decode_num_draft_tokens_total{engine_type="trtllm"} 36
trtllm_spec_decode_num_accepted_tokens_total{engine_type="trtllm"} 24
trtllm_spec_decode_acceptance_length{engine_type="trtllm"} 2.0
"""
TENSORRT_READ = {
    "running": 1,
    "waiting": 0,
    "kv_use": 0.125,
    "max_num_seqs": 64,
    "prompt_tokens": 500,
    "prefix_queries_tokens": 500,
    "prefix_hits_tokens": 50,
    "requests_finished": 3,
    "drafts": 20,
    "draft_tokens": 32,
    "accepted_draft_tokens": 21,
    "accepted_draft_tokens_at[0]": 15,
    "accepted_draft_tokens_at[1]": 6,
    "acceptance_length": 2.0,
}
LLAMA_CPP = """\
llamacpp:prompt_tokens_total 42
llamacpp:prompt_seconds_total 1.25
llamacpp:prompt_tokens_seconds 33.6
llamacpp:tokens_predicted_total 16
llamacpp:requests_processing 4
llamacpp:requests_deferred 36
llamacpp:kv_cache_usage_ratio 0.75
llamacpp:spec_decode_num_drafts_total 8
llamacpp:spec_decode_num_draft_tokens_total 24
llamacpp:spec_decode_num_accepted_tokens_total 9
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 3
"""
LLAMA_CPP_READ = {
    "prompt_tokens": 42,
    "prefill_s": 1.25,
    "generated_tokens": 16,
    "running": 4,
    "waiting": 36,
    "kv_use": 0.75,
    "drafts": 8,
    "draft_tokens": 24,
    "accepted_draft_tokens": 9,
    "accepted_draft_tokens_at[0]": 6,
    "accepted_draft_tokens_at[1]": 3,
}
PAGES = [(VLLM, VLLM_READ), (SGLANG, SGLANG_READ), (TENSORRT, TENSORRT_READ), (LLAMA_CPP, LLAMA_CPP_READ)]


@pytest.mark.parametrize(("text", "read"), PAGES, ids=list(ENGINES))
def test_what_is_read_of_each_engine_s_page(text: str, read: Mapping[str, float]) -> None:
    assert read_page(text) == read


def test_drafts_that_are_not_told_by_place_have_no_number() -> None:
    """TensorRT-LLM counted them by iteration alone before."""
    older = "".join(line for line in TENSORRT.splitlines(keepends=True) if "token_position" not in line)
    read = read_page(older)
    assert (read["draft_tokens"], read["accepted_draft_tokens"]) == (36, 24)
    assert "drafts" not in read


def test_the_table_knows_our_names_only() -> None:
    for table in ENGINES.values():
        assert set(table) <= KNOWN


def test_the_batch_s_size_may_stand_in_a_label() -> None:
    series = 'vllm:scheduler_config_info{{engine="{}",max_num_seqs="{}",policy="fcfs"}} 1.0\n'
    assert read_page(VLLM + series.format(0, 24))["max_num_seqs"] == 24
    assert read_page(VLLM + series.format(0, 24) + series.format(1, 24))["max_num_seqs"] == 48
    assert read_page(VLLM + 'vllm:scheduler_config_info{engine="0"} 1.0\n') == VLLM_READ


def test_a_relay_s_spelling_is_the_same_series() -> None:
    relayed = VLLM.replace("vllm:", "vllm_").replace("_total{", "{")
    assert read_page(relayed) == VLLM_READ


def test_replicas_are_summed_and_their_share_in_use_is_averaged() -> None:
    text = "".join(
        f'vllm:num_requests_running{{engine="{at}"}} {running}\n'
        f'vllm:kv_cache_usage_perc{{engine="{at}"}} {use}\n'
        f'vllm:num_preemptions_total{{engine="{at}"}} {at + 1}\n'
        for at, running, use in [(0, 3, 0.5), (1, 5, 1.0), (10, 0, 0.0)]
    )
    assert read_page(text) == {"running": 8, "kv_use": 0.5, "preemptions": 14}


def test_the_parts_of_one_engine_are_not_summed() -> None:
    lines = [
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{dp * 2 + tp}",pp_rank="0"}} {10 + dp}\n'
        for dp, tp in itertools.product((0, 1), (1, 0))
    ]
    assert read_page("".join(lines)) == {"running": 21}


def test_an_old_name_is_read_where_the_new_one_is_missing() -> None:
    assert read_page("vllm:gpu_cache_usage_perc 0.5\n") == {"kv_use": 0.5}
    both = "vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n"
    assert read_page(both) == {"kv_use": 0.25}


@pytest.mark.parametrize("text", ["", "\n", "<html>\n<p>vllm</p>", "# TYPE x gauge\nx 1\n", '{"running": 1}'])
def test_a_page_of_something_else(text: str) -> None:
    assert read_page(text) == {}


def test_a_known_series_that_cannot_be_read() -> None:
    with pytest.raises(ValueError):
        read_page("vllm:num_requests_running{engine=0} x\n")


@settings(max_examples=100)
@given(order=st.permutations(VLLM.splitlines()))
def test_the_order_of_lines_does_not_matter(order: list[str]) -> None:
    assert read_page("\n".join(order)) == VLLM_READ


@pytest.mark.parametrize(
    ("base", "first"),
    [
        ("http://h:8000/v1", "http://h:8000/metrics"),
        ("http://h:8000/v1/", "http://h:8000/metrics"),
        ("http://h:8000", "http://h:8000/metrics"),
        ("https://h/proxy/openai/v1beta", "https://h/proxy/openai/metrics"),
        ("https://h/vllm", "https://h/vllm/metrics"),
    ],
)
def test_where_the_page_may_be(base: str, first: str) -> None:
    assert page_urls(base)[0] == first
    assert first.replace("/metrics", "/prometheus/metrics") in page_urls(base)


# --- around a load


def page(running: float, preemptions: float | None = None, more: str = "") -> Canned:
    text = f"vllm:num_requests_running {running}\n{more}"
    if preemptions is not None:
        text += f"vllm:num_preemptions_total {preemptions}\n"
    return Canned(200, dict(PLAIN), text.encode())


def asked(server: CannedServer, more: int, since: int | None = None) -> None:
    """Returns when the page has been asked for so many times more, than now or than it had been then."""
    wanted, limit = (len(server.seen) if since is None else since) + more, time.monotonic() + 10
    while len(server.seen) < wanted:
        assert time.monotonic() < limit
        time.sleep(0.002)


WHERE = "GET /metrics"


def test_a_load_is_watched(serve) -> None:
    server = serve({WHERE: page(1, 5)})
    with EngineMetricsProbe(server.url + "/metrics?key=s3cret", interval_s=0.01) as probe:
        began = time.monotonic_ns()
        assert probe.before() is None
        probe.start()
        asked(server, 3)
        server.answers[WHERE] = page(4, 6)
        asked(server, 3)
        server.answers[WHERE] = page(0, 9)
        seen = probe.stop()
    assert seen is not None
    assert (seen.source, seen.gap) == (server.url + "/metrics", None)
    assert (seen.totals_before, seen.totals_after) == ({"preemptions": 5}, {"preemptions": 9})
    assert seen.grown("preemptions") == 4
    assert set(seen.gauges) == {"running"}
    running = seen.gauges["running"].tolist()
    assert (running[0], running[-1]) == (1, 0)
    assert running.count(1) >= 3
    assert running.count(4) >= 2
    assert (np.diff(seen.at_ns) > 0).all()
    assert began < seen.at_ns[0] < seen.at_ns[-1] < time.monotonic_ns()
    assert len(server.seen) == len(running)  # nothing is asked twice
    assert not [thread for thread in threading.enumerate() if thread.name == "llmbench-metrics"]


def test_the_interval_is_kept_and_the_clock_is_the_given_one(serve) -> None:
    server = serve({WHERE: page(1)})
    ticks = itertools.count(1_000, 10)
    with EngineMetricsProbe(
        server.url + "/metrics", interval_s=60, monotonic_ns=lambda: next(ticks)
    ) as probe:
        probe.before()
        before = len(server.seen)
        probe.start()
        asked(server, 1, since=before)  # it may be there by now, and the next comes in a minute
        seen = probe.stop()
    assert seen is not None
    assert len(seen.at_ns) == 3  # before, at the start, after
    assert seen.at_ns.tolist() == sorted(seen.at_ns.tolist())
    assert seen.at_ns[0] == 1_005
    assert seen.at_ns[-1] < 2_000


def test_a_long_load_is_as_short_in_memory(serve) -> None:
    """Of each page a few numbers are kept: pages of an hour, even compressed, were ten megabytes."""
    server = serve({WHERE: page(1, more=f"# {random.Random(1).randbytes(20_000).hex()}\n")})
    with EngineMetricsProbe(server.url + "/metrics", interval_s=0.001) as probe:
        probe.before()
        tracemalloc.start()
        try:
            probe.start()
            asked(server, 20)
            before, _ = tracemalloc.get_traced_memory()
            asked(server, 100)
            after, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert probe.stop() is not None
    assert after - before < 100 * 10_000  # what the server here keeps of each request is in it


def test_one_probe_for_several_loads(serve) -> None:
    server = serve({WHERE: page(1, 5)})
    with EngineMetricsProbe(server.url + "/metrics", interval_s=0.01) as probe:
        for before, after in ((5, 7), (7, 7)):
            server.answers[WHERE] = page(1, before)
            probe.before()
            probe.start()
            probe.start()  # a second one does nothing
            server.answers[WHERE] = page(1, after)
            seen = probe.stop()
            assert seen is not None
            assert seen.grown("preemptions") == after - before
        assert probe.stop() is None


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({}, "/metrics: HTTP 404"),
        ({WHERE: Canned(501)}, "/metrics: HTTP 501"),
        ({WHERE: Canned(401)}, "/metrics: HTTP 401"),
        (
            {WHERE: Canned(200, dict(HTML), b"<html>hello</html>")},
            "no known series of vLLM",
        ),
        ({WHERE: Canned(200, dict(PLAIN), b"process_cpu_seconds_total 1\n")}, "no known series"),
        ({WHERE: Canned(200, dict(PLAIN), b"vllm:num_requests_running x\n")}, "cannot be read"),
        ({WHERE: Canned(200, dict(PLAIN), b"# \n" * 200_000)}, "more than 512 KiB"),
    ],
)
def test_no_page(serve, answers: dict[str, Canned], reason: str) -> None:
    server = serve(answers)
    with EngineMetricsProbe(page_urls(server.url + "/v1")) as probe:
        told = probe.before()
        assert told is not None
        assert reason in told
        assert told.startswith("no metrics page of the engine: ")
        assert "/prometheus/metrics: HTTP 404" in told
        assert probe.absent == told
        probe.start()
        assert probe.stop() is None
    assert len(server.seen) == 3


def test_nothing_listens() -> None:
    with EngineMetricsProbe("http://127.0.0.1:1/metrics") as probe:
        assert "connection refused" in (probe.before() or "")
        assert probe.stop() is None


def test_the_page_of_tensorrt_llm(serve) -> None:
    """Its /metrics is JSON of another kind."""
    prometheus = Canned(200, dict(PLAIN), TENSORRT.encode())
    server = serve({WHERE: Canned.json([]), "GET /prometheus/metrics": prometheus})
    with EngineMetricsProbe(page_urls(server.url + "/v1")) as probe:
        assert probe.before() is None
        seen = probe.stop()
    assert seen is not None
    assert seen.source == server.url + "/prometheus/metrics"
    assert seen.max_num_seqs == 64


def test_the_key_is_sent_and_never_told(serve) -> None:
    canary = "sk-canary-0123456789"
    access = Access(Credentials({"Authorization": f"Bearer {canary}"}, frozenset({canary}), "LLM_API_KEY"))
    server = serve({})
    with EngineMetricsProbe(server.url + f"/metrics?key={canary}", access) as probe:
        assert canary not in (probe.before() or canary)
    assert server.seen[0].headers["Authorization"] == f"Bearer {canary}"


def test_pages_that_are_missing_in_the_middle(serve) -> None:
    server = serve({WHERE: page(1, 5)})
    with EngineMetricsProbe(server.url + "/metrics", interval_s=0.01) as probe:
        probe.before()
        probe.start()
        asked(server, 2)
        server.answers[WHERE] = Canned(500)
        asked(server, 3)
        server.answers[WHERE] = page(2, 6)
        seen = probe.stop()
    assert seen is not None
    assert "readings of the metrics page are missing" in (seen.gap or "")
    assert "HTTP 500" in (seen.gap or "")
    assert seen.grown("preemptions") == 1
    assert not np.isnan(seen.gauges["running"]).any()


def test_a_page_that_has_gone(serve) -> None:
    server = serve({WHERE: page(1, 5)})
    with EngineMetricsProbe(server.url + "/metrics", interval_s=0.01) as probe:
        probe.before()
        probe.start()
        asked(server, 2)
        server.answers[WHERE] = Canned(200, dict(PLAIN), b"vllm:num_requests_running{ x\n")
        seen = probe.stop()
    assert seen is not None
    assert "no reading after the load: a page that cannot be read" in (seen.gap or "")
    assert (seen.totals_before, seen.totals_after) == ({"preemptions": 5}, {})
    assert seen.grown("preemptions") is None


def test_a_restart_is_told(serve) -> None:
    server = serve({WHERE: page(1, 5)})
    with EngineMetricsProbe(server.url + "/metrics") as probe:
        probe.before()
        server.answers[WHERE] = page(1, 0)
        seen = probe.stop()
    assert seen is not None
    assert "restarted" in (seen.gap or "")
    assert seen.grown("preemptions") is None


def test_a_counter_that_shows_up_when_it_first_counts(serve) -> None:
    server = serve({WHERE: page(1)})
    with EngineMetricsProbe(server.url + "/metrics") as probe:
        probe.before()
        server.answers[WHERE] = page(1, 3)
        seen = probe.stop()
    assert seen is not None
    assert seen.grown("preemptions") == 3
    assert seen.grown("prompt_tokens") is None


def test_a_gauge_that_is_lacking_on_some_pages(serve) -> None:
    server = serve({WHERE: page(1)})
    with EngineMetricsProbe(server.url + "/metrics") as probe:
        probe.before()
        server.answers[WHERE] = page(1, more="vllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc NaN\n")
        seen = probe.stop()
    assert seen is not None
    waiting = seen.gauges["waiting"].tolist()
    assert math.isnan(waiting[0])
    assert waiting[1] == 2
    _, values = seen.gauge("waiting", 0, 2**62) or (None, None)
    assert values is not None
    assert values.tolist() == [2]
    assert np.isnan(seen.gauges["kv_use"]).all()


def test_nothing_is_parsed_while_load_is_running(serve) -> None:
    """A page that cannot be read is only noticed after the run."""
    server = serve({WHERE: page(1, 5)})
    with EngineMetricsProbe(server.url + "/metrics", interval_s=0.01) as probe:
        probe.before()
        server.answers[WHERE] = Canned(200, dict(PLAIN), b"vllm:num_requests_running{ x\n")
        probe.start()
        asked(server, 3)
        server.answers[WHERE] = page(1, 6)
        seen = probe.stop()
    assert seen is not None
    assert "cannot be read" in (seen.gap or "")
    assert seen.totals_after == {"preemptions": 6}


def test_a_series_that_is_declared_is_read_beside_those_that_are_known() -> None:
    own = {"critical_evictions": "engine:late_evictions_total"}
    line = 'engine:late_evictions_total{engine="0"} 3\n'
    assert read_page(line, own) == {"critical_evictions": 3.0}
    assert read_page(VLLM + line, own) == read_page(VLLM) | {"critical_evictions": 3.0}
    assert read_page(VLLM + "vllm:critical_evictions_total 9\n", own) == read_page(VLLM), (
        "not the declared one"
    )
    assert "critical_evictions" not in read_page(VLLM, own), "absence is not zero"


def test_a_declared_series_is_read_by_a_label() -> None:
    own = {"thinking_ended": "engine:thoughts_total{why}"}
    lines = """engine:thoughts_total{engine="0",why="converged"} 5
engine:thoughts_total{engine="1",why="converged"} 2
engine:thoughts_total{engine="0",why="hard cap"} 1
engine:thoughts_total{engine="0"} 9
"""
    assert read_page(lines, own) == {"thinking_ended[converged]": 7.0, "thinking_ended[hard cap]": 1.0}
    many = "".join(f'engine:thoughts_total{{why="request {n}"}} 1\n' for n in range(1000))
    assert len(read_page(many, own)) == 64
    assert read_page(VLLM, own) == read_page(VLLM), "absence is not zero"


def test_a_label_of_a_counter_that_shows_up_began_at_zero(serve) -> None:
    def counted(**ends: int) -> Canned:
        body = "".join(f'thoughts_total{{why="{why}"}} {count}\n' for why, count in ends.items())
        return Canned(200, dict(PLAIN), (VLLM + body).encode())

    server = serve({WHERE: counted(converged=3)})
    with EngineMetricsProbe(
        server.url + "/metrics", declared={"thinking_ended": "thoughts_total{why}"}
    ) as probe:
        probe.before()
        server.answers[WHERE] = counted(converged=10, budget=2)
        seen = probe.stop()
    assert seen is not None
    assert seen.grown_by_label("thinking_ended") == {"converged": 7.0, "budget": 2.0}
