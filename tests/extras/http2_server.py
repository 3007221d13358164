"""hypercorn, a server of another maker that speaks HTTP/2, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import plain_http

_HERE = Path(__file__).parent
_PATIENCE_S = 30.0


@contextlib.contextmanager
def hypercorn(*options: str, tls: bool = False) -> Iterator[str]:
    """The base URL of a server with :mod:`http2_app`. ``options``: those of its command line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        where = ("--bind", f"fd://{listener.fileno()}")
        path = os.pathsep.join([str(_HERE), str(_HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
        child = subprocess.Popen(
            [sys.executable, "-m", "hypercorn", *where, *options, "http2_app:app"],
            cwd=_HERE,
            env={**os.environ, "PYTHONPATH": path},
            pass_fds=(listener.fileno(),),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        url = f"{'https' if tls else 'http'}://127.0.0.1:{port}/v1"
        try:
            _wait(child, url)
            yield url
        finally:
            child.terminate()
            child.communicate(timeout=_PATIENCE_S)


def truth(url: str) -> dict[str, Any]:
    """What it says of the requests so far, by their ids."""
    answer = plain_http.get(f"{url.removesuffix('/v1')}/truth")
    told: dict[str, Any] = answer.raise_for_status().json()
    return told


def _wait(child: subprocess.Popen[bytes], url: str) -> None:
    until_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            plain_http.get(f"{url}/models").raise_for_status()
            return
        except httpx.HTTPError:
            if child.poll() is not None:
                raise RuntimeError((child.stderr.read() if child.stderr else b"").decode()) from None
            if time.monotonic() > until_s:
                raise
            time.sleep(0.05)
