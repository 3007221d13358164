"""Configuration of the embedded engine, and the checks that reject impossible values."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.numbers import quantity


@dataclass(frozen=True, slots=True)
class Range:
    """The finite numbers from ``least`` to ``most``."""

    least: float = 0
    most: float = math.inf
    above: bool = False
    """Whether ``least`` itself is outside."""
    below: bool = False
    """Whether ``most`` itself is outside."""
    or_none: bool = False

    def __contains__(self, value: float | None) -> bool:
        if value is None:
            return self.or_none
        if (self.above and value == self.least) or (self.below and value == self.most):
            return False
        return value != math.inf and self.least <= value <= self.most

    def __str__(self) -> str:
        least = f"above {self.least}" if self.above else f"{self.least} or more"
        if self == SHARE:
            return "a share from 0 to 1"
        if self.most == math.inf:
            return least + (", or none" if self.or_none else "")
        if self.above or self.below:
            return f"{least} and {'below' if self.below else 'at most'} {self.most}"
        return f"from {self.least} to {self.most}"


SHARE = Range(most=1)


def out_of_range(values: Any, ranges: Mapping[str, Range]) -> list[str]:
    """The mistakes in the values by these names, of a mapping or of an object; empty if there are none."""
    named = values if isinstance(values, Mapping) else {name: getattr(values, name) for name in ranges}
    return [
        f"{name} is {shown(named[name])}; it must be {allowed}"
        for name, allowed in ranges.items()
        if named[name] not in allowed
    ]


def shown(value: object) -> str:
    """An option's value as it is written in a scenario."""
    return str(value).removesuffix(".0")


def ranges_of(part: type, others: Mapping[str, Range | None]) -> dict[str, Range]:
    """The range of each number among the fields of a part: that of ``others``, else 0 or more; a field that
    has None there is looked at elsewhere. None is in the range where the field's type has it."""
    kinds = {each.name: str(each.type) for each in fields(part)}  # texts: annotations are not evaluated
    found = {
        name: others.get(name, Range()) for name, kind in kinds.items() if kind.startswith(("int", "float"))
    }
    return {
        name: replace(own, or_none="None" in kinds[name]) for name, own in found.items() if own is not None
    }


_ENCODER_US = 50.0
_OF_ADAPTERS = ("max_adapters", "adapter_load_ms", "adapter_us")
_OF_SPECULATION = ("speculative_tokens", "acceptance", "draft_share")


def impossible_figures(figures: Mapping[str, Any]) -> list[str]:
    """The mistakes in these fields of an EngineConfig, given by name; empty if there are none."""
    mistakes = out_of_range(figures, _RANGES)
    if not mistakes:  # the sums below would only repeat that a figure is wrong
        mistakes += [*_step_too_small(figures), *_memory_too_small(figures), *_without_effect(figures)]
    return mistakes


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
                f"output_kv_share {shown(figures['output_kv_share'])} leaves {open_blocks} of {blocks} "
                f"blocks to sequences that think, and one that fills the context needs {needed}"
            )
    cache_gib = blocks * block * figures["kv_kib_per_token"] / 2**20
    memory_gib = figures["accelerator_memory_gib"] * figures["accelerator_count"]
    if figures["weights_gib"] + cache_gib > memory_gib:
        yield (
            f"{quantity(figures['weights_gib'], 'GiB')} of weights and {quantity(cache_gib, 'GiB')} of KV "
            f"cache ({blocks} blocks of {block} tokens) exceed the {quantity(memory_gib, 'GiB')} of the "
            "accelerators"
        )


def _without_effect(figures: Mapping[str, Any]) -> Iterator[str]:
    """Mistakes for settings that only have an effect together with another one: they are refused rather than
    silently ignored."""
    if figures["scheduler"] != "phase":
        for name in ("max_think_seqs", "output_kv_share"):
            if figures[name] not in (None, 0.0):
                yield f"{name} is {shown(figures[name])}, but only scheduler=phase tells think from output"
    if figures["think_mean_tokens"] is None:
        for name in ("think_budget_tokens", "think_hard_cap_tokens"):
            if figures[name] is not None:
                yield f"{name} is {figures[name]}, but the model does not think: think_mean_tokens is none"
    if not figures["adapters"]:
        for name in _OF_ADAPTERS:
            if figures[name]:
                yield f"{name} is {shown(figures[name])}, but the engine has no adapters: adapters is 0"


