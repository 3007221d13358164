"""Figures of the embedded engine: named presets, and overrides written ``fast?max_num_seqs=32&seed=7``.

Every figure of a preset is an order of magnitude with its origin in words (``provenance``), not a
measurement of a product: a preset is a plausible engine, whose behaviour under load can be reasoned about.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from types import MappingProxyType
from typing import Any

from pytest_llmbench.errors import SuiteError


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """All that decides how the engine behaves. Impossible figures raise SuiteError, all of them at once.

    One step (one forward pass of the batch) takes

        step_base_us + prefill_us_per_token · prefill_tokens
                     + decode_us_per_sequence · decode_sequences + kv_us_per_token · kv_tokens

    where ``prefill_tokens`` are the prompt tokens processed in this step, ``decode_sequences`` the sequences
    that produce a further token, and ``kv_tokens`` the tokens that the sequences of the step already hold in
    the KV cache when it starts.
    """

    name: str
    """Preset the figures come from; the model is served as ``sim-<name>``."""
    provenance: str
    """Where the figures come from."""
    step_base_us: float
    """Cost of any step: reading the weights once, launching kernels, scheduling."""
    prefill_us_per_token: float
    decode_us_per_sequence: float
    kv_us_per_token: float
    """Reading one cached token's keys and values."""
    max_num_seqs: int
    """Sequences that run at a time; the others wait."""
    max_num_batched_tokens: int
    """Prompt tokens plus decoding sequences of one step; longer prompts are prefilled in chunks."""
    context_limit_tokens: int
    """Prompt plus output of one sequence."""
    accelerator_memory_gib: float
    """Stated in the disclosure; nothing is computed from it."""
    default_max_tokens: int = 256
    """Output ceiling of a request that sets none."""
    eos_mean_tokens: float | None = None
    """Mean of the geometric law by which sequences end early; ``None``: all run to their ceiling."""
    seed: int = 0
    """Seed of that law."""

    def __post_init__(self) -> None:
        mistakes = _impossible_figures(asdict(self))
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"engine preset {self.name!r}")

    @property
    def model(self) -> str:
        """The model name the server lists."""
        return f"sim-{self.name}"

    @property
    def figures_sha256(self) -> str:
        """Digest of every figure: two engines that may behave differently never share it."""
        figures = {key: value for key, value in asdict(self).items() if key != "provenance"}
        return hashlib.sha256(json.dumps(figures, sort_keys=True).encode()).hexdigest()

    def step_ns(self, prefill_tokens: int, decode_sequences: int, kv_tokens: int) -> int:
        """Duration of a step in nanoseconds, by the formula above."""
        microseconds = (
            self.step_base_us
            + self.prefill_us_per_token * prefill_tokens
            + self.decode_us_per_sequence * decode_sequences
            + self.kv_us_per_token * kv_tokens
        )
        return round(microseconds * 1000.0)


def _impossible_figures(figures: Mapping[str, Any]) -> list[str]:
    mistakes = []
    for name in ("step_base_us", "accelerator_memory_gib"):
        if not (math.isfinite(figures[name]) and figures[name] > 0):
            mistakes.append(f"{name} is {figures[name]:g}; it has to be above 0")
    for name in ("prefill_us_per_token", "decode_us_per_sequence", "kv_us_per_token"):
        if not (math.isfinite(figures[name]) and figures[name] >= 0):
            mistakes.append(f"{name} is {figures[name]:g}; it has to be 0 or more")
    for name, least in _LEAST.items():
        if figures[name] < least:
            mistakes.append(f"{name} is {figures[name]}; it has to be {least} or more")
    budget, places = figures["max_num_batched_tokens"], figures["max_num_seqs"]
    if budget < places:
        mistakes.append(
            f"max_num_batched_tokens ({budget}) is below max_num_seqs ({places}); "
            "every running sequence needs one token of a step"
        )
    mean = figures["eos_mean_tokens"]
    if mean is not None and not (math.isfinite(mean) and mean >= 1):
        mistakes.append(f"eos_mean_tokens is {mean:g}; it has to be 1 or more, or none")
    return mistakes


_LEAST = {"max_num_seqs": 1, "context_limit_tokens": 2, "default_max_tokens": 1, "seed": 0}

DEFAULT_PRESET = "fast"

