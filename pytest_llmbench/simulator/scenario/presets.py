"""Presets of the embedded engine: named sets of figures.

Every figure of a preset is an order of magnitude with its origin in words (``provenance``), not a
measurement of a product: a preset is a plausible engine, whose behaviour under load can be reasoned about.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.simulator.engine.config import EngineConfig

DEFAULT_PRESET = "fast"

PRESETS: Mapping[str, EngineConfig] = MappingProxyType(
    {
        "fast": EngineConfig(
            name="fast",
            provenance=(
                "Chosen for demonstrations, not taken from a product: about 4.4 ms to the first token of "
                "a 320-token prompt and 1.2 ms per further token when unloaded, quick enough for a suite to "
                "finish in seconds and slow enough that the server, on half a core, is never the limit. The "
                "context takes a prompt of 131,072 tokens with room for its answer, and the KV cache 528,384 "
                "tokens, as much as 64 sequences of 8192, so that memory is short only where a test makes it "
                "so."
            ),
            step_base_us=1200.0,
            prefill_us_per_token=10.0,
            decode_us_per_sequence=6.0,
            kv_us_per_token=0.01,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            context_limit_tokens=131584,
            accelerator_memory_gib=16.0,
            weights_gib=4.0,
            kv_kib_per_token=16.0,
            kv_blocks=33024,
            swap_us_per_block=5.0,
            recovery_ms=500.0,
            input_filter_us=1500.0,
            input_filter_us_per_token=2.0,
            output_filter_us=1500.0,
            output_filter_us_per_token=2.0,
        ),
        "h100-8b": EngineConfig(
            name="h100-8b",
            provenance=(
                "An 8-billion-parameter model in BF16 on one H100 SXM. Step: 16 GB of weights over the data "
                "sheet's 3.35 TB/s is 4.8 ms; at the 77 % of the bandwidth that users report for vLLM with "
                "such a model on an A100 it is 6.2 ms, rounded up for scheduling. Prefill: 16 GFLOP per "
                "token at 45 % of the data sheet's 989 dense TFLOP/s. KV: 128 KiB per token (32 layers, 8 KV "
                "heads of 128, from the Llama 3.1 8B model card) at 60 % of the bandwidth. Tokens per step: "
                "the default of vLLM's server on this class of card; 256 sequences is its default on others. "
                "Attention: 0.52 MFLOP per pair of tokens (4 · 4096 · 32 layers) at the rate of prefill. "
                "Blocks: 90 % of 80 GiB, less 15 GiB of weights and about 4 GiB of activations and graphs, "
                "leaves 53 GiB or 27,000 blocks of 16 tokens. Context: 512 tokens more than the model card's "
                "131,072, so that a prompt of that length leaves room for its answer. Swap: such a block is "
                "2 MiB, over PCIe 5 at some 50 GB/s. Recovery: a restart that loads the weights takes about "
                "a minute."
            ),
            step_base_us=6500.0,
            prefill_us_per_token=36.0,
            decode_us_per_sequence=15.0,
            kv_us_per_token=0.065,
            attention_ns_per_pair=1.2,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            context_limit_tokens=131584,
            accelerator_memory_gib=80.0,
            weights_gib=15.0,
            kv_kib_per_token=128.0,
            kv_blocks=27000,
            swap_us_per_block=42.0,
            recovery_ms=60000.0,
        ),
        "h100-70b-tp4": EngineConfig(
            name="h100-70b-tp4",
            provenance=(
                "A 70-billion-parameter model in BF16 over four H100 SXM with tensor parallelism. Step: 141 "
                "GB of weights over four times the data sheet's 3.35 TB/s is 10.5 ms, 13.7 ms at the 77 % of "
                "the bandwidth taken for h100-8b; 160 all-reduces (two in each of 80 layers) of some 15 µs "
                "add 2.4 ms, and scheduling the rest. Prefill: 141 GFLOP per token at 40 % of four times 989 "
                "dense TFLOP/s, as the all-reduces are not hidden. Decoding: that of h100-8b and the "
                "all-reduced activations of twice the width. KV: 320 KiB per token (80 layers, 8 KV heads of "
                "128, from the Llama 3.1 70B model card) at 60 % of the bandwidth. Attention: 2.6 MFLOP per "
                "pair of tokens (4 · 8192 · 80 layers) at the rate of prefill. Blocks: 90 % of 320 GiB, less "
                "131 GiB of weights and about 5.5 GiB of activations and graphs per card, leaves 135 GiB or "
                "27,648 blocks of 16 tokens. Swap: such a block is 5 MiB, a quarter of it over each card's "
                "PCIe 5 at some 50 GB/s. Recovery: a restart that loads nine times as much as h100-8b, from "
                "four processes, about three minutes."
            ),
            step_base_us=17000.0,
            prefill_us_per_token=89.0,
            decode_us_per_sequence=25.0,
            kv_us_per_token=0.041,
            attention_ns_per_pair=1.7,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            context_limit_tokens=131072,
            accelerator_count=4,
            accelerator_memory_gib=80.0,
            weights_gib=131.0,
            kv_kib_per_token=320.0,
            kv_blocks=27648,
            swap_us_per_block=26.0,
            recovery_ms=180000.0,
        ),
        "cpu-laptop": EngineConfig(
            name="cpu-laptop",
            provenance=(
                "A 3-billion-parameter model quantised to about 4.5 bits on a present-day laptop. Step: 2 GB "
                "of weights over some 50 GB/s of dual-channel memory is 40 ms; about 24 tokens/s are "
                "published for Llama 3.2 3B on a Ryzen AI 340. Prefill: 6.4 GFLOP per token at about 0.7 "
                "TFLOP/s; llama.cpp's own benchmark gives 70 to 80 tokens/s on eight- to twelve-core ARM "
                "boards. A further sequence of the batch costs about as much arithmetic as a prompt token. "
                "KV: 112 KiB per token (28 layers, 8 KV heads of 128) over the same memory bus. Four "
                "sequences, as many as llama.cpp's server has slots. Attention: 0.34 MFLOP per pair of "
                "tokens (4 · 3072 · 28 layers) at the rate of prefill. Blocks: the full context of each "
                "slot, as llama.cpp sets it aside. Swap: a block is 1.75 MiB, copied at half the bandwidth "
                "of the memory bus. Recovery: 2 GB from a disk, and the rest of the start-up. Filters: a "
                "guard model of a third of the size on the same processor."
            ),
            step_base_us=42000.0,
            prefill_us_per_token=9000.0,
            decode_us_per_sequence=9000.0,
            kv_us_per_token=2.3,
            attention_ns_per_pair=490.0,
            max_num_seqs=4,
            max_num_batched_tokens=512,
            context_limit_tokens=8192,
            accelerator_memory_gib=16.0,
            weights_gib=1.9,
            kv_kib_per_token=112.0,
            kv_blocks=2048,
            swap_us_per_block=73.0,
            recovery_ms=5000.0,
            input_filter_us=100000.0,
            input_filter_us_per_token=3000.0,
            output_filter_us=100000.0,
            output_filter_us_per_token=3000.0,
        ),
    }
)
