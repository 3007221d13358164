"""Requests of tests to servers on this machine: HTTP without TLS, and through no proxy of the environment.

``httpx.get`` and its like would read the certificates of all authorities for each request, which takes 50 ms
of computing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import httpx


def get(url: str, **options: Any) -> httpx.Response:
    return httpx.get(url, trust_env=False, verify=False, **options)


def post(url: str, **options: Any) -> httpx.Response:
    return httpx.post(url, trust_env=False, verify=False, **options)


def stream(method: str, url: str, **options: Any) -> AbstractContextManager[httpx.Response]:
    return httpx.stream(method, url, trust_env=False, verify=False, **options)
