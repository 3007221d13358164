"""The page about results of other tools names every reader and whatever it leaves out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.registry import every

PAGE = (Path(__file__).parents[3] / "docs/how-to/import-results.md").read_text("utf-8").replace("`", "")
NAMED_OTHERWISE = {
    "itl", "inter_token_latency", "inter_chunk_latency",  # gaps between chunks and their likes
    "request_goodput", "slo_attainment", "goodput_metrics",
    "input_throughput", "concurrency", "time_to_second_token",
    "output_tokens_per_iteration",
}  # fmt: skip


@pytest.mark.parametrize("made", every("result_formats").values(), ids=lambda made: made.tool)
def test_what_is_left_out_of_its_files_is_named(made: Any) -> None:
    tool, left_out = made.tool, made.left_out
    assert PAGE.count(tool) >= 2
    for name in set(left_out) - NAMED_OTHERWISE:
        assert name in PAGE, f"{tool}: {name}"
