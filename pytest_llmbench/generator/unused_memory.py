"""Gives memory that the C library keeps for later back to the system, after work that needed much."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def give_back_unused_memory() -> None:
    """Give the system the pages that glibc holds and nobody uses (``malloc_trim``); elsewhere do nothing.

    A load of many short requests leaves tens of MiB of them: prompts where they were drawn, records where
    they were made. It takes some milliseconds, so it has no place where something is being sent.
    """
    with suppress(OSError, AttributeError):  # musl, macOS, Windows: no such function, or library
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))
