"""What a step costs: attention within a prompt, prompts whole or in chunks, and where the cost shows."""

from __future__ import annotations

from engine_runs import A, B, C, D, config, drive_at_once, us

from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.sequence import EngineSequence
from pytest_llmbench.simulator.scenario import PRESETS


def ttft_ns(engine: Engine, prompt_tokens: int) -> int:
    sequence = EngineSequence("r", prompt_tokens, 1)
    return drive_at_once(engine, [sequence]).token_ns[sequence][0]


def test_attention_grows_with_the_square_of_the_prompt() -> None:
    for prompt in (1, 320, 2000):
        pairs = prompt * (prompt + 1) / 2
        assert ttft_ns(Engine(config(attention_ns_per_pair=2.5)), prompt) == us(
            A + B * prompt + 0.0025 * pairs
        )


def test_attention_costs_the_same_in_however_many_chunks() -> None:
    def cost(chunk: int) -> int:
        figures = {"max_num_seqs": 1, "max_num_batched_tokens": chunk, "kv_us_per_token": 0}
        sequences = [EngineSequence("r", 1000, 1) for _ in range(2)]
        with_attention = drive_at_once(
            Engine(config(attention_ns_per_pair=100, **figures)), sequences[:1]
        ).end_ns
        return with_attention - drive_at_once(Engine(config(**figures)), sequences[1:]).end_ns

    assert cost(1000) == cost(100) == cost(7) == us(0.1 * 1000 * 1001 / 2)


def test_long_contexts_scale_above_linear_in_the_presets_of_products() -> None:
    config_8b = PRESETS["h100-8b"]
    short, long = (ttft_ns(Engine(config_8b), tokens) / tokens for tokens in (8192, 130_000))
    assert long > 1.5 * short


def test_without_chunks_a_prompt_waits_for_a_step_that_holds_it_whole() -> None:
    figures = {"max_num_batched_tokens": 100, "max_num_seqs": 4, "context_limit_tokens": 100}
    first, second = EngineSequence("first", 60, 3), EngineSequence("second", 60, 3)
    run = drive_at_once(Engine(config(chunked_prefill="off", **figures)), [first, second])
    assert [step.prefill_tokens for step in run.steps] == [60, 60, 0, 0]
    assert run.steps[1].duration_ns == us(A + B * 60 + C + D * 61)

    chunked = drive_at_once(Engine(config(**figures)), [EngineSequence("", 60, 3), EngineSequence("", 60, 3)])
    assert [step.prefill_tokens for step in chunked.steps] == [100, 20, 0, 0]


def test_unchunked_prompts_are_fitted_by_what_the_prefix_cache_leaves() -> None:
    engine = Engine(
        config(
            chunked_prefill="off",
            prefix_caching="on",
            max_num_batched_tokens=100,
            max_num_seqs=2,
            context_limit_tokens=100,
        )
    )
    drive_at_once(engine, [EngineSequence("warm", 97, 1, token_ids=range(97))])
    pair = [EngineSequence(name, 97, 1, token_ids=range(97)) for name in "ab"]
    run = drive_at_once(engine, pair)
    assert [step.prefill_tokens for step in run.steps] == [2]
