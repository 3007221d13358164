"""The catalogue of requirements: package data, read once."""

from __future__ import annotations

import importlib.resources
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

DRAFT = "draft-gaikwad-llm-benchmarking-methodology-00"
"""The revision that is implemented (AMB-31)."""

ALL = "all"
"""In ``applies_to``: the entry binds each of the ten tests."""
COMPARISON = "comparison"
"""In ``applies_to``: the entry binds only where two or more systems are compared in one report."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One separately checkable statement of the draft, in our words. The fields are those of the file."""

    id: str
    section: str
    level: str
    """The level as worded in the draft: MUST, MUST NOT, REQUIRED, SHOULD, RECOMMENDED, MAY, or PROCEDURE for
    none."""
    counts_as: str
    """MUST, SHOULD, MAY, or ``none`` for a constraint without a capitalised keyword (AMB-24)."""
    verdict_effect: str
    """What it does to the verdict when unmet: ``blocks``, ``downgrades`` or ``none``."""
    subject: str
    applies_to: tuple[str, ...]
    condition: str
    statement: str
    verification: str
    evidence: str
    notes: str = ""
    group: str | None = None
    """Entries split from one sentence of the draft share it."""

    @property
    def keyword(self) -> str:
        """MUST, SHOULD, MAY or PROCEDURE."""
        return "PROCEDURE" if self.counts_as == "none" else self.counts_as

    @property
    def is_literal(self) -> bool:
        """True when a capitalised keyword stands behind the entry (policy ``literal``, AMB-25)."""
        return self.counts_as != "none"


@cache
def load_catalogue() -> Mapping[str, Requirement]:
    """All entries by id, in the order of the file."""
    entries = (_requirement(entry) for entry in _document()["requirements"])
    return {entry.id: entry for entry in entries}


@cache
def ambiguities() -> Mapping[str, Mapping[str, Any]]:
    """The settled ambiguities of the draft by id: sections, issue, resolution, rationale."""
    return {entry["id"]: entry for entry in _document()["ambiguities"]}


def applicable(test: str, *, systems: int = 1) -> tuple[Requirement, ...]:
    """The entries that bind ``test``, in the order of the file, whether or not their condition holds.

    Entries that bind comparisons only are among them from two ``systems`` on.
    """
    wanted = {test, ALL} | ({COMPARISON} if systems > 1 else set())
    return tuple(entry for entry in load_catalogue().values() if wanted.intersection(entry.applies_to))


@cache
def _document() -> Mapping[str, Any]:
    import yaml

    text = (
        importlib.resources.files("pytest_llmbench.compliance")
        .joinpath("requirements.yaml")
        .read_text("utf-8")
    )
    document: Mapping[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return document


def _requirement(entry: Mapping[str, Any]) -> Requirement:
    return Requirement(**{**entry, "applies_to": tuple(entry["applies_to"])})
