"""How long a simulated answer becomes."""

from __future__ import annotations

import math
import random
from typing import Literal

FinishReason = Literal["length", "stop", "content_filter", "error"]
"""``content_filter``: the output filter broke it off. ``error``: the engine could not go on with it."""


class OutputLengthLaw:
    """Draws the length of each sequence, in order of submission, from one seed.

    With ``eos_mean_tokens`` m every token is the last one with probability 1/m (a geometric law, mean m);
    without it every sequence runs to its ceiling.
    """

    def __init__(self, eos_mean_tokens: float | None, seed: int) -> None:
        self._mean = eos_mean_tokens
        self._random = random.Random(seed)

    def draw(self, max_tokens: int, min_tokens: int, ignore_eos: bool) -> tuple[int, FinishReason]:
        """Output tokens and the finish reason. Reaching ``max_tokens`` is ``length``, also when EOS is next.

        The random number is drawn even where it is not needed, so that the n-th sequence has the same
        length whatever the ones before it asked for.
        """
        uniform = self._random.random()
        if self._mean is None or ignore_eos:
            return max_tokens, "length"
        drawn = max(_geometric(uniform, self._mean), min_tokens)
        return (drawn, "stop") if drawn < max_tokens else (max_tokens, "length")

    def skip(self) -> None:
        """Pass over a sequence whose length is decided otherwise; those after it keep theirs."""
        self._random.random()


def _geometric(uniform: float, mean: float) -> int:
    """The geometric number (1, 2, …) of the given mean at the quantile ``uniform`` in [0, 1)."""
    if mean <= 1.0:
        return 1
    return 1 + int(math.log1p(-uniform) / math.log1p(-1.0 / mean))


__all__ = ["FinishReason", "OutputLengthLaw"]
