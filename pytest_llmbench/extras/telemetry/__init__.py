"""Telemetry: power, energy, use and memory of the machine during each load, sampled in its own process."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.telemetry"
_METRICS = (
    "energy_per_output_token", "energy_per_request", "mean_power", "tokens_per_joule", "tokens_per_dollar",
    "gpu_utilisation", "peak_memory",
)  # fmt: skip

EXTRA = Extra(
    metrics={name: f"{_HERE}.metrics:{name.upper()}" for name in _METRICS},
    machine={
        "figures": f"{_HERE}.figures:with_figures",
        "sampler": f"{_HERE}.sampling:Sampler",
        "accelerator": f"{_HERE}.sampling:accelerator",
        "sampled": f"{_HERE}.sampling:sampled",
        "file": f"{_HERE}.sampling:TelemetryFile",
    },
    sentences={"telemetry": f"{_HERE}:SENTENCES"},
)

_VOID = {
    "no_power": "it reports neither power nor energy",
    "gap": "no reading for more than 3 s",
    "not_covered": "its readings do not reach over the whole load",
    "vanished": "it went while the load ran",
    "fell": "its energy counter fell, and its new start is unknown",
    "stood_still": "its energy counter stands still",
    "rarely": "its source brings the energy counter up to date less than every 3 s",
}
_LOST = {
    "no_answer": "gave no answer",
    "not_readable": "gave what cannot be read",
    "vanished": "went while the load ran",
    "not_installed": "needs a package that is not installed",
    "sampler_died": "the process that samples ended",
    "no_figure": "reports nothing about the machine",
}


def _cases(told: Mapping[str, str]) -> str:
    return "".join(f"[{flag}?{text}]" for flag, text in told.items())


SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "machine_not_sampled": Sentence(
            "{metrics} has a limit, and nothing samples the machine of the system: give the SUT file a "
            "table telemetry, or a replay the option idle_w"
        ),
        "energy_void": Sentence(f"the energy of {{device}} is not known: {_cases(_VOID)}"),
        "energy_by_power": Sentence(
            f"the energy of {{device}} is that of its power over time, not of its counter: {_cases(_VOID)}"
        ),
        "telemetry_lost": Sentence(
            f"telemetry: {{source}} {_cases(_LOST)}[, {{after_s}} s after the start][: {{detail}}]"
        ),
    }
)
