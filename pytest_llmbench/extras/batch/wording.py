"""What a batch says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "not_held_back": Sentence(
            "{transport} holds nothing back: the requests leave whole, one after the other; send_spread says "
            "within what time"
        ),
    }
)
