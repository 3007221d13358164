"""Files of other load generators: their results beside ours, and their lists of loads as tests."""

from __future__ import annotations

from pytest_llmbench.registry import Extra

_HERE = "pytest_llmbench.extras.foreign"

EXTRA = Extra(
    comparisons={"results of other tools": f"{_HERE}.comparing:ForeignComparing.read"},
    result_formats={
        name: f"{_HERE}.{name}:FORMAT" for name in ("vllm", "sglang", "aiperf", "guidellm", "inference_perf")
    },
    sentences={"foreign": f"{_HERE}.wording:SENTENCES"},
    test_lists={"recipes": f"{_HERE}.imported:register"},
)
