"""TLS: which server certificates are trusted, and what it means when one is not."""

from __future__ import annotations

import errno
import ssl
from pathlib import Path

from pytest_llmbench.input_files import SMALL_BYTES, read_bytes


def client_context(ca_file: str | Path | None = None, *, insecure: bool = False) -> ssl.SSLContext:
    """Verifies the server's certificate and its name: by the certificates in ``ca_file`` (PEM) alone, or by
    those that the operating system trusts, or the variable ``SSL_CERT_FILE`` names. ``insecure``: by none.

    Raises OSError (ssl.SSLError is one) for a file that cannot be used.
    """
    # cadata rather than cafile: OpenSSL would wait at a pipe. Nothing to trust must not mean the default.
    context = ssl.create_default_context(cadata=None if ca_file is None else _certificates(Path(ca_file)))
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _certificates(path: Path) -> str:
    text = read_bytes(path, SMALL_BYTES).decode("ascii", errors="ignore")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise OSError(errno.EINVAL, "it holds no certificate in PEM form")
    return text


__all__ = ["client_context"]
