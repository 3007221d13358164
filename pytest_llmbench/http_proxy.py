"""The HTTP proxy through which requests are measured, where one is asked for."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from http import HTTPStatus
from urllib.parse import unquote, urlsplit

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.redaction import keep_secrets_of

END_OF_HEAD = b"\r\n\r\n"
LONGEST_HEAD = 65_536
"""Most bytes of a proxy's answer; more is none."""
_SHOWN = 60
OF_ENVIRONMENT = "env"
"""Value in place of a URL that means the proxy which the environment names for the host of each endpoint."""


@dataclass(frozen=True, slots=True, repr=False)
class HttpProxy:
    """A proxy that speaks plain HTTP itself. Its credentials are in no ``repr`` and no error."""

    host: str
    port: int
    credentials: str = ""
    """``user:password``, decoded; empty: none."""

    @classmethod
    def parse(cls, url: str) -> HttpProxy:
        """Read ``http://[user:password@]host:port``. Raises SuiteError for what is no such proxy."""
        keep_secrets_of(url)
        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError as error:
            raise _no_proxy(f"it is not a URL: {error}") from None
        if parts.scheme != "http":
            raise _no_proxy(
                f"it is {parts.scheme or 'without a scheme'}, and only http:// is spoken to a proxy"
            )
        if not parts.hostname or not port:
            raise _no_proxy("it names no host and port")
        if parts.path.strip("/") or parts.query or parts.fragment:
            raise _no_proxy("a proxy has no path")
        given = (parts.username, parts.password or "") if parts.username is not None else None
        return cls(parts.hostname, port, ":".join(map(unquote, given)) if given else "")

    @classmethod
    def without_credentials(cls, url: str) -> HttpProxy:
        """Read a proxy that stands on a command line or in a file. Raises SuiteError for credentials too."""
        found = cls.parse(url)
        if found.credentials:
            raise _no_proxy("credentials belong on no command line and in no file of a repository")
        return found

    @property
    def url(self) -> str:
        """URL of the proxy without credentials."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def headers(self) -> dict[str, str]:
        """Headers of a request to the proxy itself: its credentials (RFC 9110, section 11.7.2)."""
        if not self.credentials:
            return {}
        token = base64.b64encode(self.credentials.encode("utf-8")).decode("ascii")
        return {"Proxy-Authorization": f"Basic {token}"}

    def connect_request(self, host: str, port: int) -> bytes:
        """The request for a tunnel to a server (RFC 9110, section 9.3.6)."""
        name = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
        lines = [f"CONNECT {name}:{port} HTTP/1.1", f"Host: {name}:{port}"]
        lines += [f"{header}: {value}" for header, value in self.headers.items()]
        return "\r\n".join(lines).encode("ascii") + END_OF_HEAD

    def __repr__(self) -> str:
        return f"HttpProxy({self.url})"


def why_no_tunnel(head: bytes) -> str:
    """Why an answer to CONNECT opens no tunnel, in words; empty if it does. ``head``: the answer up to the
    end of its head."""
    line = head.partition(b"\r\n")[0]
    version, _, rest = line.partition(b" ")
    number = rest[:3]
    if not version.startswith(b"HTTP/1.") or len(number) != 3 or not number.isdigit():
        shown = line if len(line) <= _SHOWN else line[:_SHOWN] + b"..."
        return f"no answer of a proxy: {shown.decode('latin-1')!r}"
    status = int(number)
    if 200 <= status < 300:
        return ""
    phrase = f" ({HTTPStatus(status).phrase})" if status in set(HTTPStatus) else ""
    return f"the proxy answered {status}{phrase} to CONNECT"


def _no_proxy(what: str) -> SuiteError:
    return SuiteError(
        f"no proxy that can be used: {what}",
        where="--llm-proxy",
        remedy="write http://host:port, or env for the one of the environment, which may have a password",
    )