PRESETS: Mapping[str, EngineConfig] = MappingProxyType(
    {
        "fast": EngineConfig(
            name="fast",
            provenance=(
                "Chosen for demonstrations, not taken from a product: about 4.4 ms to the first token of "
                "a 320-token prompt and 1.2 ms per further token when unloaded, quick enough for a suite to "
                "finish in seconds and slow enough that the server, on half a core, is never the limit."
            ),
            step_base_us=1200.0,
            prefill_us_per_token=10.0,
            decode_us_per_sequence=6.0,
            kv_us_per_token=0.01,
            max_num_seqs=64,
            max_num_batched_tokens=2048,
            context_limit_tokens=32768,
            accelerator_memory_gib=16.0,
        ),
        "h100-8b": EngineConfig(
            name="h100-8b",
            provenance=(
                "An 8-billion-parameter model in BF16 on one H100 SXM. Step: 16 GB of weights over the data "
                "sheet's 3.35 TB/s is 4.8 ms; at the 77 % of the bandwidth that users report for vLLM with "
                "such a model on an A100 it is 6.2 ms, rounded up for scheduling. Prefill: 16 GFLOP per "
                "token at 45 % of the data sheet's 989 dense TFLOP/s. KV: 128 KiB per token (32 layers, 8 KV "
                "heads of 128, from the Llama 3.1 8B model card) at 60 % of the bandwidth. Tokens per step: "
                "the default of vLLM's server on this class of card; 256 sequences is its default on others."
            ),
            step_base_us=6500.0,
            prefill_us_per_token=36.0,
            decode_us_per_sequence=15.0,
            kv_us_per_token=0.065,
            max_num_seqs=256,
            max_num_batched_tokens=8192,
            context_limit_tokens=131072,
            accelerator_memory_gib=80.0,
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
                "sequences, as many as llama.cpp's server has slots."
            ),
            step_base_us=42000.0,
            prefill_us_per_token=9000.0,
            decode_us_per_sequence=9000.0,
            kv_us_per_token=2.3,
            max_num_seqs=4,
            max_num_batched_tokens=512,
            context_limit_tokens=8192,
            accelerator_memory_gib=16.0,
        ),
    }
)

_FIXED = ("name", "provenance")
_WHOLE_NUMBERS = tuple(f.name for f in fields(EngineConfig) if f.type == "int")
OPTIONS: tuple[str, ...] = tuple(f.name for f in fields(EngineConfig) if f.name not in _FIXED)
"""The names that may be overridden."""


def parse_preset(text: str) -> EngineConfig:
    """The engine that ``text`` names: ``preset``, or ``preset?option=value&option=value``.

    An empty preset name means ``fast``. Raises SuiteError that lists every mistake: unknown preset, unknown,
    repeated or unreadable options, impossible figures.
    """
    name, _, options = text.partition("?")
    mistakes: list[str] = []
    preset = PRESETS.get(name or DEFAULT_PRESET)
    if preset is None:
        mistakes.append(_unknown("preset", name, tuple(PRESETS)))
        preset = PRESETS[DEFAULT_PRESET]
    overrides = _parse_options(options, mistakes)
    mistakes += _impossible_figures(asdict(preset) | overrides)
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes,
            where=f"engine preset {text!r}",
            remedy=f"presets: {', '.join(PRESETS)}; options, as in fast?max_num_seqs=32&seed=7: "
            f"{', '.join(OPTIONS)}",
        )
    return replace(preset, **overrides)


def _parse_options(text: str, mistakes: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for part in text.split("&") if text else ():
        name, equals, value = part.partition("=")
        if not equals:
            mistakes.append(f"option {part!r} is not of the form option=value")
        elif name not in OPTIONS:
            mistakes.append(_unknown("option", name, OPTIONS))
        elif name in values:
            mistakes.append(f"option {name!r} is given twice")
        else:
            values[name] = _parse_value(name, value, mistakes)
    return {name: value for name, value in values.items() if value is not _UNREADABLE}


_UNREADABLE = object()


def _parse_value(name: str, value: str, mistakes: list[str]) -> Any:
    if name == "eos_mean_tokens" and value == "none":
        return None
    kind = int if name in _WHOLE_NUMBERS else float
    try:
        return kind(value)
    except ValueError:
        wanted = "a whole number" if kind is int else "a number"
        mistakes.append(f"{name} is {value!r}; it has to be {wanted}")
        return _UNREADABLE


def _unknown(what: str, name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"unknown {what} {name!r}{hint}"


__all__ = ["DEFAULT_PRESET", "OPTIONS", "PRESETS", "EngineConfig", "parse_preset"]
