"""How an engine may flatter its figures: what becomes of each request. Pure.

They are there to be found (``extras/integrity``). An honest engine has none: a prompt always gets the same
words, as from a model at temperature 0.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from pytest_llmbench.simulator.engine.config import CheatOptions
from pytest_llmbench.tokens import reference_tokenizer

# Each is one token of cl100k_base with its leading space, and none merges with its neighbours, so that
# a client that counts the joined text with that tokenizer finds as many tokens as the usage object says.
_STORY = (
    "the sea is wide and a small boat can cross it when wind is kind but no one knows how long that may take "
    "so we wait by the shore with bread and tea until light comes back over the hill then they sing an old "
    "song about rain on leaves while you count each wave from left to right as if time stood"
)
WORDS: Final = tuple(f" {word}" for word in _STORY.split())
CANNED: Final = WORDS[0]
"""The first token that is always the same."""

_SHORTENED: Final = 0.7
"""The part of a reply that is left of one that is shortened."""
_OTHER_MODEL: Final = 31
"""Words by which the smaller model's replies lie elsewhere in the story."""
_PUBLISHED_SEED: Final = 42


@dataclass(frozen=True, slots=True)
class Conduct:
    """What becomes of one request."""

    first_word: int
    """Where its reply begins in the story."""
    ceiling: int
    """Most tokens of its reply."""
    from_memory: bool = False
    canned: bool = False

    def text(self, tokens: int) -> str:
        """The first ``tokens`` words of the reply."""
        said = [WORDS[(self.first_word + token) % len(WORDS)] for token in range(tokens)]
        return "".join([CANNED, *said[1:]] if self.canned and said else said)


class Conducts:
    """Decides on the conduct towards each request, in order of arrival."""

    def __init__(self, options: CheatOptions) -> None:
        self.options = options
        self._seen = set(_known(options.known_prompts))

    def of(self, prompt: str | Sequence[int], ceiling: int, in_flight: int) -> Conduct:
        """``in_flight``: requests in flight, this one among them."""
        options, key = self.options, _key(prompt)
        remembered = key in self._seen
        if options.response_cache:
            self._seen.add(key)
        short, other = (
            limit is not None and in_flight > limit
            for limit in (options.short_replies_above, options.smaller_model_above)
        )
        if short:
            ceiling = max(1, int(ceiling * _SHORTENED))
        return Conduct(key + _OTHER_MODEL * other, ceiling, remembered, options.canned_first_token)


def _key(prompt: str | Sequence[int]) -> int:
    return zlib.crc32(prompt.encode() if isinstance(prompt, str) else array("I", prompt).tobytes())


@lru_cache(maxsize=4)
def _known(count: int) -> frozenset[int]:
    """The keys of published prompts, as ids and as text."""
    if not count:
        return frozenset()
    from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM  # only this cheat knows workloads

    asked = [request.token_ids or () for request in SYNTHETIC_UNIFORM.requests(count, _PUBLISHED_SEED)]
    decode = reference_tokenizer().decode
    return frozenset(key for ids in asked for key in (_key(ids), _key(decode(ids))))
