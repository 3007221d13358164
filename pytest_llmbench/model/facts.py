"""The manifest: declared, detected and measured facts about a run, each with its origin.

Keys are those of ``fact_keys``. A key that is absent is "no evidence".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, TypeVar, overload

from pytest_llmbench.model.fact_keys import ClockFact, Key, ManifestFact, NetworkFact, SUTFact, Value

Default = TypeVar("Default")


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
    def of(
        cls, origin: Origin, values: Mapping[Key[Any], Any] | Mapping[str, Any], source: str = ""
    ) -> Facts:
        """Facts from plain values; ``None`` values are left out, since they state nothing."""
        stated = ((str(key), value) for key, value in values.items() if value is not None)
        return cls({key: Fact(value, origin, source) for key, value in stated})

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

    @overload
    def value(self, key: Key[Value]) -> Value | None: ...
    @overload
    def value(self, key: Key[Value], default: Default) -> Value | Default: ...
    def value(self, key: Key[Any], default: Any = None) -> Any:
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


_OBSERVED_ALONE = "endpoint."
_OF_THE_ENGINE = (SUTFact.CONTEXT_LIMIT_TOKENS, NetworkFact.RTT_MS, SUTFact.SIMULATED)
"""Facts that nobody declares of the embedded engine; the others it only proposes."""
_NAMED_OTHERWISE = frozenset({SUTFact.MODEL_NAME, ClockFact.TOPOLOGY})
"""Detected facts that a tester knows better: the name behind an alias, the machine behind a tunnel."""


def declared_beside(observed: Facts, declared: Facts) -> Facts:
    """The facts of both. What was observed stands over what was declared, and a contradiction is told by
    ``manifest.contradicted``; what an endpoint says of itself nobody else can declare.

    A context limit below the one that the engine states is kept, since requests have to fit into it, and is a
    contradiction all the same.
    """
    found, contradicted = dict(observed), {}
    for key, fact in declared.items():
        seen = observed.get(key)
        if _may_be_declared(key, seen, fact):
            found[key] = fact
            continue
        contradicted[key] = {"declared": fact.value, "observed": None if seen is None else seen.value}
        if key == SUTFact.CONTEXT_LIMIT_TOKENS and seen is not None and _is_less(fact.value, seen.value):
            found[key] = fact
    told = {ManifestFact.CONTRADICTED: contradicted or None}
    return Facts(found) | Facts.of(Origin.GENERATOR, told, "declarations beside what was observed")


def _may_be_declared(key: str, seen: Fact | None, fact: Fact) -> bool:
    if seen is None:
        return not key.startswith(_OBSERVED_ALONE)
    if seen.value == fact.value or key in _NAMED_OTHERWISE or seen.origin is Origin.DECLARED:
        return True
    if seen.origin is Origin.SIMULATED and not key.startswith(_OBSERVED_ALONE) and key not in _OF_THE_ENGINE:
        return True
    texts = isinstance(seen.value, str) and isinstance(fact.value, str)
    return texts and not key.startswith(_OBSERVED_ALONE) and seen.value.lower() in fact.value.lower()


def _is_less(one: Any, other: Any) -> bool:
    return all(isinstance(each, int) and not isinstance(each, bool) for each in (one, other)) and one < other
