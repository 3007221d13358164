"""Speculative decoding: how many guessed tokens are accepted, and what it gains against none."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.speculative"

EXTRA = Extra(
    tests={"speculative": f"{_HERE}.procedure:TEST"},
    main_metrics={"speculative": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={
        "acceptance_length": f"{_HERE}.acceptance:LENGTH",
        "acceptance_rate": f"{_HERE}.acceptance:RATE",
        "acceptance_at": f"{_HERE}.acceptance:AT",
        "tokens_per_step": f"{_HERE}.acceptance:PER_STEP",
        "tokens_per_event": f"{_HERE}.acceptance:PER_EVENT",
        "speedup": f"{_HERE}.procedure:SPEEDUP",
    },
    sentences={"speculative": f"{_HERE}.wording:SENTENCES"},
)
