"""Telemetry: power, energy, use and memory of the machine during each load, sampled in its own process."""

from __future__ import annotations

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
    sentences={"telemetry": f"{_HERE}.wording:SENTENCES"},
)
