"""HTTP/2: the client's side, load with several requests on a connection, and the known-delay server."""

from __future__ import annotations

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
            preflight={"agree": f"{_HERE}.agreement:agree_on_http2"},
            faces={"known_delay": f"{_HERE}.known_delay:Http2Side"},
        ),
    ),
    sentences={"http2": f"{_HERE}.wording:SENTENCES"},
    packages=("h2",),
    install="pytest-llmbench[http2]",
)
