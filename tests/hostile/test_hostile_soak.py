"""A soak: the memory of no process of a session follows the number of requests.

    LLMBENCH_SOAK_REQUESTS=10000000 LLMBENCH_SOAK_MINUTES=60 pytest -m slow tests/hostile/test_hostile_soak.py

is the whole of it, some two hours; without these a million in virtual time and ten minutes over HTTP. Much
shorter ones say nothing: buffers are still being filled.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SOAK = Path(__file__).parents[2] / "benchmarks" / "bench_soak.py"
REQUESTS = int(os.environ.get("LLMBENCH_SOAK_REQUESTS", "1000000"))
MINUTES = float(os.environ.get("LLMBENCH_SOAK_MINUTES", "10"))
MIB = 2**20
PER_REQUEST_BYTES = 300
"""The columns of one request: what would be added for each if memory followed them."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc"),
]


def _soaked(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, str(SOAK), "--json", *arguments]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    told: dict[str, Any] = json.loads(said.stdout)
    return told


def _grown_as_requests_mib(requests: int) -> float:
    """From the second quarter of the load to the last are two quarters of the requests."""
    return requests / 2 * PER_REQUEST_BYTES / MIB


def test_memory_is_flat_in_virtual_time() -> None:
    found = _soaked("--replay", str(REQUESTS))
    assert found["counts"] == {"submitted": REQUESTS, "ok": REQUESTS}
    assert found["grown_mib"]["pytest"] < max(8, _grown_as_requests_mib(REQUESTS) / 4), found


def test_memory_is_flat_under_real_load() -> None:
    """Of the engine, which keeps the truth about some of its requests, nothing is asked."""
    found = _soaked("--minutes", str(MINUTES), "--rate", "200")
    assert sum(n for name, n in found["counts"].items() if name != "submitted") == found["requests"]
    for role in ("pytest", "measuring process"):
        assert found["grown_mib"][role] < max(8, _grown_as_requests_mib(found["requests"]) / 4), found
