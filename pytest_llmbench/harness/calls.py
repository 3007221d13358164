"""Administrative HTTP calls to a SUT: switch it over, empty its caches."""

from __future__ import annotations

import json
from dataclasses import replace
from urllib.parse import urlsplit

from pytest_llmbench.errors import SUTError
from pytest_llmbench.probes.control_plane import Access, ControlPlane
from pytest_llmbench.probes.credentials import Credentials
from pytest_llmbench.probes.sut_schema import Reset
from pytest_llmbench.probes.variant_tables import Call

_SHOWN = 200


def perform(call: Call, server_url: str, access: Access, *, where: str) -> None:
    """Make the call and see that it succeeded. Raises SUTError with the status and what the server said."""
    url = call.url if call.url is not None else _origin(server_url) + str(call.path)
    body = None if call.body is None else json.dumps(call.body).encode()
    if _origin(url) != _origin(server_url):
        access = replace(access, credentials=Credentials())  # a key is for its server, nobody else
    with ControlPlane(url, access) as control:
        answer = control.call(call.method, url, body)
    good = 200 <= answer.status < 300 if call.expect is None else answer.status == call.expect
    if not good:
        wanted = "200 to 299" if call.expect is None else str(call.expect)
        said = answer.body.decode(errors="replace").strip()[:_SHOWN]
        raise SUTError(
            f"{call.method} {answer.url} answered with status {answer.status}, not {wanted}"
            + (f": {said}" if said else ""),
            where=where,
            remedy="correct the call in the SUT file, or look at the server's log",
        )


def empty_caches(reset: Reset, server_url: str, access: Access, *, where: str) -> None:
    """The call of a ``reset`` table. Raises SUTError if it fails."""
    perform(Call(method=reset.method, path=reset.path), server_url, access, where=f"{where}: reset")


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


__all__ = ["empty_caches", "perform"]
