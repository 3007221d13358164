"""How long a simulated answer becomes, and how long a reasoning model thinks before it."""

from __future__ import annotations

import math
import random
from statistics import NormalDist
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from pytest_llmbench.simulator.engine.config import EngineConfig

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


ThinkReason = Literal["converged", "overthinking", "hard_cap"]
"""``converged``: the model ended its thoughts itself. ``overthinking``: it was found to go in circles and cut
at the budget. ``hard_cap``: it reached the length that none may exceed."""

_STANDARD = NormalDist()


class ThinkLaw:
    """Draws the length of each sequence's thoughts, in order of submission, from one seed.

    The natural length is lognormal with mean ``think_mean_tokens`` and sigma ``think_spread``, at least 1.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._mean = config.think_mean_tokens
        self._spread = config.think_spread
        self._budget = config.think_budget_tokens
        self._detected = config.overthinking_detected
        self._hard_cap = config.think_hard_cap_tokens
        # A stream of its own: reasoning does not change the lengths of the answers.
        self._random = random.Random(f"thoughts {config.seed}")

    def draw(self) -> tuple[int, ThinkReason | None]:
        """Think tokens and why they end; (0, None) for a model that does not reason.

        Both random numbers are drawn whether needed or not, so that the n-th sequence thinks for as long
        whatever the ones before it did.
        """
        if self._mean is None:
            return 0, None
        length_quantile, detection = self._random.random(), self._random.random()
        natural = _lognormal(length_quantile, self._mean, self._spread)
        cap = self._hard_cap
        budget = self._budget
        reaches_budget = budget is not None and natural > budget and (cap is None or budget <= cap)
        if budget is not None and reaches_budget and detection < self._detected:
            return budget, "overthinking"
        if cap is not None and natural > cap:
            return cap, "hard_cap"
        return natural, "converged"


def _lognormal(quantile: float, mean: float, sigma: float) -> int:
    """The lognormal number of the given mean at ``quantile``, rounded, at least 1."""

    if sigma == 0.0:
        return max(1, round(mean))
    # inv_cdf is defined in the open interval only; random() may give exactly 0
    standard = _STANDARD.inv_cdf(max(quantile, 2.0**-53))
    return max(1, round(mean * math.exp(sigma * standard - sigma * sigma / 2.0)))
