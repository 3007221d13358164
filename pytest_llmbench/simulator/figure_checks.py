"""Which figures of an engine are impossible, each said in a sentence with the figure in it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

_ABOVE_ZERO = ("step_base_us", "accelerator_memory_gib", "kv_kib_per_token")
_ZERO_OR_MORE = (
    "prefill_us_per_token",
    "decode_us_per_sequence",
    "kv_us_per_token",
    "attention_ns_per_pair",
    "weights_gib",
    "swap_us_per_block",
    "recovery_ms",
    "think_spread",
    "input_filter_us",
    "input_filter_us_per_token",
    "output_filter_us",
    "output_filter_us_per_token",
)
_SHARES = ("overthinking_detected", "input_refusal_share", "output_refusal_share")
_LEAST = {
    "max_num_seqs": 1,
    "context_limit_tokens": 2,
    "default_max_tokens": 1,
    "seed": 0,
    "accelerator_count": 1,
    "kv_block_tokens": 1,
    "kv_blocks": 1,
    "output_filter_window_tokens": 1,
}
_LEAST_OR_NONE = {
    "eos_mean_tokens": 1,
    "max_waiting": 1,
    "max_think_seqs": 1,
    "think_mean_tokens": 1,
    "think_budget_tokens": 1,
    "think_hard_cap_tokens": 1,
}


def impossible_figures(figures: Mapping[str, Any]) -> list[str]:
    """What is wrong with the fields of an EngineConfig, by name; empty if nothing is."""
    mistakes = list(_out_of_range(figures))
    if not mistakes:  # the sums below would only repeat that a figure is wrong
        mistakes += [*_step_too_small(figures), *_memory_too_small(figures), *_without_effect(figures)]
    return mistakes


def _out_of_range(figures: Mapping[str, Any]) -> Iterator[str]:
    for name in _ABOVE_ZERO:
        if not (math.isfinite(figures[name]) and figures[name] > 0):
            yield f"{name} is {figures[name]:g}; it has to be above 0"
    for name in _ZERO_OR_MORE:
        if not (math.isfinite(figures[name]) and figures[name] >= 0):
            yield f"{name} is {figures[name]:g}; it has to be 0 or more"
    for name in _SHARES:
        if not 0 <= figures[name] <= 1:
            yield f"{name} is {figures[name]:g}; it has to be a share from 0 to 1"
    if not 0 <= figures["output_kv_share"] < 1:
        yield f"output_kv_share is {figures['output_kv_share']:g}; it has to be 0 or more and below 1"
    for name, least in _LEAST.items():
        if figures[name] < least:
            yield f"{name} is {figures[name]}; it has to be {least} or more"
    for name, least in _LEAST_OR_NONE.items():
        value = figures[name]
        if value is not None and not (math.isfinite(value) and value >= least):
            yield f"{name} is {value:g}; it has to be {least} or more, or none"


def _step_too_small(figures: Mapping[str, Any]) -> Iterator[str]:
    budget, places = figures["max_num_batched_tokens"], figures["max_num_seqs"]
    if budget < places:
        yield (
            f"max_num_batched_tokens ({budget}) is below max_num_seqs ({places}); "
            "every running sequence needs one token of a step"
        )
    context = figures["context_limit_tokens"]
    if not figures["chunked_prefill"] and budget < context:
        yield (
            f"max_num_batched_tokens ({budget}) is below context_limit_tokens ({context}) and "
            "chunked_prefill is off; a prompt that fills the context has to fit into one step"
        )


def _memory_too_small(figures: Mapping[str, Any]) -> Iterator[str]:
    block, blocks, context = (
        figures[name] for name in ("kv_block_tokens", "kv_blocks", "context_limit_tokens")
    )
    needed = -(-context // block)
    if blocks < needed:
        yield (
            f"the KV cache of {blocks} blocks of {block} tokens holds {blocks * block} tokens, less than one "
            f"sequence of context_limit_tokens ({context}); raise kv_blocks to {needed} or lower the context"
        )
    elif figures["scheduler"] == "phase":
        open_blocks = think_blocks(blocks, figures["output_kv_share"])
        if open_blocks < needed:
            yield (
                f"output_kv_share {figures['output_kv_share']:g} leaves {open_blocks} of {blocks} blocks to "
                f"sequences that think, and one that fills the context needs {needed}"
            )
    cache_gib = blocks * block * figures["kv_kib_per_token"] / 2**20
    memory_gib = figures["accelerator_memory_gib"] * figures["accelerator_count"]
    if figures["weights_gib"] + cache_gib > memory_gib:
        yield (
            f"{figures['weights_gib']:g} GiB of weights and {cache_gib:.1f} GiB of KV cache ({blocks} blocks "
            f"of {block} tokens) exceed the {memory_gib:g} GiB of the accelerators"
        )


def _without_effect(figures: Mapping[str, Any]) -> Iterator[str]:
    """Settings that only mean something beside another one: better refused than silently ignored."""
    if figures["scheduler"] != "phase":
        for name in ("max_think_seqs", "output_kv_share"):
            if figures[name] not in (None, 0.0):
                yield f"{name} is {figures[name]:g}, but only scheduler=phase tells think from output"
    if figures["think_mean_tokens"] is None:
        for name in ("think_budget_tokens", "think_hard_cap_tokens"):
            if figures[name] is not None:
                yield f"{name} is {figures[name]}, but the model does not think: think_mean_tokens is none"


def think_blocks(blocks: int, output_kv_share: float) -> int:
    """Blocks open to sequences that think, when a share is kept for those that answer."""
    return blocks - math.ceil(blocks * output_kv_share)


__all__ = ["impossible_figures", "think_blocks"]
