"""``--llm-workers ray[:ADDRESS][?workers=N&cpus=C]``: which cluster, and how many workers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qsl

from pytest_llmbench.errors import SuiteError

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
    """``None``: one on each node."""
    cpus: float = 1.0
    """CPUs that a worker reserves."""

    @classmethod
    def parse(cls, given: str) -> RaySpec:
        """Parse the value of ``--llm-workers``. Raises SuiteError with every mistake."""
        text, _, query = given.strip().partition("?")
        address = text[len("ray") :].removeprefix(":") or None
        if address is not None and address.startswith("//"):
            address = f"ray:{address}"
        mistakes = [] if address is None else _wrong_address(address)
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
        asked += [] if self.cpus == 1 else [f"cpus={self.cpus:g}"]
        return f"ray{address}" + ("?" + "&".join(asked) if asked else "")


def is_ray(given: object) -> bool:
    """Whether the option's value is meant to name a Ray cluster."""
    return isinstance(given, str) and re.match(r"\s*ray(\W|\s*$)", given, re.IGNORECASE) is not None


def _wrong_address(address: str) -> list[str]:
    if address.lower() == "auto":
        return []
    found = _HOST_PORT.fullmatch(address)
    if found is None:
        return [f"{address!r} is neither auto nor HOST:PORT"]
    return [] if 0 < int(found[3]) < 65_536 else [f"{found[3]} is no port"]
