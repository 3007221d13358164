"""The bytes of an HTTP/1.1 request, made before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import metadata

from pytest_llmbench.generator.http.target import Target


class RequestHead:
    """Everything of a request that is the same for all requests to one path of a target.

    ``Accept-Encoding: identity``: a compressed stream is buffered by whoever compresses it.
    ``x-request-id`` carries our request id, so that server logs can be matched with records.
    """

    def __init__(self, target: Target, path: str, further: Mapping[str, str] | None = None) -> None:
        """``further``: headers that the dialect wants beside those of the target."""
        headers = {
            "Host": target.authority,
            "User-Agent": _user_agent(),
            "Accept": "text/event-stream, application/json",
            "Accept-Encoding": "identity",
            "Content-Type": "application/json",
            **dict(target.headers),
            **(further or {}),
        }
        lines = [f"POST {target.request_target(path)} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._fixed = ("\r\n".join(lines) + "\r\nx-request-id: ").encode("ascii")

    def wire(self, request_id: str, body: bytes) -> bytes:
        """Request line, headers and body in one buffer, for one write."""
        return b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._fixed,
            request_id.encode("ascii"),
            len(body),
            body,
        )


def _user_agent() -> str:
    try:
        return f"pytest-llmbench/{metadata.version('pytest-llmbench')}"
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "pytest-llmbench"
