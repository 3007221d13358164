"""What was freed goes back to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import psutil
import pytest

from pytest_llmbench.generator.limits import give_back_unused_memory

MIB = 1 << 20


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_what_was_freed_below_what_is_in_use_goes_back():
    process = psutil.Process(os.getpid())
    freed = [bytes(2000) for _ in range(20_000)]  # 40 MB: more than 512 bytes each, so of the C library
    above = [bytes(2000) for _ in range(200)]
    del freed
    before = process.memory_info().rss
    give_back_unused_memory()
    assert before - process.memory_info().rss > 25 * MIB
    assert len(above) == 200


def test_a_c_library_without_it_is_left_alone():
    program = (
        "import ctypes\n"
        "from pytest_llmbench.generator.limits import give_back_unused_memory\n"
        "ctypes.CDLL = lambda name: object()\n"
        "give_back_unused_memory()\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
