"""Sessions under test whose subject is not timing, and which send a load all the same: no load of theirs is
void for what this machine did meanwhile."""

from __future__ import annotations

import pytest

LIMITS = "send_lag_ns=1e18,rate_share=0,latency_ms=1e9,empty_slot_share=1,buffered_share=1"


@pytest.fixture
def however_late(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """For sessions in this process and for those that it starts. Behind ``pytester``, which takes away the
    options of the environment."""
    monkeypatch.setenv("PYTEST_ADDOPTS", f"--llm-host-limits={LIMITS}")
