"""Where a test's records go: one file per test, named so that people find it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_LONGEST = 80


def records_path(report: Path | None, nodeid: str, worker: str | None) -> Path | None:
    """``REPORT/records/NAME.jsonl``, or None without a report directory.

    The name is the node id in safe characters; a digest keeps long or similar ones apart. A repeated attempt
    gets a number, so that no attempt overwrites another.
    """
    if report is None:
        return None
    readable = re.sub(r"[^A-Za-z0-9.]+", "-", nodeid).strip("-")[-_LONGEST:]
    digest = hashlib.sha256(nodeid.encode()).hexdigest()[:8]
    stem = "-".join(part for part in (readable, digest, worker) if part)
    folder = report / "records"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}.jsonl"
    attempt = 1
    while path.exists():
        attempt += 1
        path = folder / f"{stem}-{attempt}.jsonl"
    return path


__all__ = ["records_path"]
