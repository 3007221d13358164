"""Servers with canned answers."""

from __future__ import annotations

import pytest
from canned_http import engine, serve  # noqa: F401 - fixtures


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxies the environment of the test run has."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
