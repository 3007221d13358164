"""How many engines stand behind an address, and who gives them their requests: in the core one, and nobody.

More of them are an extra's (``registry.Extra.deployments``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.engine import Engine
from pytest_llmbench.simulator.engine.loop import EngineLoop, R

At = Callable[[int, Callable[[int], None]], None]
"""Called with an instant in nanoseconds and what is then called with the instant at which it is."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """One engine by itself, and the base of all others: dataclasses whose fields are options of scenarios."""

    title: ClassVar[str] = ""
    """What its options are of, for the help of the command line."""

    @property
    def engines(self) -> int:
        """Number of engines."""
        return 1

    @property
    def disaggregated(self) -> bool:
        """Whether prefill and decode run on different engines, so that KV caches are sent."""
        return False

    def mistakes(self) -> list[str]:
        """The mistakes in the values of its options; empty if there are none."""
        return []

    def started(self, config: EngineConfig) -> tuple[Engine, ...]:
        """Its engines."""
        return (Engine(config),)

    def loop(self, replicas: Sequence[R], at: At) -> EngineLoop[Any, R]:  # noqa: ARG002 - nothing takes time
        """The loop of its engines. ``at``: how it has something done at a later instant."""
        return EngineLoop(replicas)

    def components(self) -> list[str]:
        """What stands between clients and engines, in words; empty for a single engine."""
        return []

    def policies(self) -> str:
        """The routing policies, in words."""
        return "none"

    def in_words(self) -> list[str]:
        """The number and kind of engines as a phrase for readers; empty for a single one."""
        return []
