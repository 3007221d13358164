"""What a load over HTTP/2 says."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pytest_llmbench.model.wording import Sentence

SENTENCES: Mapping[str, Sentence] = MappingProxyType(
    {
        "over_http2": Sentence(
            "the load was measured over HTTP/2 (--llm-http=2): replies that share a connection wait for the "
            "bytes of one another, and what is lost or read late is so for all of them"
        ),
    }
)
