"""What a test without tokens says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "no_latency": Sentence("no request was answered with a result: there is no latency to report"),
    }
)
