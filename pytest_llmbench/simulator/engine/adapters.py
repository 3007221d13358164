"""LoRA adapters of an engine: which of them are in its memory, what a first use and a mixed batch cost."""

from __future__ import annotations

import math
from collections import Counter

from pytest_llmbench.simulator.engine.config import EngineConfig


class AdapterMemory:
    """The adapters in the memory of one engine, the least recently used first.

    A sequence joins the batch when its adapter is in memory, or takes a place there: a free one, or that of
    the adapter that has been unused for longest. The step with which it joins waits for the load. An engine
    without adapters takes any name, at no cost.
    """

    def __init__(self, config: EngineConfig) -> None:
        self._places: float = config.max_adapters or config.adapters or math.inf
        self._load_us, self._each_us = config.adapter_load_ms * 1000.0, config.adapter_us
        self._held: dict[str, None] = {}
        self._in_batch: Counter[str] = Counter()
        self.loading = 0
        """Loads that the next step waits for."""

    def fits(self, adapter: str) -> bool:
        """Whether a sequence with this adapter can join; one that names none always can."""
        if not adapter or adapter in self._held or len(self._held) < self._places:
            return True
        return any(not self._in_batch[each] for each in self._held)

    def join(self, adapter: str) -> None:
        if not adapter:
            return
        if adapter not in self._held:
            self.loading += 1
        self._place(adapter)
        self._in_batch[adapter] += 1

    def _place(self, adapter: str) -> None:
        if adapter not in self._held and len(self._held) >= self._places:
            del self._held[next(each for each in self._held if not self._in_batch[each])]
        self._held.pop(adapter, None)
        self._held[adapter] = None

    def load(self, adapter: str, *, waited_for: bool) -> None:
        """Load it because a call asks for it; it stays where it finds a place. ``waited_for``: a next
        step waits."""
        if self.fits(adapter):
            self._place(adapter)
        self.loading += waited_for

    def unload(self, adapter: str) -> None:
        """Forget it, unless a sequence of the batch still needs it."""
        if not self._in_batch[adapter]:
            self._held.pop(adapter, None)

    def leave(self, adapter: str) -> None:
        if adapter:
            self._in_batch[adapter] -= 1

    def step_us(self) -> float:
        """Microseconds by which the next step is longer: the distinct adapters of the batch, and loads."""
        if not self._held and not self.loading:
            return 0.0
        loading, self.loading = self.loading, 0
        return self._load_us * loading + self._each_us * len(+self._in_batch)
