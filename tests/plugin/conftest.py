"""One embedded engine for all tests of the plugin, and a suite to run against it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plugin_suite import suite  # noqa: F401 - a fixture

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

QUICK_ENGINE = "fast"


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(QUICK_ENGINE) as running:
        yield running
