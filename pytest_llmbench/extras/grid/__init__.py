"""A grid of jobs: lengths of prompts and replies by concurrency, a test item each, and their Pareto front."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.grid"

EXTRA = Extra(
    tests={"grid": f"{_HERE}.procedure:TEST"},
    cells={"grid": f"{_HERE}.procedure:cells"},
    main_metrics={"grid": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={"output_tokens_per_user_second": f"{_HERE}.front:USER"},
    reports={"grid.csv": f"{_HERE}.front:csv_text", "grid.html": f"{_HERE}.front:page"},
)
