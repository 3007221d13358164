"""The whole chain against known truth: over each transport, we measure what the embedded engine did."""

from __future__ import annotations

import statistics

import pytest
from embedded_chain import beside_truth, least_disturbed, measured

pytestmark = [pytest.mark.timing, pytest.mark.usefixtures("however_late")]


def test_measured_ttft_is_the_engine_s_own(pytester, engine):
    entry = measured(pytester, engine.url, rate=150, requests=100, longest=32)
    found = list(beside_truth(pytester.path / "out", entry, engine))
    assert all(row["input_tokens"] == true.prompt_tokens for row, true, _ in found)
    errors_ms = [error_ms for *_, error_ms in found]
    assert len(errors_ms) == 100
    assert -0.2 < least_disturbed(errors_ms) < 2.0, statistics.quantiles(errors_ms, n=20)
