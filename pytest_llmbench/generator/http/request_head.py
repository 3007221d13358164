"""The bytes of an HTTP/1.1 request, made before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.http_client import REQUEST_ID, usual_headers


class RequestHead:
    """Everything of a request that is the same for all requests to one path of a target.

    A turn of a session also says which session it is of, for routers that keep a session on one replica.
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
        headers = {"Host": target.authority, **usual_headers(dict(target.headers), further)}
        where = target.request_target(path)
        if target.proxy is not None and not target.is_tunnelled:
            where = f"{target.scheme}://{target.authority}{where}"  # the absolute form, RFC 9112, 3.2.2
            headers |= target.proxy.headers
        lines = [f"POST {where} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._fixed = ("\r\n".join(lines) + f"\r\n{REQUEST_ID}: ").encode("ascii")
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
