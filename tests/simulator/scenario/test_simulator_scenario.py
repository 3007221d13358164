"""Scenarios as text."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.registry import names
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.engine.faults import FaultOptions, StreamOptions
from pytest_llmbench.simulator.scenario import (
    OPTIONS,
    PARTS,
    PRESETS,
    Scenario,
    option_meanings,
    parse_scenario,
)


def test_a_preset_alone_has_plain_streams_and_no_faults() -> None:
    assert parse_scenario("h100-8b") == Scenario(PRESETS["h100-8b"], StreamOptions(), FaultOptions())
    assert parse_scenario("").engine.name == "fast"


def test_options_of_all_parts_in_one_string() -> None:
    found = parse_scenario(
        "h100-8b?max_num_seqs=64&fault=reset,stall&fault_rate=0.1&usage=finish&done_marker=false&seed=7"
    )
    assert (found.engine.max_num_seqs, found.engine.seed) == (64, 7)
    assert found.faults == FaultOptions(fault=("reset", "stall"), fault_rate=0.1)
    assert found.stream == StreamOptions(usage="finish", done_marker=False)
    assert found.deployment == Deployment()


def test_no_name_belongs_to_two_parts() -> None:
    assert not set(OPTIONS) & set(names("deployments"))
    assert len(set(OPTIONS)) == len(OPTIONS)
    assert [*PARTS, "deployment"] == [each.name for each in fields(Scenario)]


def test_every_mistake_of_every_part_is_said_at_once() -> None:
    with pytest.raises(SuiteError) as caught:
        parse_scenario(
            "fst?max_num_seqs=none&max_num_sq=3&fault=rest&fault_rate=2&usage=finsh&done_marker=yes"
            "&blank_every=-1&seed=1&seed=2&tokens_per_chunk=x&step_base_us=nan&loose"
        )
    text = str(caught.value)
    for said in (
        "unknown preset 'fst'; did you mean 'fast'?",
        "max_num_seqs is 'none'",
        "unknown option 'max_num_sq'; did you mean 'max_num_seqs'?",
        "step_base_us is nan; it must be above 0",
        "did you mean 'reset'",
        "fault_rate is 2",
        "did you mean 'finish'",
        "done_marker is 'yes'; it must be true or false",
        "blank_every is -1",
        "'seed' is given twice",
        "tokens_per_chunk is 'x'; it must be a whole number",
        "'loose' is not of the form option=value",
        *PRESETS,
    ):
        assert said in text
    assert "12 mistakes" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("fault_rate=nan", "fault_rate"),
        ("fault_status=200", "from 400 to 599"),
        ("full_status=500", "429 or 503"),
        ("stall_ms=-1", "stall_ms"),
        ("stall_ms=inf", "stall_ms"),
        ("huge_line_mib=1000", "at most 256"),
        ("fault_after_tokens=-1", "fault_after_tokens"),
        ("acceptance=1.5", "from 0 to 1"),
        ("comment_ms=nan", "comment_ms"),
        ("tokens_per_chunk=0", "1 or more"),
        ("tokens_per_chunk=2&speculative_tokens=2", "choose one"),
        ("events_per_write=2&writes_per_event=2", "choose one"),
        ("step_base_us=0", "step_base_us"),
        ("step_base_us=-1", "step_base_us"),
        ("prefill_us_per_token=inf", "prefill_us_per_token"),
        ("kv_us_per_token=-0.1", "kv_us_per_token"),
        ("max_num_batched_tokens=10", "below max_num_seqs"),
        ("context_limit_tokens=1", "context_limit_tokens"),
        ("eos_mean_tokens=0.5", "eos_mean_tokens"),
        ("accelerator_memory_gib=0", "accelerator_memory_gib"),
        ("max_num_seqs=3.5", "whole number"),
        ("max_num_seqs=0", "max_num_seqs is 0; it must be 1 or more"),
        ("seed=1&seed=2", "given twice"),
        ("provenance=mine", "unknown option"),
        ("seed=", "seed is ''"),
        ("kv_blocks=0", "kv_blocks is 0; it must be 1 or more"),
        ("kv_block_tokens=0", "kv_block_tokens is 0"),
        ("kv_blocks=100", "holds 1600 tokens, less than one sequence of context_limit_tokens .131584"),
        ("kv_blocks=100000", "4 GiB of weights and 24.4 GiB of KV cache .* exceed the 16 GiB"),
        ("weights_gib=17", "17 GiB of weights"),
        ("accelerator_count=0", "accelerator_count"),
        ("attention_ns_per_pair=-1", "attention_ns_per_pair"),
        ("prefix_caching=maybe", "on or off"),
        ("preemption=none", "one of recompute, swap, off"),
        ("preemption_victim=oldest", "one of latest, lowest_priority, largest, smallest"),
        ("out_of_memory=host", "one of sequence, engine"),
        ("input_filter=on", "one of absent, disabled, enabled"),
        ("input_refusal_share=1.1", "a share from 0 to 1"),
        ("output_filter_window_tokens=0", "output_filter_window_tokens"),
        ("think_spread=-1", "think_spread"),
        ("think_mean_tokens=0", "think_mean_tokens is 0; it must be 1 or more, or none"),
        ("max_think_seqs=2", "only scheduler=phase"),
        ("output_kv_share=0.3", "only scheduler=phase"),
        ("scheduler=phase&output_kv_share=1", "below 1"),
        ("scheduler=phase&output_kv_share=0.99", "leaves 330 of 33024 blocks"),
        ("max_waiting=0", "max_waiting is 0; it must be 1 or more, or none"),
        ("scheduler=fifo", "one of fcfs, priority, shortest, phase"),
        ("think_budget_tokens=100", "does not think"),
        ("think_hard_cap_tokens=100", "does not think"),
        ("max_adapters=2", "adapters is 0"),
        ("chunked_prefill=off", r"max_num_batched_tokens \(2048\) is below context_limit_tokens \(1"),
        ("step_w=-1", r"step_w=-1.: step_w is -1; it must be 0 or more\n"),
        ("step_w=3", "step_w is 3.0, but without idle_w nothing is known of power"),
        ("power_fault=silent", "power_fault is silent, but without idle_w"),
        ("idle_w=-1", "idle_w is -1; it must be 0 or more"),
        ("idle_w=1&decode_mj_per_token=nan", "decode_mj_per_token is nan; it must be 0 or more"),
        (
            "idle_w=1&power_fault=gone",
            "it must be one of counter_resets, counter_stands, device_gone, silent",
        ),
    ],
)
def test_what_cannot_be_or_would_do_nothing_is_refused(options: str, said: str) -> None:
    with pytest.raises(SuiteError, match=said):
        parse_scenario(f"fast?{options}")


@pytest.mark.parametrize("part", [EngineConfig, StreamOptions, FaultOptions])
def test_every_option_has_a_meaning(part: type) -> None:
    meanings = option_meanings(part)
    assert set(meanings) == {each.name for each in fields(part)}
    assert all(meaning and "\n" not in meaning and "``" not in meaning for meaning in meanings.values())


def test_a_status_of_a_full_queue_that_is_no_number_is_one_mistake() -> None:
    wrong: Any = None
    assert FaultOptions(full_status=wrong).mistakes() == ["full_status is None; it must be 429 or 503"]
