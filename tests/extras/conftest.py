"""What tests of the core share with those of extras: suites, loads, canned servers."""

import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
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


@pytest.fixture
def secured(tmp_path: Path) -> Callable[..., tuple[ssl.SSLContext, Path]]:
    """Makes a server's context that knows these protocols; gives it, and the file of its authority."""

    def made(*protocols: str) -> tuple[ssl.SSLContext, Path]:
        authority, ca_file = trustme.CA(), tmp_path / "ca.pem"
        authority.cert_pem.write_to_path(str(ca_file))
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        authority.issue_cert("127.0.0.1").configure_cert(context)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context, ca_file

    return made
