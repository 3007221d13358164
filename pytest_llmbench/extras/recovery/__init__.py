"""Recovery: how long after a spike, a restart or a failure a limit holds again."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.recovery"

EXTRA = Extra(
    tests={"recovery": f"{_HERE}.procedure:TEST"},
    main_metrics={"recovery": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={"time_to_recovery": f"{_HERE}.figures:TIME"},
    sentences={"recovery": f"{_HERE}:SENTENCES"},
)

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "not_recovered": Sentence(
            "run {run}: {limit} did not hold again within the load, which went on for {seconds} s: "
            "time_to_recovery is at least that"
        ),
        "no_event": Sentence("run {run}: replay runs no command, so there is no time to recover"),
        "never_broken": Sentence("run {run}: the limit held all the time, so there is no time to recover"),
    }
)
