"""An audit against gaming (section 7.2 of the draft): is a benchmark served as everything else is?"""

from __future__ import annotations

from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.integrity"

EXTRA = Extra(
    tests={"integrity": f"{_HERE}.procedure:TEST"},
    main_metrics={"integrity": f"{_HERE}.procedure:MAIN_METRICS"},
    metrics={
        name: f"{_HERE}.checks:METRICS.{name}"
        for name in (
            "repeated_tpot_ratio",
            "repeated_ttft_ratio",
            "published_tpot_ratio",
            "published_ttft_ratio",
            "length_ratio_under_load",
            "canned_first_tokens",
            "changed_under_load",
        )
    },
    sentences={"integrity": f"{_HERE}.wording:SENTENCES"},
)
