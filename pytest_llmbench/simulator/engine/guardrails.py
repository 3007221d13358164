"""Safety filters before and after the engine: their cost, the delay they add, and their refusals.

Both run beside the engine, not on its accelerator: they delay a request without lengthening a step. The
output filter checks the windows of one answer one after another, those of different answers side by side.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_llmbench.simulator.engine.config import EngineConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Screening:
    """Result of the input filter for one prompt: it is queued, or refused, ``delay_ns`` later."""

    delay_ns: int
    refused: bool


PASSED = Screening(0, False)


class Guardrails:
    """The input and output filter of one engine. Refusals are drawn from the seed, in order of the calls."""

    def __init__(self, config: EngineConfig) -> None:
        self._config = config
        self.screens = config.input_filter == "enabled"
        """Whether prompts pass the input filter."""
        self.holds = config.output_filter == "enabled"
        """Whether output is held back until its window has been checked."""
        self._input_random = random.Random(f"input refusals {config.seed}")
        self._output_random = random.Random(f"output refusals {config.seed}")

    def screen(self, prompt_tokens: int) -> Screening:
        """Check a prompt on its arrival."""
        if not self.screens:
            return PASSED
        figures = self._config
        cost_us = figures.input_filter_us + figures.input_filter_us_per_token * prompt_tokens
        refused = self._input_random.random() < figures.input_refusal_share
        return Screening(round(cost_us * 1000), refused)

    def cut(self, output_tokens: int) -> tuple[int, int] | None:
        """The place where the output filter breaks an answer off: tokens computed, and how many of these are
        withheld.

        ``None`` for an answer that passes. The window that is refused is any of them with equal chance.
        """
        if not self.holds:
            return None
        chance, place = self._output_random.random(), self._output_random.random()
        if chance >= self._config.output_refusal_share:
            return None
        window = self._config.output_filter_window_tokens
        begin = int(place * -(-output_tokens // window)) * window
        end = min(begin + window, output_tokens)
        return end, end - begin

    def check_ns(self, tokens: int) -> int:
        """Duration in nanoseconds of the check of a window of so many tokens."""
        figures = self._config
        return round((figures.output_filter_us + figures.output_filter_us_per_token * tokens) * 1000)

    @property
    def window_tokens(self) -> int:
        """Number of tokens checked together; 1 when nothing is held back."""
        return self._config.output_filter_window_tokens if self.holds else 1

    def released_ns(self, token_ns: NDArray[np.int64]) -> NDArray[Any]:
        """The instants at which the tokens of a whole answer are released, given when each was computed.

        Window i leaves at r_i = max(c_i, r_(i-1)) + check_i, c_i the instant of its last token.
        """
        import numpy as np

        window, count = self.window_tokens, len(token_ns)
        if not self.holds or count == 0:
            return token_ns
        released, free_ns, whole_ns = list[int](), 0, self.check_ns(window)  # the same as Release, at once
        for at_ns in token_ns[window - 1 :: window].tolist():
            free_ns = max(at_ns, free_ns) + whole_ns
            released.append(free_ns)
        if rest := count % window:
            released.append(max(int(token_ns[-1]), free_ns) + self.check_ns(rest))
        return np.repeat(np.array(released, dtype=np.int64), window)[:count]


class Release:
    """Holds the tokens of one answer back until their window has been checked."""

    def __init__(self, guardrails: Guardrails) -> None:
        self._guardrails = guardrails
        self._held = 0
        self._free_ns = 0

    def produced(self, at_ns: int, last: bool) -> int | None:
        """Note that a token was computed at this instant. Returns when all held tokens may leave, or ``None``
        while the window is open."""
        if not self._guardrails.holds:
            return at_ns
        self._held += 1
        if self._held < self._guardrails.window_tokens and not last:
            return None
        self._free_ns = max(at_ns, self._free_ns) + self._guardrails.check_ns(self._held)
        self._held = 0
        return self._free_ns
