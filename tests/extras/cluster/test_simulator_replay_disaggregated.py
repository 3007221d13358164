"""Prefill and decode on engines of their own: closed forms of one request, nothing lost in between."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from replayed import CHAT, assert_all_is_cached, fixed, replay

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop, SessionSlots
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES, Records
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

BLOCK = 16
ROUND_TRIP_NS = 50_000
# A step takes 10 ms whatever it does; a block of 16 KiB a token goes over in 1 ms, after 2 ms.
PLAIN = (
    "fast?step_base_us=10000&prefill_us_per_token=0&decode_us_per_sequence=0&kv_us_per_token=0"
    "&kv_transfer_gb_per_s=0.262144&kv_transfer_latency_us=2000"
)


def one(preset: str, prompt: int, output: int) -> Records:
    return replay(preset, LoadPlan("one", fixed(prompt, output), ClosedLoop(1), 1, seed=1)).records


def ttft_ns(records: Records) -> list[int]:
    found: list[int] = (records.first_content_ns - records.submitted_ns).tolist()
    return found


@pytest.mark.parametrize("prompt", [1, 100, 1600, 8000])
def test_ttft_of_an_idle_system_is_prefill_transfer_and_a_step_of_decode(prompt: int) -> None:
    """Prefill in chunks of 2048 tokens; the last prompt token is computed again where it is decoded."""
    preset = f"{PLAIN}&prefill_workers=1&decode_workers=1"
    records = one(preset, prompt, 5)
    prefill_ms, transfer_ms = 10 * -(-prompt // 2048), 2 + -(-prompt // BLOCK)
    expected_ns = (prefill_ms + transfer_ms + 10) * 1_000_000
    assert ttft_ns(records) == [expected_ns + ROUND_TRIP_NS]
    assert np.diff(records.chunk_ns).tolist() == [10_000_000] * 4
    assert (records.queue_wait_ns.tolist(), records.prefill_ns.tolist()) == ([0], [expected_ns])


@pytest.mark.parametrize("preset", ["h100-70b-tp4", "h100-8b", "fast"])
def test_the_figures_of_a_preset_add_up(preset: str) -> None:
    scenario = parse_scenario(f"{preset}?prefill_workers=2&decode_workers=2")
    config, prompt = scenario.engine, 2000
    records = one(f"{preset}?prefill_workers=2&decode_workers=2", prompt, 3)
    bytes_sent = prompt * config.kv_kib_per_token * 1024
    transfer_ns = round(500_000 + bytes_sent / (24e9 * config.accelerator_count) * 1e9)
    prefill_ns = config.step_ns(prompt, 0, 0, prompt * (prompt + 1) // 2)
    first_ns = config.step_ns(1, 0, prompt - 1, prompt)
    assert ttft_ns(records) == [prefill_ns + transfer_ns + first_ns + ROUND_TRIP_NS]
    further = [config.step_ns(0, 1, prompt + 1 + token) for token in range(2)]
    assert np.diff(records.chunk_ns).tolist() == further


def test_a_long_prompt_does_not_hold_up_the_tokens_of_others() -> None:
    """What the whole is for: with one engine for both, a prompt of 8000 tokens is in the steps of all."""
    mixed = SyntheticWorkload("mixed", Uniform(4000, 8000), Fixed(60))
    plan = LoadPlan("mixed", mixed, OpenLoop(2.0), 40, seed=1)

    def worst_ms(options: str) -> float:
        records = replay(f"h100-8b?{options}", plan).records
        assert records.ok.all()
        return float(np.diff(records.chunk_ns.reshape(40, 60), axis=1).max()) / 1e6

    assert worst_ms("prefill_workers=1&decode_workers=1") < 15 < 200 < worst_ms("replicas=2")


@pytest.mark.parametrize(
    "options", ["prefill_workers=1&decode_workers=3", "prefill_workers=3&decode_workers=2&router=prefix"]
)
def test_cached_tokens_by_turn_equal_the_closed_form(options: str) -> None:
    plan = LoadPlan("chats", CHAT, SessionSlots(9), turns_of(CHAT, 40, 3), seed=3)
    seen = replay(f"fast?prefix_caching=true&{options}", plan)
    records, readings = seen.records, seen.engine
    assert readings is not None
    assert_all_is_cached(records, CHAT, 3)
    again = len(records)  # the last prompt token of each, where it is decoded
    assert readings.grown("prompt_tokens") == (records.input_tokens - records.cached_tokens).sum() + again
    assert readings.grown("prefix_queries_tokens") == records.input_tokens.sum()
    assert readings.grown("prefix_hits_tokens") == records.cached_tokens.sum()
    assert readings.grown("generated_tokens") == records.output_tokens.sum()
    assert readings.grown("kv_transfer_count") == len(records)


def test_what_the_decode_worker_has_already_is_not_sent_again() -> None:
    """The same prompt twice: at first all its hundred blocks, then the one that is not full up to the end."""

    def seconds(options: str) -> float:
        plan = LoadPlan("same", same, ClosedLoop(1), 2, seed=1)
        readings = replay(f"{PLAIN}&prefill_workers=1&decode_workers=1{options}", plan).engine
        assert readings is not None
        assert readings.grown("kv_transfer_count") == 2
        grown = readings.grown("kv_transfer_s")
        assert grown is not None
        return grown

    same = SessionWorkload("same", Fixed(1), Fixed(1), Fixed(2), system_tokens=1599)
    assert seconds("") == pytest.approx(2 * 0.102)
    assert seconds("&prefix_caching=on") == pytest.approx(0.102 + 0.003)


def test_blocks_are_held_where_they_come_from_until_they_have_been_sent() -> None:
    """100 of the 33024 blocks: on the prefill worker for its step and the transfer, on the other from the
    beginning of the transfer to the end of the output; samples are a quarter of a second apart."""
    slow = "&kv_transfer_latency_us=900000&prefill_workers=1&decode_workers=1"
    preset = PLAIN.replace("&kv_transfer_latency_us=2000", slow)
    seen = replay(preset, LoadPlan("one", fixed(1600, 50), ClosedLoop(1), 1, seed=1))
    readings = seen.engine
    assert readings is not None
    held = (readings.gauges["kv_use"] * 2 * 33024).round().tolist()
    # Prefill until 0.01 s, transfer until 1.01 s, 50 steps until 1.51 s.
    assert held == [0, 200, 200, 200, 200, 102, 103]
    assert readings.gauges["waiting"].tolist() == [0, 1, 1, 1, 1, 0, 0]
    assert readings.gauges["running"].tolist() == [0, 0, 0, 0, 0, 1, 1]


def test_prompts_wait_until_the_decode_worker_has_room() -> None:
    """A decode worker whose cache holds one sequence at a time: transfers begin one after another."""
    options = "kv_blocks=102&context_limit_tokens=1632&prefill_workers=1&decode_workers=1"
    plan = LoadPlan("three", fixed(1600, 20), ClosedLoop(3), 3, seed=1)
    records = replay(f"{PLAIN}&{options}", plan).records
    assert records.ok.all()
    first_ms = sorted(np.round((records.first_content_ns - records.submitted_ns) / 1e6).tolist())
    # 10 ms of prefill, 102 of transfer, 200 of decoding, of which the next waits for the last two parts.
    assert first_ms[0] == 122
    assert [later - before for before, later in pairwise(first_ms)] == [302, 302]


def test_embeddings_need_the_prefill_workers_alone() -> None:
    scenario = parse_scenario(f"{PLAIN}&prefill_workers=2&decode_workers=1")
    engine = ReplayEngine(scenario, generates=False)
    seen = engine.run(LoadPlan("embed", fixed(100, 1), ClosedLoop(2), 8, seed=1))
    assert seen.records.ok.all()
    assert set((seen.records.finished_ns - seen.records.submitted_ns).tolist()) == {10_050_000}
    assert seen.engine is not None
    assert seen.engine.totals_after["kv_transfer_count"] == 0


def test_what_is_apart_is_disclosed() -> None:
    engine = ReplayEngine(parse_scenario("h100-70b-tp4?prefill_workers=1&decode_workers=3"))
    facts = engine.disclosure()
    assert facts.value("sut.replicas") == 4
    assert facts.value("sut.hardware.accelerator_count") == 16
    assert facts.value("sut.router") == "round_robin to prefill, least_loaded to decode"
    assert facts.value("sut.boundary") == "application_gateway"
    assert "KV transfer at 24 GB/s per accelerator and 500 us" in facts.value("sut.components")
    assert "1 prefill and 3 decode workers" in str(engine.note)
    versions = {
        ReplayEngine(parse_scenario(f"fast{options}")).disclosure().value("sut.model.version")
        for options in ("", "?prefill_workers=1&decode_workers=1", "?prefill_workers=1&decode_workers=2")
    }
    assert len(versions) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("prefill_workers=2", "prefill_workers is 2 and decode_workers 0: name both, or none"),
        ("prefill_workers=1&decode_workers=1&replicas=2", "replicas is 2, but prefill_workers and"),
        ("prefill_workers=1&decode_workers=2&router=prefix", "there is one prefill worker"),
        ("prefill_workers=2&decode_workers=1&decode_router=prefix", "there is one decode worker"),
        ("replicas=2&decode_router=prefix", "there is no decode worker"),
        ("prefill_workers=257&decode_workers=1", "it must be from 0 to 256"),
        ("prefill_workers=1&decode_workers=1&kv_transfer_gb_per_s=0", "it must be above 0"),
        ("prefill_workers=1&decode_workers=1&kv_transfer_latency_us=-1", "it must be 0 or more"),
        ("kv_transfer_gb_per_s=5", "only prefill_workers have anything to transfer"),
    ],
)
def test_what_cannot_be_is_refused(options: str, said: str) -> None:
    with pytest.raises(SuiteError, match=said):
        parse_scenario(f"fast?{options}")


def test_blocks_of_a_request_that_is_given_up_go_to_the_next_at_once() -> None:
    """The decode worker has blocks for one request. The first is given up after 200 ms, seen as a step ends
    at 202 ms; then the second comes over in 102 ms, and its first token takes a step."""
    load = OpenLoop(1.0, "trace", offsets_ns=(0, 150_000_000))
    deadlines = Deadlines(total_s=0.2)
    plan = LoadPlan("given up", fixed(1600, 30), load, 2, seed=1, deadlines=deadlines)
    records = replay(
        f"{PLAIN}&prefill_workers=1&decode_workers=1&kv_blocks=102&context_limit_tokens=1632", plan
    )
    first, second = records.records.first_content_ns - records.started_ns
    assert second - ROUND_TRIP_NS == first - ROUND_TRIP_NS + 192_000_000
    assert records.records.outcome.tolist() == [OUTCOMES.index(Outcome.TIMEOUT)] * 2
