"""Sessions under test whose subject is not timing, and which send a load all the same: no load of theirs is
void for what this machine did meanwhile.

A plugin of those sessions, and not to be rewritten as such: PYTEST_DONT_REWRITE. It is loaded here already.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_llmbench.model.observation import HostLimits
from pytest_llmbench.plugin.session import HOST_LIMITS


@pytest.fixture
def however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """For sessions in this process and for those that it starts."""
    monkeypatch.setenv("PYTEST_PLUGINS", __name__)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)


@pytest.hookimpl(tryfirst=True)  # sessions that save or compare are made in this hook
def pytest_configure(config: pytest.Config) -> None:
    config.stash[HOST_LIMITS] = HostLimits(
        send_lag_ns=10**18, rate_share=0.0, latency_ms=1e9, empty_slot_share=1.0, buffered_share=1.0
    )
