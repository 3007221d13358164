"""A batch: so many requests that leave at one instant, as engines' own benchmarks send them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.batch"

EXTRA = Extra(
    tests={"batch": f"{_HERE}.procedure:TEST"},
    main_metrics={"batch": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={
        "send_spread": f"{_HERE}.figures:SPREAD",
        "common_generation_rate": f"{_HERE}.figures:COMMON",
        "fastest_rate_times_prompts": f"{_HERE}.figures:FASTEST",
        "server_prefill_rate": f"{_HERE}.figures:SERVER_PREFILL",
        "server_generation_rate": f"{_HERE}.figures:SERVER_GENERATION",
    },
    sentences={"batch": f"{_HERE}:SENTENCES"},
)

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "not_held_back": Sentence(
            "{transport} holds nothing back: the requests leave whole, one after the other; send_spread says "
            "within what time"
        ),
    }
)
