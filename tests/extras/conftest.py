"""What tests of the core share with those of extras: suites, loads, canned servers."""

from collections.abc import Iterator

import pytest
from canned_http import engine as canned_engine  # noqa: F401 - fixtures
from canned_http import no_proxies  # noqa: F401
from canned_http import serve as serve_canned  # noqa: F401
from load_fixtures import ask, generator_for, loop_factory, plan, serve  # noqa: F401
from plugin_suite import engine, suite  # noqa: F401

from pytest_llmbench.simulator.serving.process import EmbeddedEngine


@pytest.fixture(scope="module")
def grpc_engine() -> Iterator[EmbeddedEngine]:
    """An embedded engine that is served over gRPC, too; each test finds its own requests in its log."""
    with EmbeddedEngine.start("fast", grpc=True) as running:
        yield running
