"""The whole chain on an embedded engine: a suite, its run in this process, and its rows beside the truth."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from measured_rows import counted_rows

from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine

_SUITE = """
import pytest
from pytest_llmbench import SyntheticWorkload, Uniform, WarmupPolicy, llmbench

SHORT = SyntheticWorkload("short-replies", Uniform(128, 512), Uniform(8, {longest}))

@pytest.fixture(scope="session")
def llm_warmup():
    return WarmupPolicy(requests=10, output_tokens=0, probes=3)

@llmbench.ttft(rate={rate}, requests={requests}, workload=SHORT)
def test_open_loop(): ...
"""


def measured(
    pytester: pytest.Pytester, url: str, *options: str, rate: int = 60, requests: int = 30, longest: int = 16
) -> dict[str, Any]:
    """The entry of the report of one open loop."""
    suite = _SUITE.format(rate=rate, requests=requests, longest=longest)
    arguments = ["--llm-report=out", f"--llm-endpoint={url}", *options]
    run_in_process(pytester, suite, *arguments).assert_outcomes(passed=1)
    (entry,) = json.loads((pytester.path / "out" / "report.json").read_text("utf-8"))["tests"]
    return dict(entry)


def run_in_process(pytester: pytest.Pytester, suite: str, *options: str) -> pytest.RunResult:
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    pytester.makepyfile(test_suite=suite)
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)


def least_disturbed(errors_ms: Sequence[float]) -> float:
    """The lowest twentieth of errors. A machine that is busy elsewhere adds to them, seldom to all: what is
    asked is how exact the tool is where it is not held up. On a quiet machine half of them lie within a tenth
    of a millisecond; the bounds of the tests are for a shared one."""
    return statistics.quantiles(errors_ms, n=20)[0]


def beside_truth(
    out: Path, entry: dict[str, Any], engine: EmbeddedEngine
) -> Iterator[tuple[dict[str, Any], GroundTruth, float]]:
    """Row, truth, and by how many ms its TTFT is longer than that of the engine."""
    truth = {entry.request_id: entry for entry in engine.ground_truth()}
    for row in counted_rows(out, entry):
        true = truth[row["request_id"]]
        assert true.output_tokens == row["output_tokens"]
        # Same clock: the server cannot have read the request before we sent it, nor written after we read.
        assert true.first_write_ns is not None
        assert true.first_write_ns <= row["first_content_ns"]
        assert row["submitted_ns"] <= true.received_ns
        true_ttft_ns = true.first_write_ns - true.received_ns
        yield row, true, (row["first_content_ns"] - row["submitted_ns"] - true_ttft_ns) / 1e6