def think_blocks(blocks: int, output_kv_share: float) -> int:
    """Number of KV blocks open to sequences that think, when a share is kept for those that answer."""
    return blocks - math.ceil(blocks * output_kv_share)


Scheduler = Literal["fcfs", "priority", "shortest", "phase"]
PreemptionMode = Literal["recompute", "swap", "off"]
VictimPolicy = Literal["latest", "lowest_priority", "largest", "smallest"]
OutOfMemory = Literal["sequence", "engine"]
FilterState = Literal["absent", "disabled", "enabled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """All that decides how the engine behaves. Impossible figures raise SuiteError, all of them at once.

    One step (one forward pass of the batch) takes

        step_base_us + prefill_us_per_token · prefill_tokens
                     + decode_us_per_sequence · decode_sequences + kv_us_per_token · kv_tokens
                     + attention_ns_per_pair / 1000 · prefill_pairs + swap_us_per_block · swapped_blocks
                     + adapter_us · distinct_adapters + 1000 · adapter_load_ms · loaded_adapters

    where ``prefill_tokens`` are the prompt tokens processed in this step, ``decode_sequences`` the sequences
    that produce a further token, ``kv_tokens`` the tokens that the sequences of the step already hold in
    the KV cache when it starts, and ``prefill_pairs`` the pairs of a prompt token of this step and a token
    it attends to, itself included: n(n + 1)/2 for a whole prompt of n tokens, in however many chunks.

    With ``speculative_tokens`` k, a step that decodes costs ``draft_share`` · k · step_base_us more, and
    decode_us_per_sequence k + 1 times. A sequence gets one token and those accepted before the first that is
    not; a share ``acceptance`` a makes that (1 - a^(k+1)) / (1 - a) on the mean.
    """

    name: str
    """Name of the preset that the figures come from; the model is served as ``sim-<name>``."""
    provenance: str
    """Where the figures come from."""
    step_base_us: float
    """Cost of any step: reading the weights once, launching kernels, scheduling."""
    prefill_us_per_token: float
    decode_us_per_sequence: float
    kv_us_per_token: float
    """Reading one cached token's keys and values."""
    attention_ns_per_pair: float = 0.0
    """Attention within a prompt: the part of prefill that grows with the square of its length."""
    max_num_seqs: int
    """Sequences that run at a time; the others wait."""
    max_num_batched_tokens: int
    """Prompt tokens plus decoding sequences of one step; longer prompts are prefilled in chunks."""
    chunked_prefill: bool = True
    """Off: a prompt is processed whole, in one step; the next in the queue waits for a step it fits in."""
    context_limit_tokens: int
    """Prompt plus output of one sequence."""
    default_max_tokens: int = 256
    """Output ceiling of a request that sets none."""
    speculative_tokens: int = 0
    """Tokens that a draft model guesses ahead in each step, for the model to verify together; 0: off."""
    acceptance: float = 0.7
    """Chance of each guessed token to be accepted if the one before it was."""
    draft_share: float = 0.05
    """Cost of a pass of the draft model, one for each guessed token, as a share of step_base_us."""
    eos_mean_tokens: float | None = None
    """Mean of the geometric law by which answers end early; ``None``: all run to their ceiling."""
    seed: int = 0
    """Seed of every law: lengths of answers and thoughts, refusals."""

    accelerator_count: int = 1
    accelerator_memory_gib: float
    """Memory of one accelerator. Weights and KV blocks have to fit into all of them together."""
    weights_gib: float
    """Memory the weights take, on all accelerators together."""
    kv_kib_per_token: float
    """Memory of one token's keys and values."""
    kv_block_tokens: int = 16
    """Tokens per block of the paged KV cache; 16 is the default of vLLM on GPUs."""
    kv_blocks: int
    """Blocks of the KV cache. They have to hold one sequence that fills the context."""
    prefix_caching: bool = False
    """Keep full blocks of prompts for later prompts that begin with the same tokens."""

    preemption: PreemptionMode = "recompute"
    """When blocks run out: free a victim's blocks and compute its tokens again later, or move them to host
    memory (which is taken to be large enough), or ``off``: then running out of blocks is an error."""
    preemption_victim: VictimPolicy = "latest"
    """Which sequence gives way: the last to join the batch, the one of lowest priority (the latest of
    those), the one that holds the most tokens or the fewest."""
    swap_us_per_block: float
    """Moving a block to host memory, or back."""
    out_of_memory: OutOfMemory = "sequence"
    """What fails when ``preemption=off`` and blocks run out: the sequence that gets no block, or the engine
    with all it holds."""
    recovery_ms: float
    """Time an engine that ran out of memory takes to come back."""

    scheduler: Scheduler = "fcfs"
    """Order of the queue: of arrival; by the request's priority (a lower number goes first); shortest prompt
    first; or ``phase``: sequences that answer before sequences that think (see ``max_think_seqs`` and
    ``output_kv_share``). Ties go by arrival."""
    max_waiting: int | None = None
    """Longest queue; further requests are turned away. ``None``: no limit."""
    max_think_seqs: int | None = None
    """Sequences that may think at a time, with ``scheduler=phase``. ``None``: no limit but max_num_seqs."""
    output_kv_share: float = 0.0
    """Share of the KV blocks that sequences which think may not use, with ``scheduler=phase``."""

    think_mean_tokens: float | None = None
    """Mean length of the thoughts before the answer; ``None``: the model does not reason."""
    think_spread: float = 0.8
    """Sigma of the lognormal law of that length, 0 for a fixed one. Lengths of published reasoning traces
    spread over about a factor of ten; 0.8 puts a factor of 13 between the 5th and the 95th percentile."""
    think_budget_tokens: int | None = None
    """Thoughts that reach this length and are found to be overthinking are cut here."""
    overthinking_detected: float = 1.0
    """Share of such thoughts that is found out; the others go on."""
    think_hard_cap_tokens: int | None = None
    """No thoughts are longer than this."""

    input_filter: FilterState = "absent"
    output_filter: FilterState = "absent"
    input_filter_us: float = 8000.0
    """Checking a prompt, plus a part per token. These two and their like for the output suppose a guard
    model of a billion parameters on an accelerator of its own: a pass of some milliseconds with the hop to
    it, and 2 GFLOP per token at 400 TFLOP/s. An estimate, not a product's figure."""
    input_filter_us_per_token: float = 5.0
    input_refusal_share: float = 0.0
    """Share of prompts that the input filter refuses."""
    output_filter_window_tokens: int = 64
    """Output is held back until this many tokens have been checked together. Streaming guards are configured
    with some 50 to 200 tokens per check."""
    output_filter_us: float = 8000.0
    """Checking a window, plus a part per token."""
    output_filter_us_per_token: float = 5.0
    output_refusal_share: float = 0.0
    """Share of answers that the output filter breaks off, at one of their windows."""

    media_encoder_us_per_token: float = _ENCODER_US
    """Encoding a token of an image or a sound, before the request joins the queue: some 15 ms for an image of
    512 by 512 pixels. An estimate, of an encoder of 600 million parameters at a tenth of the peak."""
    adapters: int = 0
    """LoRA adapters that it serves, as the models ``adapter-1``, ``adapter-2`` and so on."""
    max_adapters: int | None = None
    """Adapters in memory at a time, ``--max-loras`` of vLLM; one more takes the place of the one that was
    unused for longest, or its requests wait. ``None``: all."""
    adapter_load_ms: float = 0.0
    """Loading an adapter for the first request that needs it; the step that this request joins takes so much
    longer."""
    adapter_us: float = 0.0
    """Cost of a step for each distinct adapter of its batch."""

    def __post_init__(self) -> None:
        mistakes = impossible_figures(asdict(self))
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"engine preset {self.name!r}")

    @property
    def model(self) -> str:
        """The model name the server lists."""
        return f"sim-{self.name}"

    @property
    def adapter_names(self) -> tuple[str, ...]:
        """The model names of its adapters."""
        return tuple(f"adapter-{number}" for number in range(1, self.adapters + 1))

    @property
    def figures_sha256(self) -> str:
        """SHA-256 digest of every figure: two engines that may behave differently never share it."""
        figures = {key: value for key, value in asdict(self).items() if key != "provenance"}
        if not self.adapters:  # an engine without any is the one that it was before there were adapters
            figures = {key: each for key, each in figures.items() if key not in ("adapters", *_OF_ADAPTERS)}
        if not self.speculative_tokens:
            figures = {key: each for key, each in figures.items() if key not in _OF_SPECULATION}
        if self.media_encoder_us_per_token == _ENCODER_US:  # as before there was an encoder
            del figures["media_encoder_us_per_token"]
        return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()

    def step_ns(
        self,
        prefill_tokens: int,
        decode_sequences: int,
        kv_tokens: int,
        prefill_pairs: int = 0,
        swapped_blocks: int = 0,
        adapters_us: float = 0.0,
    ) -> int:
        """Duration of a step in nanoseconds, by the formula of the class."""
        microseconds = (
            self.step_base_us
            + self.prefill_us_per_token * prefill_tokens
            + self.decode_us_per_sequence * (decode_sequences * (1 + self.speculative_tokens))
            + self.kv_us_per_token * kv_tokens
        )
        if self.speculative_tokens and decode_sequences:
            microseconds += self.draft_share * self.speculative_tokens * self.step_base_us
        if prefill_pairs or swapped_blocks:
            microseconds += self.attention_ns_per_pair * prefill_pairs / 1000.0
            microseconds += self.swap_us_per_block * swapped_blocks
        return round((microseconds + adapters_us) * 1000.0)

    def decode_step_us(self, decode_sequences: int) -> float:
        """Duration in microseconds of a step that only decodes, a token each, without the cost of its KV
        tokens."""
        return self.step_base_us + self.decode_us_per_sequence * decode_sequences


