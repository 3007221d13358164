"""The headers that each HTTP request carries, measured or not, and the ids of requests.

The preflight and the load take both from here: a server that refuses a header refuses it before the load.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from uuid import UUID

from pytest_llmbench.installed import installed_version

REQUEST_ID = "x-request-id"
"""Header with our id of the request, so that server logs can be matched with records."""


def usual_headers(given: Mapping[str, str], further: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of every request, beside its id and those that say where it goes and how long it is.

    ``given``: those of the SUT file, with the key; ``further``: those of the dialect. The later one counts
    where two have one name, in whatever case. ``Accept-Encoding: identity``: a compressed stream is buffered
    by whoever compresses it.
    """
    headers = {
        "User-Agent": user_agent(),
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    for name, value in [*given.items(), *(further or {}).items()]:
        known = next((each for each in headers if each.lower() == name.lower()), name)
        headers[known] = value
    return headers


def call_headers(given: Mapping[str, str], further: Mapping[str, str] | None = None) -> dict[str, str]:
    """:func:`usual_headers` of a call over gRPC, in lower case as HTTP/2 wants them; its id is in its
    message."""
    named = {name.lower(): value for name, value in [*given.items(), *(further or {}).items()]}
    own = {"te": "trailers", "content-type": "application/grpc", "grpc-accept-encoding": "identity"}
    return own | {"user-agent": user_agent()} | named | own


def user_agent() -> str:
    """Value of the header User-Agent: our name and version."""
    version = installed_version("pytest-llmbench")
    # None: run from a source tree that was never installed
    return "pytest-llmbench" if version is None else f"pytest-llmbench/{version}"


def numbered_ids() -> Callable[[int], str]:
    """Ids for the requests of a load by their index, at most twelve digits: other ones each time.

    Each is a UUID of version 4, since middleware of servers takes no other word (llama-cpp-python answers
    400), whose last twelve digits are the index in decimal: records keep it as a prefix and a number.
    """
    start = str(UUID(bytes=secrets.token_bytes(16), version=4))[:-12]
    return lambda index: f"{start}{index:012}"
