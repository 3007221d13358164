"""What the server says about a reply: timing figures, preemptions, and the instants of its tokens."""

from __future__ import annotations

from typing import Any

import pytest
from wire_events import DONE, NO_CHOICES, ROLE, chat, sse, text, usage

from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.reply import StreamSummary, read_stream
from pytest_llmbench.wire.server_figures import server_figures
from pytest_llmbench.wire.stream import chunks_of

TIMINGS = {"queue_ms": 1.5, "prompt_ms": 20, "preemptions": 2, "preempted_tokens": 300}
TOLD = {
    "queue_wait_ns": 1_500_000,
    "prefill_ns": 20_000_000,
    "preemptions": 2,
    "preempted_tokens": 300,
}


def chat_stream() -> list[Any]:
    return [
        ROLE,
        chat({"content": "Hé"}, token_times_ns=[1_000_000_007]),
        chat({"content": " llo"}, token_times_ns=[1_000_000_107, 1_000_000_207]),
        chat({"content": ""}, token_times_ns=[1_000_000_307]),
        chat({}, "stop"),
        {**NO_CHOICES, **usage(9, 4), "timings": TIMINGS},
        DONE,
    ]


def completions_stream() -> list[Any]:
    return [
        text("a", token_times_ns=[5]),
        text("b", token_times_ns=[6]),
        text("", "length", **usage(3, 2), timings=TIMINGS),
        DONE,
    ]


def read(reads: list[tuple[bytes, int]], api: str) -> StreamSummary:
    return read_stream(list(chunks_of(reads, dialect(api))))


def said(summary: StreamSummary) -> dict[str, Any]:
    names = [*TOLD, "server_timings", "server_token_ns", "output_tokens", "text", "outcome"]
    return {name: getattr(summary, name) for name in names}


@pytest.mark.parametrize(
    ("events", "api", "instants"),
    [
        (chat_stream(), "chat", [1_000_000_007, 1_000_000_107, 1_000_000_207, 1_000_000_307]),
        (completions_stream(), "completions", [5, 6]),
    ],
    ids=["chat", "completions"],
)
@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n"], ids=["LF", "CRLF"])
def test_the_same_wherever_a_read_ends(events, api, instants, end):
    body = sse(*events, end=end)
    whole = said(read([(body, 1)], api))
    assert {name: whole[name] for name in TOLD} == TOLD
    assert whole["server_token_ns"] == instants
    assert whole["server_timings"] == TIMINGS  # no list among the figures
    assert (whole["output_tokens"], whole["outcome"]) == (len(instants), Outcome.OK)
    for cut in range(1, len(body)):
        assert said(read([(body[:cut], 1), (body[cut:], 2)], api)) == whole
    byte_by_byte = [(body[at : at + 1], at) for at in range(len(body))]
    assert said(read(byte_by_byte, api)) == whole


def test_on_the_finish_event_where_there_is_no_usage():
    body = sse(chat({"content": "a"}), chat({}, "stop", timings={"prompt_ms": 3.25}), DONE)
    summary = read([(body, 1)], "chat")
    assert (summary.prefill_ns, summary.queue_wait_ns, summary.preemptions) == (3_250_000, None, None)


def test_nothing_said_is_nothing_known():
    summary = read([(sse(chat({"content": "a"}), chat({}, "stop"), DONE), 1)], "chat")
    assert (summary.server_timings, summary.server_token_ns) == ({}, ())
    assert [getattr(summary, name) for name in TOLD] == [None] * 4


def timed(**figures: Any) -> Chunk:
    return Chunk(1, 0, server_timings=figures)


def test_the_last_word_counts():
    figures = server_figures([timed(prompt_ms=1, preemptions=0), timed(prompt_ms=2)])
    assert (figures["prefill_ns"], figures["preemptions"]) == (2_000_000, 0)