_RANGES = ranges_of(
    EngineConfig,
    {
        **dict.fromkeys(("step_base_us", "accelerator_memory_gib", "kv_kib_per_token"), Range(above=True)),
        **dict.fromkeys(
            ("acceptance", "overthinking_detected", "input_refusal_share", "output_refusal_share"), SHARE
        ),
        "output_kv_share": Range(most=1, below=True),
        "context_limit_tokens": Range(2),
        "max_num_batched_tokens": None,  # compared with others below
        **dict.fromkeys(
            (
                "max_num_seqs",
                "default_max_tokens",
                "accelerator_count",
                "kv_block_tokens",
                "kv_blocks",
                "output_filter_window_tokens",
                "eos_mean_tokens",
                "max_waiting",
                "max_think_seqs",
                "think_mean_tokens",
                "think_budget_tokens",
                "think_hard_cap_tokens",
                "max_adapters",
            ),
            Range(1),
        ),
    },
)


PowerFault = Literal["counter_resets", "counter_stands", "device_gone", "silent"]


@dataclass(frozen=True, slots=True)
class PowerOptions:
    """Options of the electric power of the accelerators, and of what they tell of it. Off without ``idle_w``.

    During a step all accelerators of an engine together take, evenly,

        accelerator_count · (idle_w + step_w) · duration
            + prefill_mj_per_token / 1000 · prompt tokens + decode_mj_per_token / 1000 · output tokens

    in joules, and ``idle_w`` each between steps and while the engine recovers from a crash.
    """

    idle_w: float | None = None
    """Watts of each accelerator without a step; none: nothing is known of power. H100 SXM: about 70."""
    step_w: float = 0.0
    """Watts of each accelerator while a step runs, beyond idle_w."""
    prefill_mj_per_token: float = 0.0
    """Millijoules of a prompt token that a step processes, on all accelerators together."""
    decode_mj_per_token: float = 0.0
    """Millijoules of an output token, on all accelerators together."""
    power_update_ms: float = 0.0
    """Milliseconds between two updates of what the accelerators tell; 0: they tell what is true now."""
    power_fault: PowerFault | None = None
    """What goes wrong with the last accelerator: its energy counter begins at 0 again (counter_resets) or
    stands still (counter_stands), it is gone (device_gone), or nothing answers any more (silent)."""
    power_fault_after_s: float = 0.0
    """Seconds after the engine's start at which power_fault happens."""

    def mistakes(self) -> list[str]:
        """The mistakes in these values; empty if there are none."""
        found = out_of_range(self, ranges_of(PowerOptions, {}))
        if self.idle_w is None and not found:
            found += [
                f"{each.name} is {value}, but without idle_w nothing is known of power"
                for each in fields(self)
                if (value := getattr(self, each.name)) != each.default
            ]
        return found


@dataclass(frozen=True, slots=True)
class CheatOptions:
    """Options that flatter the figures of a benchmark."""

    response_cache: bool = False
    """Whether a prompt that came before is answered at once, from memory."""
    known_prompts: int = 0
    """Number of prompts of synthetic-uniform with seed 42 that are answered from memory."""
    short_replies_above: int | None = None
    """Requests in flight above which replies are cut to 70 % of their length; none: never."""
    smaller_model_above: int | None = None
    """Requests in flight above which another model answers, under the same name; none: never."""
    canned_first_token: bool = False
    """Whether every reply begins with the same token, sent on acceptance, before the prefill."""

    def mistakes(self) -> list[str]:
        """The mistakes in these values; empty if there are none."""
        return out_of_range(self, ranges_of(CheatOptions, {}))
