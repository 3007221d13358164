"""Its place makes the helpers of this folder importable for the tests in folders below it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_llmbench.simulator.serving.process import EmbeddedEngine


@pytest.fixture(scope="module")
def fast() -> Iterator[EmbeddedEngine]:
    """An engine without options, for the tests of a module that do not mind what others have asked of it."""
    with EmbeddedEngine.start("fast") as engine:
        yield engine
