"""The load generator measured over what extras speak."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selftest_cases import TINY

from pytest_llmbench.harness.selftest.certificate import (
    TRANSPORTS,
)
from pytest_llmbench.harness.selftest.run import run_selftest


@pytest.mark.slow
@pytest.mark.parametrize("over", TRANSPORTS[1:])
def test_the_errors_of_each_transport(over: str) -> None:
    extent = replace(TINY, rate_from=TINY.gentle_rate, flood_requests=8)
    found = run_selftest(extent, over=over)
    assert found.check.transport == found.plain()["over"] == over
    assert (found.gentle.ttft_error.n, found.gentle.itl_error.n, found.gentle.stamp_error.n) == (12, 24, 36)
    assert 0 < found.gentle.ttft_error.p50 < 5_000
    assert found.gentle.stamp_error.p50 < found.gentle.ttft_error.p50
    assert found.flood.ttft_error.n == 8
