"""What a measurement has to find on an embedded engine, worked out from its figures alone.

Scenarios whose truth is simple, by options over those of a preset:

- throughput and capacity: ``prefill_us_per_token=0&kv_us_per_token=0&attention_ns_per_pair=0`` leaves a
  step of ``step_base_us + decode_us_per_sequence · n``; ``max_num_seqs`` bounds n (:func:`lockstep_rate`),
  and from one request more on somebody waits for a whole answer of others;
- scaling exponent: :func:`prefill_ns` is linear in the prompt with
  ``attention_ns_per_pair=0&kv_us_per_token=0`` (k near 1, exactly a + b·n with a the base of each chunk)
  and quadratic with ``prefill_us_per_token=0&attention_ns_per_pair=5&step_base_us=1`` (k near 2);
- hit rate: with ``prefix_caching=on`` and one request at a time, every prompt but the first of its prefix
  finds the prefix's full blocks (:func:`cached_tokens`);
- guardrails: ``input_filter_us`` with ``input_filter_us_per_token=0`` is the constant by which the input
  filter lengthens TTFT; the output filter lengthens an unloaded answer by the check of its last window
  (:func:`output_filter_ns`);
- fairness: with ``max_num_seqs=1`` a short request waits for the whole service of every long one before it
  under ``scheduler=fcfs``, and only for the one that runs under ``scheduler=shortest``;
- memory: ``kv_blocks`` just large enough for the prompts of n requests preempts n - 1 of them at their
  first growth, each losing its prompt.
"""

from __future__ import annotations

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine


def prefill_ns(config: EngineConfig, prompt_tokens: int) -> int:
    """From admission to the first token of a request that is alone: its chunks, one step each."""
    most = config.max_num_batched_tokens if config.chunked_prefill else prompt_tokens
    total = before = 0
    while before < prompt_tokens:
        chunk = min(most, prompt_tokens - before)
        pairs = chunk * before + chunk * (chunk + 1) // 2
        total += config.step_ns(chunk, 0, before, pairs)
        before += chunk
    return total


def service_ns(config: EngineConfig, prompt_tokens: int, output_tokens: int) -> int:
    """From admission to the last token of a request that is alone."""
    decoding = (config.step_ns(0, 1, prompt_tokens + given) for given in range(1, output_tokens))
    return prefill_ns(config, prompt_tokens) + sum(decoding)


def lockstep_rate(
    config: EngineConfig, concurrency: int, prompt_tokens: int, output_tokens: int, round_trip_ns: int
) -> float:
    """Output tokens per second of a closed loop of equal requests that fit into the batch together.

    They begin and end together, so a round is one step of prompts, ``output_tokens - 1`` steps that decode
    them all, and the client's ``round_trip_ns`` (an answer's end to the next request's arrival). The prompts
    have to fit into one step.
    """
    prompts = concurrency * prompt_tokens
    if concurrency > config.max_num_seqs or prompts > config.max_num_batched_tokens:
        raise ValueError(f"{concurrency} prompts of {prompt_tokens} tokens do not fit into one step")
    pairs = concurrency * (prompt_tokens * (prompt_tokens + 1) // 2)
    round_ns = config.step_ns(prompts, 0, 0, pairs) + round_trip_ns
    for given in range(1, output_tokens):
        round_ns += config.step_ns(0, concurrency, concurrency * (prompt_tokens + given))
    return concurrency * output_tokens / (round_ns / 1e9)


def cached_tokens(config: EngineConfig, prompt_tokens: int, shared_tokens: int) -> int:
    """Prompt tokens found in the cache once another prompt with the same ``shared_tokens`` has been computed.

    Full blocks of the shared part, and never the whole prompt: its last token must be computed.
    """
    block = config.kv_block_tokens
    return min(shared_tokens // block, (prompt_tokens - 1) // block) * block


def output_filter_ns(config: EngineConfig, output_tokens: int) -> int:
    """By how much the output filter lengthens an answer whose windows take longer to make than to check."""
    window = config.output_filter_window_tokens
    last = output_tokens - (output_tokens - 1) // window * window
    return round((config.output_filter_us + config.output_filter_us_per_token * last) * 1000)


def truth_of(engine: EmbeddedEngine, request_id: str) -> GroundTruth:
    """What the engine says of this one request."""
    (truth,) = [truth for truth in engine.ground_truth() if truth.request_id == request_id]
    return truth


def in_order(before_ns: int, truth: GroundTruth, after_ns: int) -> bool:
    """Whether all instants of a whole reply are known, in order, and between those two."""
    known = (truth.received_ns, truth.queued_ns, truth.admitted_ns, truth.first_token_ns)
    instants = [before_ns, *known, truth.first_write_ns, truth.last_write_ns, after_ns]
    return None not in instants and instants == sorted(instants, key=int)
