"""The cores that worker processes are put on."""

from __future__ import annotations

import os
import re
from contextlib import suppress

from pytest_llmbench.errors import SuiteError

_REMEDY = "give core numbers such as 2,3 or 4-7, or auto (all cores of this process, in turn), or none"


def allowed_cpus() -> tuple[int, ...]:
    """The cores that this process may run on, in order."""
    try:
        return tuple(sorted(os.sched_getaffinity(0)))
    except AttributeError:  # not Linux
        return tuple(range(os.cpu_count() or 1))


def usable_cpus(given: str, allowed: tuple[int, ...] | None = None) -> tuple[int, ...]:
    """What ``--llm-worker-cpus`` names: ``none``, ``auto``, or numbers and ranges such as ``2,4-6``.

    Raises SuiteError for other words, and for cores that this process may not use.
    """
    text = given.strip().lower()
    if text in ("", "none"):
        return ()
    if not hasattr(os, "sched_setaffinity"):
        raise SuiteError(
            "this system cannot keep a process on a core", where="--llm-worker-cpus", remedy="give none"
        )
    usable = allowed_cpus() if allowed is None else allowed
    if text == "auto":
        return usable
    wanted = _numbers(given)
    foreign = [cpu for cpu in wanted if cpu not in usable]
    if foreign:
        raise SuiteError(
            f"this process may not use core {', '.join(map(str, foreign))}; it may use "
            f"{', '.join(map(str, usable))}",
            where="--llm-worker-cpus",
            remedy="name some of these, or widen the allowed cores (taskset, cpuset of the container)",
        )
    return wanted


def _numbers(given: str) -> tuple[int, ...]:
    found: dict[int, None] = {}
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        number = re.compile(r"\d{1,5}").fullmatch  # a range over more has no end
        if not number(first) or (dash and not number(last)) or (dash and int(last) < int(first)):
            raise SuiteError(f"{given!r} is no list of cores", where="--llm-worker-cpus", remedy=_REMEDY)
        found |= dict.fromkeys(range(int(first), int(last or first) + 1))
    return tuple(found)


def stay_on(cpu: int) -> None:
    """Keep this process on one core.

    Where that is not allowed, the core does not exist or the platform cannot do it, the process runs where
    the system puts it.
    """
    with suppress(AttributeError, OSError, ValueError):
        os.sched_setaffinity(0, {cpu})
