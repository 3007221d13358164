"""What the embedded engine states about itself, as facts of the manifest (METHODOLOGY §2, §5, §9)."""

from __future__ import annotations

from importlib import metadata

from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.simulator.presets import EngineConfig

DISTRIBUTION = "pytest-llmbench"
ENGINE = "pytest-llmbench embedded engine"


def software_version() -> str:
    """Version of this distribution."""
    return metadata.version(DISTRIBUTION)


def disclosure(config: EngineConfig) -> Facts:
    """All that a tester would have to declare for a real engine; the origin says that it is simulated.

    The model's version carries a digest of the figures, so that engines with different figures never pass
    for the same SUT.
    """
    return Facts.of(
        Origin.SIMULATED,
        {
            "sut.boundary": "model_engine",
            "sut.components": ["step-time model", "continuous batching", "chunked prefill", "FCFS queue"],
            "sut.model.name": config.model,
            "sut.model.version": f"figures {config.figures_sha256[:12]}",
            "sut.model.quantization": "none",
            "sut.hardware.accelerator_type": "simulated",
            "sut.hardware.accelerator_count": 1,
            "sut.hardware.accelerator_memory_gib": config.accelerator_memory_gib,
            "sut.software.engine": ENGINE,
            "sut.software.version": software_version(),
            "sut.prefix_caching": "disabled",
            "sut.context_limit_tokens": config.context_limit_tokens,
            "guardrails.input_filter": "absent",
            "guardrails.output_filter": "absent",
            "guardrails.systems": [],
            "tokenizer.name": "cl100k_base",
            "tokenizer.version": f"tiktoken {metadata.version('tiktoken')}",
            "tokenizer.vocab_size": 100277,
            "tokenizer.source": "tiktoken:cl100k_base",
            "tokenizer.counting_option": "A",
            "tokenizer.special.bos_eos": "excluded",
            "tokenizer.special.system_prompt": "none",
            "tokenizer.special.tool_format": "not_used",
            "warmup.model_loaded": True,
        },
        source=f"embedded engine, preset {config.name}",
    )


__all__ = ["DISTRIBUTION", "ENGINE", "disclosure", "software_version"]
