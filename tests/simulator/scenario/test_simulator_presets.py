"""Presets, their overrides, and the mistakes in them."""

from __future__ import annotations

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
