"""URLs of Unix sockets: ``http+unix://%2Frun%2Fengine.sock/v1`` is HTTP over ``/run/engine.sock``."""

from __future__ import annotations

from urllib.parse import unquote, urlsplit

SCHEME = "http+unix"
_LONGEST_BYTES = 107
"""What the kernel's structure holds, on Linux, without its end."""


def socket_path(url: str) -> str:
    """The path of the socket; empty for the URL of anything else."""
    parts = urlsplit(url.strip())
    return unquote(parts.netloc) if parts.scheme == SCHEME else ""


def socket_mistakes(path: str) -> list[str]:
    """What is wrong with the path of a socket, in words."""
    if not path.startswith("/") or "\0" in path:
        example = f"{SCHEME}://%2Frun%2Fengine.sock/v1"
        return [f"{path!r} is no absolute path of a socket; its slashes are written %2F: {example}"]
    if len(path.encode()) > _LONGEST_BYTES:
        return [f"the path of a socket may have {_LONGEST_BYTES} bytes, this one has {len(path.encode())}"]
    return []


def over_http(url: str) -> str:
    """The URL that a server at the socket is asked for: ``http://localhost/v1``. Others as they are."""
    parts = urlsplit(url)
    return parts._replace(scheme="http", netloc="localhost").geturl() if parts.scheme == SCHEME else url
