"""The bytes of a gRPC call's request, made before anything is timed."""

from __future__ import annotations

from pytest_llmbench.endpoint_urls import GRPC_SCHEMES
from pytest_llmbench.generator.http.request_head import user_agent
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.wire.dialect import CallDialect, headers_for
from pytest_llmbench.wire.grpc.messages import prefixed
from pytest_llmbench.wire.http2.client import header_block, request_frames


class CallHead:
    """What :class:`~pytest_llmbench.generator.http.request_head.RequestHead` is for requests over HTTP.

    The id of a request is in its message, and the id of a session in its metadata. Stream ids are set when it
    is known which connection takes the call.
    """

    def __init__(self, target: Target, spoken: CallDialect, path: str, session_header: str = "") -> None:
        """``session_header``: the name of the header with the id of the session; empty: it is not sent."""
        given = dict(target.headers)
        headers = {"user-agent": user_agent()} | {name.lower(): value for name, value in given.items()}
        headers |= {name.lower(): value for name, value in headers_for(spoken, given).items()}
        fixed = {
            ":method": "POST",
            ":scheme": GRPC_SCHEMES[target.scheme],
            ":path": path,
            ":authority": target.authority,
            "te": "trailers",
            "content-type": "application/grpc",
            "grpc-accept-encoding": "identity",
        }
        self._spoken = spoken
        self._fixed = header_block((fixed | headers).items(), first=True)
        self.session_header = session_header

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """Headers and message in frames, for one write.

        ``session_id``: that of the session which the request is a turn of; None: it is of none.
        """
        block = self._fixed
        if session_id is not None and self.session_header:
            block += header_block([(self.session_header.lower(), session_id)])
        return request_frames(block, prefixed(self._spoken.message(body, request_id)))
