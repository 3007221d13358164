"""HTTP/2: the client's side, load with several requests on a connection, and the known-delay server."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence
from pytest_llmbench.registry import Extra, Transport

_HERE = "pytest_llmbench.extras.http2"

EXTRA = Extra(
    home=_HERE,
    transports=(
        Transport(
            name="http/2",
            title="HTTP/2",
            carry=f"{_HERE}.transport:carry",
            note="over_http2",
            preflight={"agree": f"{_HERE}.transport:agree_on_http2"},
            faces={"known_delay": f"{_HERE}.known_delay:Http2Side"},
        ),
    ),
    sentences={"http2": f"{_HERE}:SENTENCES"},
    packages=("h2",),
    install="pytest-llmbench[http2]",
)

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "over_http2": Sentence(
            "the load was measured over HTTP/2 (--llm-http=2): replies that share a connection wait for the "
            "bytes of one another, and what is lost or read late is so for all of them"
        ),
    }
)
