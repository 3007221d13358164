"""The manifest: declared, detected and measured facts about a run, each with its origin.

Keys are the dotted names of the evidence vocabulary in ``compliance/requirements.yaml``
(``sut.model.name``, ``workload.seed``, ``clock.topology``). A key that is absent is "no evidence".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Origin(StrEnum):
    DECLARED = "declared"
    """Stated by the tester: SUT file, marker, option, fixture."""
    DETECTED = "detected"
    """Read from the endpoint or from this host."""
    MEASURED = "measured"
    """Computed from this run's records."""
    GENERATOR = "generator"
    """A property of this plugin, such as where it takes its time stamps."""
    SIMULATED = "simulated"
    """Stated by the embedded engine about itself."""


@dataclass(frozen=True, slots=True)
class Fact:
    value: Any
    """A JSON value."""
    origin: Origin
    source: str = ""
    """Where exactly the value is from: a file, a URL, a header."""


class Facts(Mapping[str, Fact]):
    """An immutable mapping of dotted names to facts. Later ones win when merged."""

    __slots__ = ("_facts",)

    def __init__(self, facts: Mapping[str, Fact] | None = None) -> None:
        self._facts: Mapping[str, Fact] = MappingProxyType(dict(facts or {}))

    @classmethod
    def of(cls, origin: Origin, values: Mapping[str, Any], source: str = "") -> Facts:
        """Facts from plain values; ``None`` values are left out, since they state nothing."""
        return cls({key: Fact(value, origin, source) for key, value in values.items() if value is not None})

    def __getitem__(self, key: str) -> Fact:
        return self._facts[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._facts)

    def __len__(self) -> int:
        return len(self._facts)

    def __or__(self, other: Mapping[str, Fact]) -> Facts:
        return Facts({**self._facts, **other})

    def __repr__(self) -> str:
        return f"Facts({dict(self._facts)!r})"

    def value(self, key: str, default: Any = None) -> Any:
        """The value under ``key``, or ``default`` when nothing is known."""
        fact = self._facts.get(key)
        return default if fact is None else fact.value

    def under(self, prefix: str) -> Facts:
        """The facts whose key starts with ``prefix.``, with their full keys."""
        return Facts({key: fact for key, fact in self._facts.items() if key.startswith(prefix + ".")})

    def sha256(self) -> str:
        """Digest of keys and values in canonical JSON; frozen before the first measured request."""
        content = {key: fact.value for key, fact in self._facts.items()}
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()