@pytest.mark.parametrize(
    ("told", "known"), [(2_000_000_001, 2_000_000_001), (0, 0), (-1, None), (1e30, None)]
)
def test_ollama_s_loading_of_the_model(told, known):
    assert server_figures([timed(load_duration=told)])["model_load_ns"] == known


@pytest.mark.parametrize(
    ("figures", "prefill_ns", "generation_ns"),
    [
        ({"prompt_ms": 50, "predicted_ms": 200.5, "predicted_n": 9}, 50_000_000, 200_500_000),
        ({"time_to_first_token_ms": 50, "generation_time_ms": 200}, 50_000_000, 200_000_000),
        ({"prompt_eval_duration": 5_000, "eval_duration": 7_000}, 5_000, 7_000),
        (
            {"prompt_tokens": 100, "prompt_tps": 400, "generation_tokens": 30, "generation_tps": 60.0},
            250_000_000,
            500_000_000,
        ),
        ({"completion_tokens": 30, "decode_throughput": 60.0}, None, 500_000_000),
        ({"prompt_tokens": 100, "prompt_tps": 0, "generation_tps": 60.0}, None, None),
        (
            {"prompt_tokens": 100, "prompt_tps": -1, "generation_tokens": 1, "generation_tps": 1e-300},
            None,
            None,
        ),
    ],
    ids=["llama.cpp", "vLLM", "Ollama", "exo", "SGLang", "no rate", "no sense"],
)
def test_prefill_and_generation_under_the_names_of_each_engine(figures, prefill_ns, generation_ns):
    found = server_figures([timed(**figures)])
    assert (found["prefill_ns"], found["generation_ns"]) == (prefill_ns, generation_ns)


@pytest.mark.parametrize(("hit", "prefill_ns"), [("none", 250_000_000), ("exact", None), ("partial", None)])
def test_exo_s_figures_of_a_reply(hit, prefill_ns):
    """A prompt that was in the cache has the rate of when it came there."""
    stats = {"prompt_tokens": 100, "prompt_tps": 400, "generation_tokens": 30, "generation_tps": 60.0}
    body = sse(
        chat({"content": "a"}), chat({}, "stop", generation_stats={**stats, "prefix_cache_hit": hit}), DONE
    )
    summary = read([(body, 1)], "chat")
    assert (summary.prefill_ns, summary.generation_ns) == (prefill_ns, 500_000_000)
    assert summary.server_timings["generation_tps"] == 60.0


def test_sglang_s_rate_of_decoding():
    told = {"prompt_tokens": 3, "completion_tokens": 30, "finish_reason": {"type": "stop"}}
    body = sse({"text": "a", "meta_info": {**told, "decode_throughput": 60.0}}, DONE)
    assert read([(body, 1)], "sglang-generate").generation_ns == 500_000_000


def test_vllm_s_name_for_the_queue():
    assert server_figures([timed(queue_time_ms=0)])["queue_wait_ns"] == 0


@pytest.mark.parametrize("value", [-1, "5", True, None, float("nan"), float("inf"), 1e300, 10**400, [5], {}])
def test_what_is_no_figure_is_not_known(value):
    names = ("queue_ms", "prompt_ms", "preemptions", "preempted_tokens")
    figures = server_figures([timed(**dict.fromkeys(names, value))])
    assert [figures[name] for name in TOLD] == [None] * 4


def test_half_a_preemption_is_none():
    assert server_figures([timed(preemptions=0.5)])["preemptions"] is None


@pytest.mark.parametrize("broken", [None, 7, "7", {}, [1.5], [True], ["7"], [-1], [2**63], [[7]]])
def test_instants_are_all_known_or_none(broken):
    """Half of the instants would be taken for those of other tokens."""
    chunks = [timed(token_times_ns=[1, 2]), timed(token_times_ns=broken), timed(token_times_ns=[3])]
    assert list(server_figures(chunks)["server_token_ns"]) == []


