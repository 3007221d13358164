"""The bytes of an HTTP/1.1 request, made before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.installed import installed_version


class RequestHead:
    """Everything of a request that is the same for all requests to one path of a target.

    ``Accept-Encoding: identity``: a compressed stream is buffered by whoever compresses it.
    ``x-request-id`` carries our request id, so that server logs can be matched with records. A turn of a
    session also says which session it is of, for routers that keep a session on one replica.
    """

    def __init__(
        self,
        target: Target,
        path: str,
        further: Mapping[str, str] | None = None,
        session_header: str = "",
    ) -> None:
        """``further``: headers that the dialect wants beside those of the target. ``session_header``: the
        name of the header with the id of the session; empty: it is not sent."""
        headers = {"Host": target.authority, **usual_headers(target, further)}
        where = target.request_target(path)
        if target.proxy is not None and not target.is_tunnelled:
            where = f"{target.scheme}://{target.authority}{where}"  # the absolute form, RFC 9112, 3.2.2
            headers |= target.proxy.headers
        lines = [f"POST {where} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._fixed = ("\r\n".join(lines) + "\r\nx-request-id: ").encode("ascii")
        self.session_header = session_header

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """Request line, headers and body in one buffer, for one write.

        ``session_id``: that of the session which the request is a turn of; None: it is of none.
        """
        named = session_id is not None and self.session_header
        return b"%b%b%b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._fixed,
            request_id.encode("ascii"),
            f"\r\n{self.session_header}: {session_id}".encode("ascii") if named else b"",
            len(body),
            body,
        )


def usual_headers(target: Target, further: Mapping[str, str] | None = None) -> dict[str, str]:
    """The headers of every request to a target, beside those that say where it goes and how long it is."""
    return {
        "User-Agent": user_agent(),
        "Accept": "text/event-stream, application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        **dict(target.headers),
        **(further or {}),
    }


def user_agent() -> str:
    """Value of the header User-Agent: our name and version."""
    version = installed_version("pytest-llmbench")
    # None: run from a source tree that was never installed
    return "pytest-llmbench" if version is None else f"pytest-llmbench/{version}"
