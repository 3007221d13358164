"""Memory of a real load that is long: it follows the requests in flight, in both processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[3] / "benchmarks" / "bench_real_memory.py"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2 or shutil.which("cc") is None,
        reason="a C compiler and two cores of Linux are needed",
    ),
]


def taken(requests: int) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "--here", str(requests)]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=300, cwd=BENCHMARK.parent)
    told: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return told


def test_memory_does_not_follow_the_length_of_the_run():
    """Twice as many requests, where one takes 1 KiB in each process at the very least. Both are more than the
    columns that are kept in memory have room for: up to there a run takes what it needs."""
    few, many = (taken(requests) for requests in (320_000, 640_000))
    for what, peak in many["peaks"].items():
        assert peak < few["peaks"][what] + 80, (what, few["peaks"], many["peaks"])
    assert many["worker_resident"] < few["worker_resident"] + 80
