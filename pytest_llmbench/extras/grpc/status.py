"""The status with which a gRPC call ended, and the corresponding HTTP status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from pytest_llmbench.wire.error_replies import shorten

_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS",
    "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE",
    "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
_HTTP: Mapping[str, int] = {
    "OK": 200,
    "CANCELLED": 499,
    "INVALID_ARGUMENT": 400,
    "DEADLINE_EXCEEDED": 504,
    "NOT_FOUND": 404,
    "PERMISSION_DENIED": 403,
    "RESOURCE_EXHAUSTED": 429,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
    "UNAUTHENTICATED": 401,
}
_OTHERWISE = 500
_TOO_LARGE = 413
_PUSHBACK = "grpc-retry-pushback-ms"


@dataclass(frozen=True, slots=True)
class CallStatus:
    """The status of a call that has ended."""

    code: str
    """The number, as the server wrote it; empty: it gave none, which a client reads as UNKNOWN."""
    message: str = ""
    retry_after: str = ""
    """Seconds to wait, as in ``Retry-After``; empty: the server does not say."""

    @property
    def is_ok(self) -> bool:
        """Whether the call has succeeded."""
        return self._name == "OK"

    @property
    def http_status(self) -> int:
        """The corresponding HTTP status."""
        # gRPC's own libraries, C++ and Go, refuse a request above their limit so: no server is busy there.
        if self._name == "RESOURCE_EXHAUSTED" and "message larger than max" in self.message:
            return _TOO_LARGE
        return _HTTP.get(self._name, _OTHERWISE)

    @property
    def text(self) -> str:
        """The status in words, on one line."""
        if not self.code:
            return "the call ended without a gRPC status"
        said = f"gRPC status {shorten(f'{self.code} {self._name}', 60)}"
        return f"{said}: {shorten(self.message)}" if self.message else said

    @property
    def _name(self) -> str:
        number = int(self.code) if self.code.isascii() and self.code.isdigit() else -1
        return _NAMES[number] if 0 <= number < len(_NAMES) else "UNKNOWN"


def status_of(trailers: Iterable[tuple[bytes, bytes]]) -> CallStatus:
    """The status in the trailers of a call. Never raises."""
    held = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in trailers}
    pushback = held.get(_PUSHBACK, "")[:12]
    wait = f"{int(pushback) / 1000:g}" if pushback.isascii() and pushback.isdigit() else ""
    code = held.get("grpc-status", "").strip()[:12]
    return CallStatus(code, unquote(held.get("grpc-message", ""), errors="replace"), wait)
