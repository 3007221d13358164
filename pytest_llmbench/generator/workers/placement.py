"""Where the workers of a load run: on which cores of this machine, or on which Ray cluster (``--llm-workers
ray[:ADDRESS][?workers=N&cpus=C]``), and how many.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.numbers import trimmed

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
    found: dict[int, None] = {}
    number = re.compile(r"\d{1,5}").fullmatch  # a range over more has no end
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        if not number(first) or (dash and not number(last)) or (dash and int(last) < int(first)):
            raise SuiteError(f"{given!r} is not a list of cores", where="--llm-worker-cpus", remedy=_REMEDY)
        found |= dict.fromkeys(range(int(first), int(last or first) + 1))
    wanted = tuple(found)
    foreign = [cpu for cpu in wanted if cpu not in usable]
    if foreign:
        raise SuiteError(
            f"this process may not use core {', '.join(map(str, foreign))}; it may use "
            f"{', '.join(map(str, usable))}",
            where="--llm-worker-cpus",
            remedy="name some of these, or widen the allowed cores (taskset, cpuset of the container)",
        )
    return wanted


def stay_on(cpu: int) -> None:
    """Keep this process on one core.

    Where that is not allowed, the core does not exist or the platform cannot do it, the process runs where
    the system puts it.
    """
    with suppress(AttributeError, OSError, ValueError):
        os.sched_setaffinity(0, {cpu})


_HOST_PORT = re.compile(r"(ray://)?(\[[0-9A-Fa-f:.]+\]|[\w.-]+):(\d{1,5})")
MOST_WORKERS = 1024
_FORMS = "ray, ray:auto, ray:HOST:6379 or ray://HOST:10001, then ?workers=N&cpus=C where wanted"


@dataclass(frozen=True)
class RaySpec:
    """The cluster that the workers run on, and how many there are."""

    address: str | None = None
    """``auto``, ``HOST:PORT`` of the head, ``ray://HOST:PORT`` of its client server; ``None``: a cluster of
    one node, started for the session on this machine."""
    workers: int | None = None
    """Number of workers; ``None``: one on each node."""
    cpus: float = 1.0
    """CPUs that a worker reserves."""

    @classmethod
    def parse(cls, given: str) -> RaySpec:
        """Parse the value of ``--llm-workers``. Raises SuiteError with every mistake."""
        text, _, query = given.strip().partition("?")
        address = text[len("ray") :].removeprefix(":") or None
        if address is not None and address.startswith("//"):
            address = f"ray:{address}"
        mistakes = []
        if address is not None and address.lower() != "auto":
            found = _HOST_PORT.fullmatch(address)
            if found is None:
                mistakes.append(f"{address!r} is neither auto nor HOST:PORT")
            elif not 0 < int(found[3]) < 65_536:
                mistakes.append(f"{found[3]} is not a port")
        workers, cpus = None, 1.0
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name == "workers" and re.fullmatch(r"\d{1,4}", value) and 1 <= int(value) <= MOST_WORKERS:
                workers = int(value)
            elif name == "cpus" and re.fullmatch(r"\d{1,4}(\.\d{1,4})?", value):
                cpus = float(value)
            else:
                mistakes.append(
                    f"{name}={value} is neither workers=N, 1 to {MOST_WORKERS}, nor cpus=C, from 0"
                )
        if mistakes:
            raise SuiteError.from_mistakes(mistakes, where=f"--llm-workers {given}", remedy=f"give {_FORMS}")
        return cls(address, workers, cpus)

    @property
    def host_port(self) -> tuple[str, int] | None:
        """What has to answer; ``None`` where Ray finds or starts the cluster itself."""
        found = _HOST_PORT.fullmatch(self.address or "")
        return None if found is None else (found[2].strip("[]"), int(found[3]))

    def __str__(self) -> str:
        address = "" if self.address is None else f":{self.address.removeprefix('ray:')}"
        asked = [] if self.workers is None else [f"workers={self.workers}"]
        asked += [] if self.cpus == 1 else [f"cpus={trimmed(self.cpus)}"]
        return f"ray{address}" + ("?" + "&".join(asked) if asked else "")


def is_ray(given: object) -> bool:
    """Whether the option's value is meant to name a Ray cluster."""
    return isinstance(given, str) and re.match(r"\s*ray(\W|\s*$)", given, re.IGNORECASE) is not None
