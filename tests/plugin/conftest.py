"""One embedded engine for all tests of the plugin, and a suite to run against it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from plugin_suite import Suite

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

QUICK_ENGINE = "fast"


@pytest.fixture(scope="session")
def engine() -> Iterator[EmbeddedEngine]:
    with EmbeddedEngine.start(QUICK_ENGINE) as running:
        yield running


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    # The keys of whoever runs these tests must not leak into what the tests send.
    for name in ("LLM_API_KEY", "OPENAI_API_KEY", "CI", "GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    # Within the one process: these tests are about the plugin, and each would start another. Those about
    # the measuring process itself ask for it.
    pytester.makeini(
        """
        [pytest]
        asyncio_default_fixture_loop_scope = function
        llm_workers = 0
        """
    )
    return Suite(pytester)
