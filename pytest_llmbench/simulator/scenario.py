"""Scenarios of the embedded engine such as ``fast?max_num_seqs=64&fault=reset&fault_rate=0.1``: presets, the
options of engine, stream, faults and power, and those of several engines, which are an extra; its standard
SUT variants, a scenario with some options changed, and its facts about itself for the manifest (sections 4.1,
4.4 and 4.8).

Every figure of a preset is an order of magnitude with its origin in words (``provenance``), not a
measurement of a product: a preset is a plausible engine, whose behaviour under load can be reasoned about.
The options of all parts share one string; each name belongs to one part only.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache, lru_cache
from importlib import metadata
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.facts import (
    Facts,
    GuardrailFact,
    IsolationFact,
    Origin,
    SUTFact,
    TokenizerFact,
    WarmupFact,
)
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.registry import named, names
from pytest_llmbench.simulator.engine.config import (
    CheatOptions,
    EngineConfig,
    PowerOptions,
    PreemptionMode,
    Scheduler,
    impossible_figures,
)
from pytest_llmbench.simulator.engine.deployment import Deployment
from pytest_llmbench.simulator.engine.faults import FaultOptions, StreamOptions

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


@dataclass(frozen=True, slots=True)
class Scenario:
    """The whole configuration of an embedded engine."""

    engine: EngineConfig
    stream: StreamOptions = field(default_factory=StreamOptions)
    faults: FaultOptions = field(default_factory=FaultOptions)
    power: PowerOptions = field(default_factory=PowerOptions)
    cheats: CheatOptions = field(default_factory=CheatOptions)
    deployment: Deployment = field(default_factory=Deployment)


PARTS: Mapping[str, type] = {
    "engine": EngineConfig,
    "stream": StreamOptions,
    "faults": FaultOptions,
    "power": PowerOptions,
    "cheats": CheatOptions,
}
"""Name of a part of a scenario → its type, whose fields are its options."""
OPTIONS: tuple[str, ...] = tuple(
    each.name for part in PARTS.values() for each in fields(part) if each.name not in ("name", "provenance")
)
"""Names of all options: the figures of a preset that may be overridden, and those of the other parts.
Those of several engines are named by the extras that have them (``deployments``)."""
_NO_SEVERAL = "; several engines behind a router need an extra that is not installed"


@lru_cache(maxsize=64)
def parse_scenario(text: str) -> Scenario:
    """Parse a scenario: ``preset``, or ``preset?option=value&option=value``; no name means ``fast``.

    Raises SuiteError that lists every mistake of every part: unknown preset, unknown, repeated or unreadable
    options, values that cannot be.
    """
    name, _, listed = text.partition("?")
    preset = PRESETS.get(name or DEFAULT_PRESET)
    mistakes = [] if preset is not None else [f"unknown preset {name!r}{_meant(name, PRESETS)}"]
    found = _changed(
        Scenario(preset or PRESETS[DEFAULT_PRESET]), listed.split("&") if listed else (), mistakes
    )
    if mistakes:
        raise SuiteError.from_mistakes(
            mistakes,
            where=f"scenario {text!r}",
            remedy=f"presets: {', '.join(PRESETS)}; options, as in fast?max_num_seqs=32&fault=reset: "
            "python -m pytest_llmbench.simulator --help lists them",
        )
    return found


def _known() -> tuple[str, ...]:
    return (*OPTIONS, *names("deployments"))


def _changed(scenario: Scenario, listed: Iterable[str], mistakes: list[str]) -> Scenario:
    """``scenario`` with these options, each ``option=value``; what is wrong with them is added to
    ``mistakes``, and left as it was."""
    given: dict[str, str] = {}
    known, deployment = _known(), scenario.deployment
    for part in listed:
        name, equals, value = part.partition("=")
        if not equals:
            mistakes.append(f"option {part!r} is not of the form option=value")
        elif name not in known:
            lacking = _NO_SEVERAL if known == OPTIONS else ""
            mistakes.append(f"unknown option {name!r}{_meant(name, known)}{lacking}")
        elif name in given:
            mistakes.append(f"option {name!r} is given twice")
        else:
            given[name] = value
            if name in OPTIONS or name in (each.name for each in fields(deployment)):
                continue
            if type(deployment) is not Deployment:
                mistakes.append(f"option {name!r} cannot be combined with those of the {deployment.title}")
            else:
                deployment = named("deployments", name)()  # type: ignore[misc]  # it is one of them
    parts = {name: _part(getattr(scenario, name), given, mistakes) for name in PARTS}
    if parts["engine"].speculative_tokens and parts["stream"].tokens_per_chunk > 1:
        mistakes.append("tokens_per_chunk and speculative_tokens both set the size of chunks; choose one")
    return Scenario(**parts, deployment=_part(deployment, given, mistakes))


def _meant(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _part(before: Any, given: Mapping[str, str], mistakes: list[str]) -> Any:
    hints = _kinds(type(before))  # type: ignore[arg-type]  # mypy takes no class for hashable
    values: dict[str, Any] = {}
    for name in filter(hints.__contains__, given):
        try:
            values[name] = _read(hints[name], given[name])
        except ValueError as error:
            mistakes.append(f"{name} is {given[name]!r}; it must be {error}")
    if isinstance(before, EngineConfig):  # which does not exist with impossible figures
        found = impossible_figures(asdict(before) | values)
        mistakes += found
        return before if found else replace(before, **values)
    made = replace(before, **values)
    mistakes += made.mistakes()
    return made


@cache
def _kinds(part: type) -> dict[str, Any]:
    """The type of each option of a part: annotations are texts until they are evaluated, which takes long."""
    return get_type_hints(part)


_SWITCH = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


def _read(kind: Any, text: str) -> Any:
    """Convert ``text`` to a value of type ``kind``; ValueError says what it must be."""
    if type(None) in get_args(kind):
        return None if text == "none" else _read(get_args(kind)[0], text)
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], part) for part in text.split(",") if part)
    if get_origin(kind) is Literal:
        if text in get_args(kind):
            return text
        raise ValueError(f"one of {', '.join(get_args(kind))}{_meant(text, get_args(kind))}")
    if kind is bool:
        if text in _SWITCH:
            return _SWITCH[text]
        raise ValueError("true or false, on or off")
    try:
        return kind(text)
    except ValueError:
        raise ValueError("a whole number" if kind is int else "a number") from None


def option_meanings(kind: type) -> dict[str, str]:
    """The meaning of each option of a part in one sentence: the first of its documentation in the source.

    Choices are listed where that sentence does not.
    """
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    meanings: dict[str, str] = {}
    for statement, following in pairwise([*body.body, ast.Pass()]):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            meant = following.value if isinstance(following, ast.Expr) else None
            text = str(meant.value) if isinstance(meant, ast.Constant) else ""
            sentence, stop, _ = (words := " ".join(text.replace("``", "").split())).partition(". ")
            meanings[statement.target.id] = (sentence if stop else words).rstrip(".")
    for name, hint in get_type_hints(kind).items():
        missing = [choice for choice in _choices(hint) if choice not in meanings[name]]
        if missing:
            meanings[name] = "; ".join(filter(None, [meanings[name], ", ".join(_choices(hint))]))
    return {name: meaning or name.replace("_", " ") for name, meaning in meanings.items()}


def _choices(hint: Any) -> tuple[str, ...]:
    if get_origin(hint) is tuple or type(None) in get_args(hint):
        hint = get_args(hint)[0]
    return get_args(hint) if get_origin(hint) is Literal else ()


DISTRIBUTION = "pytest-llmbench"
ENGINE = "pytest-llmbench embedded engine"


def software_version() -> str:
    """Version of this distribution."""
    return _version(DISTRIBUTION)


@cache
def _version(distribution: str) -> str:
    """Version of a distribution; cached, as each variant of an engine states it."""
    return metadata.version(distribution)


def disclosure(config: EngineConfig, deployment: Deployment | None = None) -> Facts:
    """The facts that a tester would have to declare for a real engine; their origin says that it is
    simulated.

    The model's version carries a digest of the figures, and the router before several replicas, so that
    engines with different figures never pass for the same SUT. Load balancing lies outside the boundary of a
    model engine (section 4.1): with a router it is a gateway.
    """
    deployment = deployment or Deployment()
    engines, behind = deployment.engines, deployment.components()
    gateway = _systems(config) or engines > 1
    components = [
        "step-time model",
        "continuous batching",
        "chunked prefill" if config.chunked_prefill else "whole-prompt prefill",
        f"paged KV cache ({_SHORTAGE[config.preemption]})",
        _QUEUES[config.scheduler],
    ]
    if config.speculative_tokens:
        components.append(f"speculative decoding of {config.speculative_tokens} tokens")
    return Facts.of(
        Origin.SIMULATED,
        {
            SUTFact.BOUNDARY: "application_gateway" if gateway else "model_engine",
            SUTFact.COMPONENTS: components + _systems(config) + behind,
            SUTFact.MODEL_NAME: config.model,
            SUTFact.MODEL_VERSION: ", ".join([f"figures {config.figures_sha256[:12]}", *behind]),
            SUTFact.MODEL_QUANTIZATION: "none",
            SUTFact.ACCELERATOR_TYPE: "simulated",
            SUTFact.ACCELERATOR_COUNT: config.accelerator_count * engines,
            SUTFact.ACCELERATOR_MEMORY_GIB: config.accelerator_memory_gib,
            SUTFact.SOFTWARE_ENGINE: ENGINE,
            SUTFact.SOFTWARE_VERSION: software_version(),
            SUTFact.REPLICAS: engines,
            SUTFact.ROUTER: deployment.policies(),
            SUTFact.PREFIX_CACHING: "enabled" if config.prefix_caching else "disabled",
            SUTFact.CONTEXT_LIMIT_TOKENS: config.context_limit_tokens,
            GuardrailFact.INPUT_FILTER: config.input_filter,
            GuardrailFact.OUTPUT_FILTER: config.output_filter,
            GuardrailFact.SYSTEMS: _systems(config),
            **_TOKENIZER,
            TokenizerFact.VERSION: f"tiktoken {_version('tiktoken')}",
            WarmupFact.MODEL_LOADED: True,
            IsolationFact.ISOLATED_SYSTEM: True,
            IsolationFact.RECOVERY_PLAN: (
                f"the engine starts again by itself in {trimmed(config.recovery_ms)} ms"
            ),
        },
        source=f"embedded engine, preset {config.name}",
    )


_TOKENIZER: Mapping[str, str | int] = {
    TokenizerFact.NAME: "cl100k_base",
    TokenizerFact.VOCAB_SIZE: 100277,
    TokenizerFact.SOURCE: "tiktoken:cl100k_base",
    TokenizerFact.COUNTING_OPTION: "A",
    TokenizerFact.SPECIAL_BOS_EOS: "excluded",
    TokenizerFact.SPECIAL_SYSTEM_PROMPT: "none",
    TokenizerFact.SPECIAL_TOOL_FORMAT: "not_used",
}


def _systems(config: EngineConfig) -> list[str]:
    """The guardrails before or after the engine, whether on or off, in words: they make it a gateway."""
    filters = {"input filter": config.input_filter, "output filter": config.output_filter}
    return [f"simulated {name}" for name, state in filters.items() if state != "absent"]


_SHORTAGE: Mapping[PreemptionMode, str] = {
    "recompute": "preemption by recompute",
    "swap": "preemption by swap",
    "off": "no preemption",
}
_QUEUES: Mapping[Scheduler, str] = {
    "fcfs": "FCFS queue",
    "priority": "priority queue",
    "shortest": "shortest-prompt-first queue",
    "phase": "phase-aware dual queue",
}


Described = TypeVar("Described", str, Scenario)

STANDARD_VARIANTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "cache_disabled": {"prefix_caching": "off"},
        "cache_enabled": {"prefix_caching": "on"},
        "guardrails_baseline": {"input_filter": "disabled", "output_filter": "disabled"},
        "guardrails_input": {"input_filter": "enabled", "output_filter": "disabled"},
        "guardrails_output": {"input_filter": "disabled", "output_filter": "enabled"},
        "guardrails_full": {"input_filter": "enabled", "output_filter": "enabled"},
        "speculation_disabled": {"speculative_tokens": "0"},
    }
)
"""Standard variants: options over those of the base scenario, by the variant's name. A filter that is
``disabled`` is there and switched off, so all ``guardrails_*`` are application gateways; a base without any
filter is a model engine."""

_VARIANT_FACTS = (
    SUTFact.BOUNDARY,
    SUTFact.COMPONENTS,
    SUTFact.MODEL_VERSION,
    SUTFact.ACCELERATOR_COUNT,
    SUTFact.REPLICAS,
    SUTFact.ROUTER,
    SUTFact.PREFIX_CACHING,
    GuardrailFact.INPUT_FILTER,
    GuardrailFact.OUTPUT_FILTER,
    GuardrailFact.SYSTEMS,
)


def standard_overrides(name: str) -> Mapping[str, str]:
    """Options of a standard variant. Raises SuiteError for an unknown name."""
    found = STANDARD_VARIANTS.get(name)
    if found is None:
        raise SuiteError(
            f"the embedded engine has no variant {name!r}{_meant(name, STANDARD_VARIANTS)}",
            where="SUT variants",
            remedy=f"standard variants: {', '.join(STANDARD_VARIANTS)}; declare others in the SUT file",
        )
    return found


def with_overrides(scenario: Described, overrides: Mapping[str, str]) -> Described:
    """``scenario`` with options set, whatever they were before; given a text, a text is returned.

    Raises SuiteError with every mistake: unknown options, unreadable values, impossible figures.
    """
    if isinstance(scenario, Scenario):
        mistakes: list[str] = []
        found = _changed(scenario, [f"{name}={value}" for name, value in overrides.items()], mistakes)
        if mistakes:
            where = f"options over those of a scenario of preset {scenario.engine.name}"
            raise SuiteError.from_mistakes(mistakes, where=where, remedy=f"options: {', '.join(_known())}")
        return found
    preset, _, listed = scenario.partition("?")
    options = dict(part.partition("=")[::2] for part in listed.split("&") if part) | dict(overrides)
    text = preset + ("?" if options else "") + "&".join(f"{name}={value}" for name, value in options.items())
    parse_scenario(scenario)  # an option that the text gives twice would be gone from the new one
    parse_scenario(text)
    return text


def variant_facts(scenario: str | Scenario) -> Facts:
    """The facts that a variant adds to those of its base: boundary, cache, filters, figures."""
    parsed = scenario if isinstance(scenario, Scenario) else parse_scenario(scenario)
    stated = disclosure(parsed.engine, parsed.deployment)
    return Facts({name: stated[name] for name in _VARIANT_FACTS})
