"""The figures of the draft, each once: procedures, metrics, the audit and reports read them here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

SAMPLES_REQUIRED: Mapping[str, int] = MappingProxyType({"p99": 1_000, "p99_9": 10_000})
"""Fewest samples of which a percentile is reported (section 5.1.4.3)."""
