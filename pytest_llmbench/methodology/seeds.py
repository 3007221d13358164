"""Seeds for the parts of a test, so that no two parts draw the same numbers."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, purpose: str) -> int:
    """A seed for ``purpose``, fixed by ``seed``: the first 4 bytes of SHA-256 of ``"seed/purpose"``."""
    digest = hashlib.sha256(f"{seed}/{purpose}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


__all__ = ["derived_seed"]
