"""Recovery: how long after a spike, a restart or a failure a limit holds again."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.recovery"

EXTRA = Extra(
    tests={"recovery": f"{_HERE}.procedure:TEST"},
    main_metrics={"recovery": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={"time_to_recovery": f"{_HERE}.figures:TIME"},
    sentences={"recovery": f"{_HERE}.wording:SENTENCES"},
)
