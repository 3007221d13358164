"""TLS: which server certificates are trusted, which certificate is shown to servers, and what a failure
means."""

from __future__ import annotations

import errno
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.input_files import SMALL_BYTES, read_bytes

_CLOCK: Final = "or set the clock of this machine, if that is wrong"
_UNTRUSTED: Final = (
    "is not trusted",
    "name its certificate authority as ca_file under [endpoint] of the SUT file, or in the variable "
    "SSL_CERT_FILE; a server that does not send its intermediate certificates looks the same",
)
_VERDICTS: Final = {
    # OpenSSL's X509_V_ERR_…: what is wrong with the certificate, and who can mend it
    9: ("is not valid yet", f"wait, {_CLOCK}"),
    10: ("has expired", f"renew it on the server, {_CLOCK}; trusting another authority does not help"),
    18: ("is signed by itself",
         "if it is the one that you expect, name it as ca_file under [endpoint] of the SUT file, or in the "
         "variable SSL_CERT_FILE"),
    23: ("has been revoked", "give the server a new one"),
    62: ("is for another name", "use the host name that the certificate is for"),
    64: ("is for another address", "use the host name that the certificate is for"),
    66: ("has too short a key", "give the server one with a longer key"),
    67: ("has an authority with too short a key", "have it issued by another one"),
    68: ("is signed by a broken digest", "have it issued anew"),
}  # fmt: skip
_HANDSHAKES: Final = (
    # part of OpenSSL's reason, what it means, what helps
    ("CERTIFICATE_REQUIRED", "the server demands a certificate of its client",
     "name it as client_cert_file under [endpoint] of the SUT file"),
    ("HANDSHAKE_FAILURE", "the server refuses the handshake",
     "it may demand a certificate of its client (client_cert_file under [endpoint] of the SUT file), or "
     "share no cipher"),
    ("PROTOCOL", "the server speaks no version of TLS that is allowed here", "switch TLS 1.2 on there"),
    ("UNRECOGNIZED_NAME", "the server has no certificate for this name", "check the host name"),
    ("UNEXPECTED_EOF", "the server ended the connection within the handshake", "look at the server's log"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A client certificate, shown to a server that demands one."""

    cert_file: Path
    """PEM file: the certificate, then those between it and its authority."""
    key_file: Path | None = None
    """PEM file of the key, not encrypted; None: the key is in ``cert_file``."""


def client_context(
    ca_file: str | Path | None = None, *, insecure: bool = False, client: ClientCertificate | None = None
) -> ssl.SSLContext:
    """A TLS context that verifies the server's certificate and its name: by the certificates in ``ca_file``
    (PEM) alone, or by those that the operating system trusts, or the variable ``SSL_CERT_FILE`` names.
    ``insecure``: nothing is verified.

    ``client`` is shown where a server demands it. Raises OSError (ssl.SSLError is one) for a CA file that
    cannot be used, SuiteError for files of ``client`` that cannot be.
    """
    # cadata rather than cafile: OpenSSL would wait at a pipe. Nothing to trust must not mean the default.
    context = ssl.create_default_context(cadata=None if ca_file is None else _certificates(Path(ca_file)))
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if client is not None:
        _show(client, context)
    return context


def _show(client: ClientCertificate, context: ssl.SSLContext) -> None:
    files = [file for file in (client.cert_file, client.key_file) if file is not None]
    try:
        for file in files:
            read_bytes(file, SMALL_BYTES)  # OpenSSL would wait at a pipe
        # Without a password OpenSSL asks for one at the terminal.
        context.load_cert_chain(client.cert_file, client.key_file, password="")
    except OSError as error:
        names = " and ".join(map(str, files))
        raise SuiteError(
            f"the client certificate cannot be used: {error.strerror or error}",
            where=names,
            remedy="give PEM files: the certificate as client_cert_file; its key, which is not encrypted, "
            "there too or as client_key_file",
        ) from error


def _certificates(path: Path) -> str:
    text = read_bytes(path, SMALL_BYTES).decode("ascii", errors="ignore")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise OSError(errno.EINVAL, "it holds no certificate in PEM form")
    return text


def explain(error: ssl.SSLError, url: str) -> tuple[str, str]:
    """Cause and remedy, in words, of a TLS connection to ``url`` that failed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        verdict, remedy = _VERDICTS.get(error.verify_code, _UNTRUSTED)
        what = f"TLS: the server's certificate {verdict}: {error.verify_message}"
        return what, f"{remedy}; --llm-insecure goes without the check, and every result says so"
    reason = error.reason or str(error)
    for part, what, remedy in _HANDSHAKES:
        if part in reason:
            return f"TLS: {what}: {reason}", remedy
    scheme, _, rest = url.partition("://")
    plain = f"{scheme.removesuffix('s')}://{rest.partition('/')[0]}"
    return f"TLS: the handshake failed: {reason}", f"if the port has no TLS, use {plain} in place of https://"
