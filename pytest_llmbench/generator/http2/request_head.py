"""The bytes of a request over HTTP/2, made before anything is timed."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_llmbench.generator.http.request_head import usual_headers
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.wire.http2.client import header_block, request_frames


class Http2Head:
    """What :class:`~pytest_llmbench.generator.http.request_head.RequestHead` is over HTTP/1.1, with the same
    headers.

    Stream ids are set when it is known which connection takes the request.
    """

    def __init__(
        self,
        target: Target,
        path: str,
        further: Mapping[str, str] | None = None,
        session_header: str = "",
    ) -> None:
        """As of RequestHead."""
        fixed = {
            ":method": "POST",
            ":scheme": target.scheme,
            ":path": target.request_target(path),
            ":authority": target.authority,
        }
        headers = {name.lower(): value for name, value in usual_headers(target, further).items()}
        self._fixed = header_block((fixed | headers).items(), first=True)
        self.session_header = session_header

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """Headers and body in frames, for one write.

        ``session_id``: that of the session which the request is a turn of; None: it is of none.
        """
        own = [("x-request-id", request_id), ("content-length", str(len(body)))]
        if session_id is not None and self.session_header:
            own.append((self.session_header.lower(), session_id))
        return request_frames(self._fixed + header_block(own), body)
