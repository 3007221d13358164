"""Accuracy: a data set of questions with known answers, asked as the load is, and scored."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.accuracy"

EXTRA = Extra(
    tests={"accuracy": f"{_HERE}.procedure:TEST"},
    main_metrics={"accuracy": f"{_HERE}.procedure:MAIN_METRICS"},
)
