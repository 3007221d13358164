"""How to reach an endpoint and what requests to it look like: values only, nothing here opens a
connection.

API key and secret headers come from the environment or a file, never from the command line.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import SMALL_BYTES, read_bytes
from pytest_llmbench.redaction import keep_secret

if TYPE_CHECKING:
    from pytest_llmbench.http_client import ClientCertificate, HttpProxy
    from pytest_llmbench.wire.dialect import PromptForm


_LONGEST = 8192
"""Most characters of a key: servers take no longer header."""
KEY_VARIABLES = ("LLM_API_KEY", "OPENAI_API_KEY")
"""Environment variables that may hold the API key where none is named, in order of preference."""


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """The headers that authenticate, and the values that must not be shown. Its ``repr`` shows neither."""

    headers: Mapping[str, str] = field(default_factory=dict)
    secrets: frozenset[str] = frozenset()
    """Every secret value, to be replaced in everything that is written."""
    source: str = ""
    """The origin of the API key, in words; empty if there is none."""

    def __post_init__(self) -> None:
        keep_secret(*self.secrets)

    def __repr__(self) -> str:
        return f"Credentials(headers: {', '.join(self.headers) or 'none'}; source: {self.source or 'none'})"


def read_credentials(
    environ: Mapping[str, str],
    *,
    key_env: str | None = None,
    key_file: Path | None = None,
    header_env: Mapping[str, str] | None = None,
) -> Credentials:
    """The credentials of a session.

    ``key_env`` and ``key_file`` name where the API key is; with neither, the variables of ``KEY_VARIABLES``
    are tried and no key at all is fine. ``header_env`` maps further headers to variables. The key travels as
    ``Authorization: Bearer …`` unless ``header_env`` sets that header. Raises SuiteError listing everything
    that is missing or unusable; no message contains a value.
    """
    mistakes: list[str] = []
    key, source = _key(environ, key_env, key_file, mistakes)
    headers: dict[str, str] = {}
    for name, variable in (header_env or {}).items():
        value = environ.get(variable, "").strip()
        mistakes += _value_mistakes(value, f"environment variable {variable}, for header {name},")
        headers[name] = value
    authorised = any(name.lower() == "authorization" for name in headers)
    if authorised and (key_env or key_file):
        mistakes.append(f"header Authorization is set, and an API key is given by {source}: choose one")
    if mistakes:
        remedy = "export the variable, or name another one in the SUT file"
        raise SuiteError.from_mistakes(mistakes, where="credentials", remedy=remedy)
    if key and not authorised:
        headers["Authorization"] = f"Bearer {key}"
    elif authorised:
        named = {name.lower(): variable for name, variable in (header_env or {}).items()}
        key, source = "", f"header Authorization from {named['authorization']}"
    # Of ``Bearer KEY`` also the key alone, which a server may repeat.
    held = [value for value in (key, *headers.values()) if value]
    secrets = frozenset({*held, *(value.rpartition(" ")[2] for value in held)})
    return Credentials(headers, secrets, source if headers else "")


def _key(
    environ: Mapping[str, str], key_env: str | None, key_file: Path | None, mistakes: list[str]
) -> tuple[str, str]:
    """The API key, empty if there is none, and where it is from."""
    if key_env and key_file:
        mistakes.append(f"the API key is to come from {key_env} and from {key_file}: choose one")
        return "", ""
    if key_file is not None:
        source = f"file {key_file}"
        try:
            key = read_bytes(key_file, SMALL_BYTES).decode("utf-8-sig").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            mistakes.append(f"{source} with the API key cannot be read: {reason}")
            return "", source
        mistakes += _value_mistakes(key, f"{source} with the API key")
        return key, source
    if key_env is not None:
        key = environ.get(key_env, "").strip()
        mistakes += _value_mistakes(key, f"environment variable {key_env} with the API key")
        return key, f"environment variable {key_env}"
    for variable in KEY_VARIABLES:
        if key := environ.get(variable, "").strip():
            mistakes += _value_mistakes(key, f"environment variable {variable}")
            return key, f"environment variable {variable}"
    return "", ""


def _value_mistakes(value: str, what: str) -> list[str]:
    if not value:
        return [f"{what} is not set or empty"]
    if len(value) > _LONGEST:
        return [f"{what} holds {len(value):,} characters: no key is longer than {_LONGEST:,}"]
    if not (value.isascii() and value.isprintable()):
        return [f"{what} holds more than one line, or characters that a header cannot carry"]
    return []


@dataclass(frozen=True, slots=True)
class Access:
    """What is needed to reach an endpoint, besides its URL."""

    credentials: Credentials = field(default_factory=Credentials)
    ca_file: Path | None = None
    insecure: bool = False
    """Whether the server's certificate is left unchecked."""
    client: ClientCertificate | None = None
    """The certificate shown to a server that demands one; None: there is none."""
    proxy: HttpProxy | None = None
    """The proxy to use in place of that of the environment; None: that counts."""
    http2: bool = False
    """Whether the load goes over HTTP/2, so that a port which speaks nothing else may be asked over it."""
    connect_s: float = 10.0
    answer_s: float = 120.0
    """Time limit in seconds from the request to the end of its answer; a cold model may be loaded by the
    first request."""


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The form of the measured requests, so that the preflight asks in the same way."""

    prompt_form: PromptForm = "text"
    ignore_eos: bool = False
    extra_body: Mapping[str, Any] = field(default_factory=dict)
