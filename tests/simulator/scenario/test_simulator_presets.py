"""Presets, their overrides, and the mistakes in them."""

from __future__ import annotations

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.simulator.scenario import PRESETS, parse_scenario


def test_every_preset_says_where_its_figures_come_from() -> None:
    assert {"fast", "h100-8b", "h100-70b-tp4", "cpu-laptop"} <= set(PRESETS)
    for name, config in PRESETS.items():
        assert config.name == name
        assert len(config.provenance) > 100
        assert parse_scenario(name).engine == config


def test_fast_is_as_fast_as_it_says() -> None:
    fast = PRESETS["fast"]
    assert 4e6 <= fast.step_ns(320, 0, 0) <= 5e6
    assert 1.1e6 <= fast.step_ns(0, 1, 400) <= 1.3e6


def test_overrides_replace_figures_and_nothing_else() -> None:
    config = parse_scenario("fast?max_num_seqs=7&step_base_us=12.5&eos_mean_tokens=30").engine
    assert (config.max_num_seqs, config.step_base_us, config.eos_mean_tokens) == (7, 12.5, 30.0)
    assert config.prefill_us_per_token == PRESETS["fast"].prefill_us_per_token
    assert config.model == "sim-fast"
    assert config.figures_sha256 != PRESETS["fast"].figures_sha256


def test_no_name_is_the_default_preset_and_none_switches_the_length_law_off() -> None:
    assert parse_scenario("").engine == PRESETS["fast"]
    assert parse_scenario("?seed=4").engine.seed == 4
    assert parse_scenario("fast?eos_mean_tokens=none").engine == PRESETS["fast"]


def test_all_mistakes_are_listed_together() -> None:
    with pytest.raises(SuiteError) as caught:
        parse_scenario("fats?max_num_seq=3&seed=x&seed=2&what&step_base_us=nan&max_num_seqs=0")
    message = str(caught.value)
    for part in (
        "7 mistakes",
        "unknown preset 'fats'; did you mean 'fast'?",
        "unknown option 'max_num_seq'; did you mean 'max_num_seqs'?",
        "seed is 'x'; it must be a whole number",
        "option 'seed' is given twice",
        "'what' is not of the form option=value",
        "step_base_us is nan; it must be above 0",
        "max_num_seqs is 0; it must be 1 or more",
        *PRESETS,
    ):
        assert part in message


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("step_base_us=0", "step_base_us"),
        ("step_base_us=-1", "step_base_us"),
        ("prefill_us_per_token=inf", "prefill_us_per_token"),
        ("kv_us_per_token=-0.1", "kv_us_per_token"),
        ("max_num_batched_tokens=10", "below max_num_seqs"),
        ("context_limit_tokens=1", "context_limit_tokens"),
        ("eos_mean_tokens=0.5", "eos_mean_tokens"),
        ("accelerator_memory_gib=0", "accelerator_memory_gib"),
        ("max_num_seqs=3.5", "whole number"),
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
    ],
)
def test_impossible_figures_are_refused(options: str, named: str) -> None:
    with pytest.raises(SuiteError, match=named):
        parse_scenario(f"fast?{options}")


def test_switches_words_and_absent_figures_are_read() -> None:
    config = parse_scenario(
        "fast?prefix_caching=on&chunked_prefill=true&preemption=swap&max_waiting=7"
    ).engine
    assert (config.prefix_caching, config.chunked_prefill) == (True, True)
    assert (config.preemption, config.max_waiting) == ("swap", 7)
    assert parse_scenario("fast?max_waiting=none&think_mean_tokens=none").engine == PRESETS["fast"]


def test_the_larger_model_is_slower_at_everything_but_reading_the_cache() -> None:
    small, large = PRESETS["h100-8b"], PRESETS["h100-70b-tp4"]
    assert large.step_ns(0, 1, 0) > 2 * small.step_ns(0, 1, 0)
    assert large.step_ns(1000, 0, 0) > 2 * small.step_ns(1000, 0, 0)
    assert large.attention_ns_per_pair > small.attention_ns_per_pair
    assert large.accelerator_count == 4


def test_every_preset_fits_its_memory_with_room_for_several_contexts() -> None:
    for config in PRESETS.values():
        tokens = config.kv_blocks * config.kv_block_tokens
        cache_gib = tokens * config.kv_kib_per_token / 2**20
        used = (config.weights_gib + cache_gib) / (config.accelerator_memory_gib * config.accelerator_count)
        assert used < 0.95
        assert tokens >= 2 * config.context_limit_tokens