def test_events_without_instants_do_not_matter():
    chunks = [timed(token_times_ns=[1, 2]), Chunk(2, 1), timed(prompt_ms=1), timed(token_times_ns=[3])]
    assert list(server_figures(chunks)["server_token_ns"]) == [1, 2, 3]


def test_into_the_record_and_its_columns():
    records = []
    for at, body in enumerate([sse(*chat_stream()), sse(chat({"content": "a"}), chat({}, "stop"), DONE)]):
        record = RequestRecord(at, f"r-{at}", Phase.MEASURE)
        read([(body, 1)], "chat").fill(record)
        records.append(record)
    columns = Records.from_rows(records)
    assert columns.queue_wait_ns.tolist() == [1_500_000, -1]
    assert columns.prefill_ns.tolist() == [20_000_000, -1]
    assert (columns.preemptions.tolist(), columns.preempted_tokens.tolist()) == ([2, -1], [300, -1])
    assert columns.server_token_offsets.tolist() == [0, 4, 4]


@pytest.mark.parametrize(
    ("details", "timings", "cached"),
    [
        ({}, {"cache_n": 40, "prompt_n": 2}, 40),
        ({}, {"cache_n": 0}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 32}}, {"cache_n": 40}, 32),
        ({}, {"prompt_n": 42}, None),
        ({}, {"cache_n": -1}, None),
    ],
)
def test_what_a_cache_served_is_in_the_usage_or_in_llama_cpp_s_timings(details, timings, cached):
    counted = usage(42, 1)
    counted["usage"] |= details
    events = [ROLE, chat({"content": "a"}), chat({}, "stop"), {**NO_CHOICES, **counted, "timings": timings}]
    assert read([(sse(*events, DONE), 1)], "chat").cached_tokens == cached


@pytest.mark.parametrize(
    ("api", "event"),
    [
        ("chat", {**NO_CHOICES, **usage(9, 4), "timings": {"draft_n": 12, "draft_n_accepted": 9}}),
        (
            "chat",
            {
                **NO_CHOICES,
                **usage(9, 4),
                "metrics": {
                    "speculative_decoding": {
                        "num_spec_steps": 4, "num_draft_tokens": 12, "num_accepted_draft_tokens": 9,
                        "acceptance_histogram": [1, 0, 0, 3],
                    }
                },
            },
        ),
    ],
)  # fmt: skip
def test_what_was_guessed_and_accepted(api, event):
    """llama.cpp's names, and vLLM's; a histogram is no figure."""
    summary = read([(sse(ROLE, chat({"content": "a"}), chat({}, "stop"), event, DONE), 1)], api)
    assert (summary.draft_tokens, summary.accepted_draft_tokens) == (12, 9)
    assert set(summary.server_timings.values()) <= {12.0, 9.0, 4.0}


def test_what_sglang_guessed_and_had_accepted():
    meta = {"completion_tokens": 4, "spec_draft_token_num": 12, "spec_accept_token_num": 9}
    event = {"text": "a", "index": 0, "meta_info": {**meta, "finish_reason": {"type": "stop"}}}
    summary = read([(sse(event, DONE), 1)], "sglang-generate")
    assert (summary.draft_tokens, summary.accepted_draft_tokens) == (12, 9)


@pytest.mark.parametrize(
    ("per_step", "accepted"), [(1.0, 0), (2.5, 6), (2.4999998, 6), (0.0, None), ("x", None), (0.5, None)]
)
def test_what_tensorrt_had_accepted(per_step, accepted):
    """Ten tokens in four iterations: six more than one each. Of a chunk before the last nothing is read."""
    event = chat({"content": "a"})
    event["choices"][0]["avg_decoded_tokens_per_iter"] = 3.0
    last = chat({}, "stop")
    last["choices"][0]["avg_decoded_tokens_per_iter"] = per_step
    summary = read([(sse(ROLE, event, last, {**NO_CHOICES, **usage(5, 10)}, DONE), 1)], "openai-chat")
    assert (summary.draft_tokens, summary.accepted_draft_tokens) == (None, accepted)
